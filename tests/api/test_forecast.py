"""`GET /forecast` and `GET /topics/{topic}/forecast`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api.forecast import fresh_for_s
from later.core.api_keys import Scope, make_key_text
from later.core.clock import rfc3339
from later.core.held import Held
from later.core.policy import POLICY_FIELDS
from later.core.snapshot import CountedTopic, SnapshotBuilder, StoreFacts
from tests.api.api_fixture import ApiFixture, bad_request
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.round_trips import count_round_trips

LOW = NOW - 2
"""The low end of the store's time."""
STEP_MS = 300_000
START = LOW - LOW % STEP_MS
TOPIC = "/topics/order/forecast"


async def add(api: ApiFixture, topic: str, due_at: int, count: int = 1) -> None:
    await api.store.tasks.create([a_task(topic=topic, execute_at=due_at) for _ in range(count)])


async def take_snapshot(api: ApiFixture, at: int = NOW - 1000, **waiting: int) -> None:
    """Publish the census of topics with so many waiting tasks; `__` in a name stands for a slash."""
    builder = SnapshotBuilder()
    builder.add(
        CountedTopic(name.replace("__", "/"), count, 0, 0, 0, 0, None, Held.NO, is_paused=False, has_label=True)
        for name, count in waiting.items()
    )
    facts = StoreFacts(name="valkey", version="9", memory=1, max_memory=0, workers=1, remembered_ids=0)
    assert await api.store.snapshots.take_lock("test")
    assert await api.store.snapshots.publish("test", builder.finish(at=at, took_ms=1, store=facts))


async def show(api: ApiFixture, path: str) -> dict[str, Any]:
    status, answer = await api.get(path)
    assert status == 200, answer
    return dict(answer)


async def set_policy(api: ApiFixture, **fields: Any) -> None:
    assert (await api.request("PATCH", "/topics/order/policy", fields))[0] == 200


# Of a topic


async def test_a_topic_without_tasks_has_a_forecast_of_nothing(api: ApiFixture) -> None:
    assert await show(api, TOPIC) == {
        "topic": "order", "at": rfc3339(LOW), "from": rfc3339(START), "step_s": 300, "due": 0, "counts": [0] * 72,
        "rate": None, "paused": False, "behind_from": None, "caught_up_at": None, "worst_lateness_s": None,
    }  # fmt: skip


async def test_the_rate_of_a_topic_makes_a_wave_late(api: ApiFixture) -> None:
    await add(api, "order", LOW - 1, 3)
    await add(api, "order", START + 2 * STEP_MS, 600)
    await set_policy(api, rate=1)
    answer = await show(api, TOPIC)
    assert (answer["due"], answer["counts"][:4], answer["rate"]) == (3, [0, 0, 600, 0], 1)
    begins, ends = START + 2 * STEP_MS, START + 4 * STEP_MS
    assert (answer["behind_from"], answer["caught_up_at"]) == (rfc3339(begins), rfc3339(ends))
    assert answer["worst_lateness_s"] == 300


async def test_another_rate_is_simulated_without_being_set(api: ApiFixture) -> None:
    await add(api, "order", LOW - 1, 101)
    await set_policy(api, rate=1)
    expected = (("", 1, 100), ("?rate=2.5", 2.5, 40), ("?rate=0", None, None))
    for query, rate, worst in expected:
        answer = await show(api, TOPIC + query)
        assert (answer["rate"], answer["worst_lateness_s"]) == (rate, worst)
    assert (await api.get("/topics/order/policy"))[1] == {"rate": 1}


async def test_a_paused_topic_says_so_and_is_simulated_only_if_asked_for(api: ApiFixture) -> None:
    await add(api, "order", LOW - 1, 101)
    await set_policy(api, rate=1, paused=True)
    answer = await show(api, TOPIC)
    assert (answer["paused"], answer["rate"]) == (True, 1)
    assert (answer["behind_from"], answer["worst_lateness_s"]) == (None, None)
    asked = await show(api, f"{TOPIC}?rate=1")
    assert (asked["paused"], asked["worst_lateness_s"]) == (True, 100)


async def test_a_rate_does_not_hold_for_a_pulled_topic(api: ApiFixture) -> None:
    await set_policy(api, rate=1, deliver="pull")
    answer = await show(api, TOPIC)
    assert (answer["rate"], answer["worst_lateness_s"]) == (None, None)


async def test_hours_and_steps_choose_the_window(api: ApiFixture) -> None:
    for query, steps, step_s in (("hours=1", 12, 300), ("hours=168", 288, 2100), ("hours=2&step=60", 120, 60)):
        answer = await show(api, f"{TOPIC}?{query}")
        assert (len(answer["counts"]), answer["step_s"]) == (steps, step_s)


HOURS, STEPS = "an integer from 1 to 168", "an integer from 75 to 3600 for at most 288 steps"
RATE = POLICY_FIELDS["rate"].expected


@each_case(
    ("query", "detail"),
    [
        ("hours=0", f'hours: expected {HOURS}, got "0"'),
        ("hours=169", f'hours: expected {HOURS}, got "169"'),
        ("hours=1.5", f'hours: expected {HOURS}, got "1.5"'),
        ("hours=%D9%A3", f'hours: expected {HOURS}, got "٣"'),
        ("hours=", f'hours: expected {HOURS}, got ""'),
        ("step=74", f'step: expected {STEPS}, got "74"'),
        ("step=3601", f'step: expected {STEPS}, got "3601"'),
        ("rate=nan", f'rate: expected {RATE}, got "nan"'),
        ("rate=-1", f'rate: expected {RATE}, got "-1"'),
        ("rate=1000001", f'rate: expected {RATE}, got "1000001"'),
        ("rate=0.00001", f'rate: expected {RATE}, got "0.00001"'),
        ("rate=1e3", f'rate: expected {RATE}, got "1e3"'),
    ],
)
async def test_what_cannot_be_forecast_is_refused(api: ApiFixture, query: str, detail: str) -> None:
    assert await api.get(f"{TOPIC}?{query}") == bad_request(detail, query.partition("=")[0])


# Of all


async def test_without_a_snapshot_all_topics_are_counted_first(api: ApiFixture) -> None:
    await add(api, "order", NOW + 1)
    counts = [0, 1] + [0] * 10
    assert await show(api, "/forecast?hours=1") == {
        "at": rfc3339(LOW), "from": rfc3339(START), "step_s": 300, "due": 0, "counts": counts,
        "counted_at": rfc3339(LOW), "topics": [{"topic": "order", "due": 0, "counts": counts}], "topics_left_out": 0,
    }  # fmt: skip


async def test_while_another_instance_counts_for_the_first_time_no_topic_is_known(api: ApiFixture) -> None:
    await add(api, "order", NOW + 1)
    assert await api.store.snapshots.take_lock("another")
    answer = await show(api, "/forecast")
    assert (answer["topics"], answer["counted_at"], answer["counts"]) == ([], None, [0] * 72)


async def test_the_busiest_topics_come_first_with_fresh_counts(api: ApiFixture) -> None:
    await take_snapshot(api, mail=5, shop__order=9)
    await add(api, "mail", LOW - 1, 2)
    await add(api, "shop/order", START + STEP_MS, 3)
    answer = await show(api, "/forecast?hours=1")
    assert [(each["topic"], each["due"], each["counts"][1]) for each in answer["topics"]] == [
        ("shop/order", 0, 3), ("mail", 2, 0),
    ]  # fmt: skip
    assert (answer["due"], answer["counts"]) == (2, [0, 3] + [0] * 10)
    assert (answer["counted_at"], answer["topics_left_out"]) == (rfc3339(NOW - 1000), 0)


async def test_a_snapshot_from_the_future_is_not_used(api: ApiFixture) -> None:
    await take_snapshot(api, at=NOW + 3_600_000, mail=5)
    answer = await show(api, "/forecast")
    assert (answer["topics"], answer["counted_at"]) == ([], rfc3339(LOW))


@each_case(("took_s", "fresh_s"), [(0, 5), (0.012, 5), (0.1, 40), (0.2, 60), (9, 60)])
def test_a_forecast_that_takes_longer_is_shared_for_longer(took_s: float, fresh_s: float) -> None:
    assert fresh_for_s(took_s) == fresh_s


async def test_callers_share_a_forecast_of_all(api: ApiFixture) -> None:
    await take_snapshot(api, mail=5)
    await show(api, "/forecast?hours=2")
    async with count_round_trips(api.store) as round_trips:
        answers = await asyncio.gather(*(show(api, "/forecast") for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert len(round_trips) == 1  # the counts: the snapshot is known


@pytest.fixture
async def keys() -> AsyncIterator[KeyedApi]:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        yield KeyedApi(api, api.store.key_book, root, seconds)


async def test_a_bound_key_sees_only_its_namespace(keys: KeyedApi) -> None:
    await take_snapshot(keys.api, mail=5, shop__order=9, shopping__order=7)
    for topic in ("mail", "shop/order", "shopping/order"):
        await add(keys.api, topic, LOW - 1, 4)
    bound, unbound = [await keys.add_key(Scope.READ, namespace=name) for name in ("shop", None)]
    _, of_all, _ = await keys.call("GET", "/forecast", unbound)
    assert (of_all["due"], len(of_all["topics"])) == (12, 3)
    _, own, _ = await keys.call("GET", "/forecast", bound)
    assert (own["due"], own["topics_left_out"], [each["topic"] for each in own["topics"]]) == (4, 0, ["shop/order"])
    assert (await keys.call("GET", "/topics/shop%2Forder/forecast", bound))[1]["due"] == 4
    assert (await keys.call("GET", "/topics/mail/forecast", bound))[0] == 403
