"""`GET /topics?sort=…`: the first topics by lateness, due, dead or waiting tasks, of those that the census kept."""

from __future__ import annotations

from typing import Any

from later.core.clock import rfc3339
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.round_trips import count_round_trips

LOW = NOW - 2


async def fill(api: ApiFixture) -> None:
    """Create `few` with one task due long ago, `many` with three due lately, and `later` with two that wait."""
    tasks = [a_task(topic="few", created_at=NOW - 60_000, delay=0)]
    tasks += [a_task(topic="many", created_at=NOW - 1_000, delay=0) for _ in range(3)]
    tasks += [a_task(topic="later", delay=3600) for _ in range(2)]
    await api.store.tasks.create(tasks)


async def names(api: ApiFixture, query: str) -> list[str]:
    status, answer = await api.get(f"/topics?{query}")
    assert status == 200, answer
    return [topic["topic"] for topic in answer["topics"]]


ORDERS: dict[str, list[str]] = {
    "lateness": ["few", "many", "later"],
    "due": ["many", "few", "later"],
    "delay": ["many", "later", "few"],
}


@each_case("order", ORDERS)
async def test_topics_are_sorted_the_greatest_first(api: ApiFixture, order: str) -> None:
    await fill(api)
    assert await names(api, f"sort={order}") == ORDERS[order]
    assert await names(api, f"sort={order}&limit=1") == ORDERS[order][:1]


async def test_a_row_says_what_holds_the_topic_and_its_limits(api: ApiFixture) -> None:
    await fill(api)
    assert (await api.request("PATCH", "/topics/few/policy", {"paused": True, "rate": 2}))[0] == 200
    status, answer = await api.get("/topics?sort=lateness&limit=1")
    expected: dict[str, Any] = {
        "topic": "few", "delay": 1, "unack": 0, "error": 0, "dead": 0, "due": 1,
        "held": "pause", "paused": True, "rate": 2.0, "concurrency": None, "deliver": "push",
    }  # fmt: skip
    [row] = answer["topics"]
    assert row.pop("oldest_lateness_s") > 59
    assert (status, row) == (200, expected)
    assert (answer["cursor"], answer["counted_at"]) == (None, rfc3339(LOW))


async def test_names_are_sorted_in_pages_as_ever(api: ApiFixture) -> None:
    await fill(api)
    assert await names(api, "sort=name&limit=2") == ["few", "later"]


async def test_an_unknown_order_and_a_cursor_are_refused(api: ApiFixture) -> None:
    assert await api.get("/topics?sort=size") == bad_request(
        'sort: expected one of name, lateness, due, dead, delay, got "size"', "sort"
    )
    _, page = await api.get("/topics?sort=name&limit=1")
    assert page["cursor"] is None
    assert await api.get("/topics?sort=due&cursor=x") == bad_request(
        "cursor: expected none with sort=due, which has one page", "cursor"
    )


async def test_a_bound_key_sees_only_its_namespace() -> None:
    async with serve_api(authorization=NamedCallers()) as api:
        tasks = [a_task(topic=topic, created_at=NOW - 60_000) for topic in ("team/a", "other/b")]
        await api.store.tasks.create(tasks)
        _, answer = await Tenant(api, "team").get("/topics?sort=due")
        assert [row["topic"] for row in answer["topics"]] == ["team/a"]
        assert (await Tenant(api, "team").get("/topics?sort=due&namespace=other"))[0] == 403


async def test_two_round_trips_are_enough_once_the_snapshot_was_read(api: ApiFixture) -> None:
    await fill(api)
    await names(api, "sort=due")
    async with count_round_trips(api.store) as round_trips:
        await names(api, "sort=due")
    assert len(round_trips) <= 2
