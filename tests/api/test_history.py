"""`GET /history` and `GET /deliveries`: the slots of time as arrays, and the sample of attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.clock import rfc3339
from later.core.delivery_sample import SampledDelivery
from later.core.history import LONG, MAX_TOPICS, SERIES, SHORT, TOPIC_RESOLUTION, TOPIC_SERIES
from later.store.history import DELIVERIES_SLICE, HistoryEntry
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW
from tests.cases import each_case

LAST = SHORT.last_full(NOW - 2)
"""When the last full slot of ten seconds begins, by the clock of the API."""
LAST_LONG = LONG.last_full(NOW - 2)
SINCE = f"since={rfc3339(LAST - 2 * SHORT.length_ms)}"
"""Selects three slots of ten seconds."""


@pytest.fixture
async def off_api() -> AsyncIterator[ApiFixture]:
    async with serve_api(keeps_history=False) as api:
        yield api


async def add(api: ApiFixture, at: int, **entry: Any) -> None:
    await api.store.history.add(at, NOW, HistoryEntry(**entry))


async def series(api: ApiFixture, query: str) -> dict[str, list[float | None]]:
    status, answer = await api.get(f"/history?{query}")
    assert status == 200, answer
    found: dict[str, list[float | None]] = answer["series"]
    return found


def delivery(number: int, **fields: Any) -> SampledDelivery:
    """Return a delivery that began `number` ms after NOW."""
    values: dict[str, Any] = {
        "id": f"n{number}", "topic": "order", "attempt": 1, "due_at": NOW, "began_at": NOW + number, "took_ms": 3,
        "outcome": "failed", "status": 500, "host": "a.example", "reason": "status",
    }  # fmt: skip
    return SampledDelivery(**values | fields)


async def add_deliveries(api: ApiFixture, *deliveries: SampledDelivery) -> None:
    await add(api, NOW, deliveries=deliveries)


async def shown(api: ApiFixture, query: str = "") -> list[str]:
    """Return the ids of the deliveries that are shown, in their order."""
    _, answer = await api.get(f"/deliveries?{query}")
    return [each["id"] for each in answer["deliveries"]]


class TestHistory:
    async def test_series_are_arrays_of_slots_with_null_where_nobody_wrote(self, api: ApiFixture) -> None:
        await add(api, LAST - 20_000, counts={"c": 3, "d": 1, "l2": 4})
        await add(api, LAST, counts={"d": 2, "xe": 1, "xg": 2})
        names = "created,done,dead,dead_gone,lateness_p50"
        assert await api.get(f"/history?{SINCE}&series={names}") == (
            200,
            {
                "step_s": 10,
                "from": rfc3339(LAST - 20_000),
                "topic": None,
                "series": {
                    "created": [3, None, 0],
                    "done": [1, None, 2],
                    "dead": [0, None, 3],
                    "dead_gone": [0, None, 2],
                    "lateness_p50": [0.00375, None, None],
                },
            },
        )

    async def test_a_gauge_is_carried_on_over_a_slot_without_a_census_and_no_further(self, api: ApiFixture) -> None:
        await add(api, LAST - 30_000, gauges={"D": 5})
        for slot in (LAST - 20_000, LAST - 10_000, LAST):
            await add(api, slot, counts={"c": 1})
        assert await series(api, f"{SINCE}&series=due,delay") == {"due": [5, None, None], "delay": [None] * 3}

    async def test_a_gauge_is_not_carried_to_where_nobody_wrote(self, api: ApiFixture) -> None:
        await add(api, LAST - 10_000, gauges={"D": 5})
        assert await series(api, f"{SINCE}&series=due") == {"due": [None, 5, None]}

    async def test_a_gauge_of_five_minutes_is_not_carried(self, api: ApiFixture) -> None:
        await add(api, LAST_LONG - LONG.length_ms, gauges={"D": 5})
        await add(api, LAST_LONG, counts={"c": 1})
        since = f"since={rfc3339(LAST_LONG - LONG.length_ms)}"
        assert await series(api, f"{since}&step=300&series=due") == {"due": [5, None]}

    async def test_every_series_is_answered_and_as_long_as_the_others(self, api: ApiFixture) -> None:
        await add(api, LAST, counts={"c": 1})
        found = await series(api, f"series={','.join(SERIES)}")
        assert [*found] == [*SERIES]
        assert {len(values) for values in found.values()} == {360}

    @each_case(
        ("query", "slots", "ends"),
        [
            ("", 360, LAST),
            ("&step=10", 360, LAST),
            ("&step=300", 288, LAST_LONG),
            ("&topic=order", 288, LAST_LONG),
            ("&since=1970-01-01T00:00:00Z", 360, LAST),
            ("&step=300&since=1970-01-01T00:00:00Z", LONG.most_slots, LAST_LONG),
            ("&topic=order&since=1970-01-01T00:00:00Z", TOPIC_RESOLUTION.most_slots, LAST_LONG),
            ("&since=2200-01-01T00:00:00Z", 0, LAST),
        ],
    )
    async def test_the_last_slot_is_full_and_the_first_is_bounded(
        self, api: ApiFixture, query: str, slots: int, ends: int
    ) -> None:
        _, answer = await api.get(f"/history?series=done{query}")
        step_ms = answer["step_s"] * 1000
        assert len(answer["series"]["done"]) == slots
        assert answer["from"] == rfc3339(ends - (slots - 1) * step_ms)

    async def test_a_topic_has_its_own_series(self, api: ApiFixture) -> None:
        await add(api, LAST_LONG, topics={"order": [1, 2, 3, 4, 5]}, due_tasks={"order": 6})
        since = f"since={rfc3339(LAST_LONG)}"
        found = await series(api, f"{since}&topic=order&series={','.join(TOPIC_SERIES)}")
        assert found == {"created": [1], "done": [2], "failed": [3], "busy": [4], "dead": [5], "due": [6]}

    async def test_a_topic_that_is_not_among_the_busiest_is_null(self, api: ApiFixture) -> None:
        await add(api, LAST_LONG, topics={f"t{number}": [1, 0, 0, 0, 0] for number in range(MAX_TOPICS)})
        assert await series(api, f"since={rfc3339(LAST_LONG)}&topic=order&series=done") == {"done": [None]}

    @each_case(
        ("query", "detail"),
        [
            ("", f"series: expected series with commas between them, of {', '.join(SERIES)}, got nothing"),
            ("series=", f'series: expected series with commas between them, of {", ".join(SERIES)}, got ""'),
            ("series=done,", f'series: expected series with commas between them, of {", ".join(SERIES)}, got "done,"'),
            (
                "series=gone&topic=a",
                "series: expected series of a topic with commas between them, of created, done, failed, busy, dead, "
                'due, got "gone"',
            ),
            ("series=done&step=60", 'step: expected 10 or 300, got "60"'),
            ("series=done&step=10&topic=a", 'step: expected 300 with a topic, got "10"'),
        ],
    )
    async def test_a_wrong_parameter_is_refused(self, api: ApiFixture, query: str, detail: str) -> None:
        assert await api.get(f"/history?{query}") == bad_request(detail, detail.partition(":")[0])

    async def test_a_time_without_its_zone_is_refused(self, api: ApiFixture) -> None:
        status, problem = await api.get("/history?series=done&since=2026-11-22T09:00:00")
        assert (status, problem["field"]) == (400, "since")

    async def test_a_key_of_a_namespace_gets_its_topics_only(self) -> None:
        async with serve_api(authorization=NamedCallers()) as api:
            await add(api, LAST_LONG, topics={"team/x": [1, 2, 0, 0, 0]})
            team, since = Tenant(api, "team"), f"since={rfc3339(LAST_LONG)}"
            status, problem = await team.get("/history?series=done")
            assert (status, problem["type"]) == (403, "/problems/not-allowed")
            _, answer = await team.get(f"/history?{since}&series=done&topic=team%2Fx")
            assert answer["series"] == {"done": [2]}

    async def test_a_daemon_without_history_says_so_and_does_not_read(self, off_api: ApiFixture) -> None:
        await add(off_api, LAST, counts={"d": 2})
        _, answer = await off_api.get(f"/history?{SINCE}&series=done")
        assert answer["off"] is True
        assert answer["series"] == {"done": [None] * 3}

    async def test_while_the_store_is_away_it_is_503(self, api: ApiFixture) -> None:
        await api.lose_store()
        assert (await api.get("/history?series=done"))[0] == 503


class TestDeliveries:
    async def test_a_delivery_is_shown_with_what_is_known_of_it(self, api: ApiFixture) -> None:
        done = {"outcome": "done", "status": 200, "reason": ""}
        await add_deliveries(api, delivery(1), delivery(2, **done), delivery(3, status=None, host="", reason="address"))
        _, answer = await api.get("/deliveries")
        common = {"topic": "order", "attempt": 1, "due_at": rfc3339(NOW), "took_ms": 3}
        failed = {**common, "outcome": "failed"}
        assert answer == {
            "sampled": True,
            "deliveries": [
                {"id": "n3", "began_at": rfc3339(NOW + 3), "status": None, "host": None, "reason": "address", **failed},
                {
                    "id": "n2", "began_at": rfc3339(NOW + 2), "outcome": "done", "status": 200, "host": "a.example",
                    **common,
                },
                {
                    "id": "n1", "began_at": rfc3339(NOW + 1), "status": 500, "host": "a.example", "reason": "status",
                    **failed,
                },
            ],
        }  # fmt: skip

    async def test_the_newest_of_all_processes_are_first(self, api: ApiFixture) -> None:
        await add_deliveries(api, delivery(5), delivery(7))
        await add_deliveries(api, delivery(4), delivery(6))
        assert await shown(api, "limit=3") == ["n7", "n6", "n5"]

    async def test_they_are_selected_by_topic_and_outcome(self, api: ApiFixture) -> None:
        busy = {"outcome": "busy"}
        await add_deliveries(api, delivery(1), delivery(2, **busy), delivery(3, topic="team/x", **busy))
        assert await shown(api, "topic=default%2Forder") == ["n2", "n1"]
        assert await shown(api, "outcome=busy") == ["n3", "n2"]
        assert await shown(api, "outcome=busy&topic=order") == ["n2"]

    async def test_those_that_are_selected_are_found_behind_all_others(self, api: ApiFixture) -> None:
        await add_deliveries(api, delivery(0, outcome="gone"), *map(delivery, range(1, DELIVERIES_SLICE + 10)))
        assert await shown(api, "outcome=gone") == ["n0"]

    async def test_there_are_100_without_a_limit_and_500_at_most(self, api: ApiFixture) -> None:
        await add_deliveries(api, *map(delivery, range(600)))
        assert [len(await shown(api, query)) for query in ("", "limit=1", "limit=500")] == [100, 1, 500]
        refusal = bad_request('limit: expected an integer from 1 to 500, got "501"', "limit")
        assert await api.get("/deliveries?limit=501") == refusal

    async def test_an_unknown_outcome_is_refused(self, api: ApiFixture) -> None:
        detail = 'outcome: expected done, busy, failed or gone, got "dead"'
        assert await api.get("/deliveries?outcome=dead") == bad_request(detail, "outcome")

    async def test_a_key_of_a_namespace_gets_those_of_its_topics(self) -> None:
        async with serve_api(authorization=NamedCallers()) as api:
            await add_deliveries(api, delivery(1), delivery(2, topic="team/x"), delivery(3, topic="teams/x"))
            for caller, ids in (("team", ["n2"]), ("default", ["n1"]), ("operator", ["n3", "n2", "n1"])):
                _, answer = await Tenant(api, caller).get("/deliveries")
                assert [each["id"] for each in answer["deliveries"]] == ids, caller

    async def test_a_daemon_without_history_says_so(self, off_api: ApiFixture) -> None:
        await add_deliveries(off_api, delivery(1))
        assert await off_api.get("/deliveries") == (200, {"sampled": True, "deliveries": [], "off": True})
