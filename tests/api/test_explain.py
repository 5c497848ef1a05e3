"""`POST /explain`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.held import Held
from later.core.origin import Origin
from later.core.task import pack_id
from later.core.validation import EXPECTED
from later.store.permits import Permits
from later.store.types import ClaimRequest, ClaimResult, PutBack
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.states import STATES, put_all_states, put_task
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.store_fixture import hold_topic


@pytest.fixture
async def api(shards: int) -> AsyncIterator[ApiFixture]:
    """The API on a store with a worker that sends heartbeats."""
    async with serve_api(shards=shards) as built:
        await built.store.stats.heartbeat("worker", NOW - 2)
        yield built


async def explain(api: ApiFixture, **body: str) -> dict[str, Any]:
    status, answer = await api.post("/explain", body)
    assert status == 200, answer
    return dict(answer)


def permits(api: ApiFixture) -> Permits:
    return Permits(api.client, api.keys, "this")


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("delay", "due in 60 s"),
        ("unack", "in flight for 0 s on attempt 1"),
        ("error", "retry 1 of 3 at 08:00:30Z, last answer 503"),
        ("dead", "dead because its 3 retries were exhausted: answered 503"),
    ],
)
async def test_a_task_in_each_state_is_explained(api: ApiFixture, state: str, sentence: str) -> None:
    await put_all_states(api)
    answer = await explain(api, id=state)
    _, task = await api.post("/query", {"id": state})
    assert (answer["sentence"], answer["state"], answer["last_error"]) == (sentence, state, task["last_error"])
    assert (answer.get("due_at"), answer.get("died_at")) == (task.get("due_at"), task.get("died_at"))
    assert answer["counts"] == dict.fromkeys(STATES, 1)
    assert (answer["workers"], answer["last_beat_s"]) == (1, 0)


async def test_a_lease_is_as_long_as_its_topics_timeout_makes_it(api: ApiFixture) -> None:
    await api.request("PATCH", "/topics/order/policy", {"timeout": 20})
    await put_task(api, "unack")
    assert (await explain(api, id="unack"))["sentence"] == "in flight for 5 s on attempt 1"


async def test_a_pause_is_named_as_the_reason(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await api.request("PATCH", "/topics/order/policy", {"paused": True})
    answer = await explain(api, id="a")
    assert (answer["sentence"], answer["paused"]) == ("its topic is paused; due for 12 s", True)
    await permits(api).hold_paused([("order", shard.index) for shard in api.keys.shards])
    assert (await explain(api, topic="order"))["sentence"] == (
        "its topic is paused; 1 task is due, the oldest for 12 s"
    )


async def test_a_hold_is_named_as_the_reason(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await hold_topic(api.store, "order", NOW + 245_000)
    answer = await explain(api, id="a")
    assert answer["sentence"] == "its topic is held until 08:04:05Z, as its receiver asked; due for 12 s"
    assert answer["held_until"] == "2027-01-15T08:04:05.000Z"
    await api.request("PATCH", "/topics/order/policy", {"rate": 10})
    await permits(api).resume({"order": (NOW + 245_000, None)}, NOW)  # is not paused: stays as it is
    assert (await explain(api, id="a"))["held_until"] == "2027-01-15T08:04:05.000Z"


async def test_slow_start_is_named_as_the_reason(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await permits(api).resume({"order": (NOW - 5000, NOW + 5000)}, NOW)
    answer = await explain(api, topic="order")
    assert answer["sentence"] == ("its topic is in slow start until 08:00:05Z; 1 task is due, the oldest for 12 s")
    assert answer["held_until"] is None


async def test_a_store_without_workers_is_named_as_the_reason(api: ApiFixture) -> None:
    await api.store.stats.remove_worker("worker")
    await put_task(api, "delay")
    answer = await explain(api, id="delay")
    assert answer["sentence"] == "due in 60 s; no worker is running"
    assert (answer["workers"], answer["last_beat_s"]) == (0, None)


@each_case(
    ("age_ms", "workers", "sentence"),
    [
        (9_999, 1, "it has no tasks"),
        (10_000, 0, "it has no tasks; no worker heartbeat for 10 s"),
        (40_000, 0, "it has no tasks; no worker heartbeat for 40 s"),
    ],
)
async def test_a_worker_without_a_heartbeat_for_ten_seconds_counts_as_gone(
    api: ApiFixture, age_ms: int, workers: int, sentence: str
) -> None:
    await api.store.stats.remove_worker("worker")
    await api.store.stats.heartbeat("silent", NOW - 2 - age_ms)
    answer = await explain(api, topic="order")
    assert (answer["sentence"], answer["workers"], answer["last_beat_s"]) == (sentence, workers, age_ms / 1000)


async def test_a_topic_is_explained(api: ApiFixture) -> None:
    await put_all_states(api, topic="shop/order")
    answer = await explain(api, topic="shop/order")
    assert answer["sentence"] == (
        "none of its tasks is due: the next is due in 60 s, "
        "1 task is in flight, 1 task is between two attempts, 1 task is dead"
    )
    assert (answer["topic"], answer["next_due_at"]) == ("shop/order", "2027-01-15T08:01:00.000Z")


async def test_a_task_with_an_unreadable_body_is_explained(api: ApiFixture) -> None:
    await put_task(api, "delay")
    shard = api.keys.shard_of("delay")
    await api.client._redis.hset(shard.pool.decode(), pack_id("delay"), b"\xc1")
    assert (await explain(api, id="delay"))["max_retry"] is None


@each_case(
    ("body", "detail"),
    [
        ({}, "id: expected either an id or a topic, got neither"),
        ({"id": None, "topic": None}, "id: expected either an id or a topic, got neither"),
        ({"id": "a", "topic": "order"}, "id: expected either an id or a topic, got both"),
        ({"id": "a/b"}, f'id: expected {EXPECTED["id"]}, got "a/b"'),
        ({"id": 5}, f"id: expected {EXPECTED['id']}, got 5"),
        ({"topic": "/x"}, f'topic: expected {EXPECTED["topic"]}, got "/x"'),
        ({"state": "dead"}, "state: unknown field"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(api: ApiFixture, body: object, detail: str) -> None:
    assert await api.post("/explain", body) == bad_request(detail, detail.partition(":")[0])


async def test_an_unknown_id_is_404(api: ApiFixture) -> None:
    status, answer = await api.post("/explain", {"id": "a"})
    assert (status, answer["detail"]) == (404, "no task has the id 'a'")


SHOP = Origin("http", "127.0.0.1", 8888)


async def test_a_task_that_was_put_back_waits_for_other_calls_to_its_origin(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    requests = [ClaimRequest("order", api.keys.shard_of("a").index, 1)]
    [result] = await api.store.tasks.claim(requests, NOW, NOW + 30_000)
    assert isinstance(result, ClaimResult)
    await api.store.tasks.put_back([PutBack(claim, NOW + 4000) for claim in result.claims])
    answer = await explain(api, id="a")
    assert answer["sentence"] == "waits for other calls to 127.0.0.1:8888 to end; due for 12 s"
    assert (answer["due_at"], answer["attempts"]) == ("2027-01-15T07:59:47.998Z", 0)
    assert (await explain(api, topic="order"))["sentence"] == (
        "at least 1 task waits for other calls to 127.0.0.1:8888 to end"
    )


async def test_a_task_whose_call_its_worker_could_not_make_waits_for_no_other_calls(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    requests = [ClaimRequest("order", api.keys.shard_of("a").index, 1)]
    [result] = await api.store.tasks.claim(requests, NOW, NOW + 30_000)
    assert isinstance(result, ClaimResult)
    await api.store.tasks.put_back([PutBack(claim, NOW + 1000, Held.FAULT) for claim in result.claims])
    assert (await explain(api, id="a"))["sentence"] == (
        "its worker could not make the call (its log says why): the next attempt is in 1 s; due for 12 s"
    )
    assert (await explain(api, topic="order"))["sentence"] == (
        "workers could not make at least 1 of its calls, and will try them again"
    )


async def test_a_hold_of_an_origin_is_named_as_the_reason(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await api.store.origin_holds.hold("order", SHOP, NOW + 245_000, NOW)
    answer = await explain(api, id="a")
    assert answer["sentence"] == "calls to 127.0.0.1:8888 are held until 08:04:05Z, as it asked; due for 12 s"
    assert (answer["origin"], answer["origin_held_until"]) == ("127.0.0.1:8888", "2027-01-15T08:04:05.000Z")
    assert (await explain(api, topic="order"))["sentence"] == (
        "calls to 127.0.0.1:8888 are held until 08:04:05Z, as it asked; 1 task is due, the oldest for 12 s"
    )
