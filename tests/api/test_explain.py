"""`POST /explain`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.task import pack_id
from later.core.validation import EXPECTED
from later.store.permits import Permits
from tests.api.frontend import Frontend, bad_request, serve_frontend
from tests.api.states import STATES, put_all_states, put_task
from tests.builders import NOW, a_task


@pytest.fixture(params=[1, 16], ids=["1-shard", "16-shards"])
async def frontend(request: pytest.FixtureRequest) -> AsyncIterator[Frontend]:
    """A frontend with a worker that sends heartbeats."""
    async with serve_frontend(shards=request.param) as built:
        await built.store.stats.heartbeat("worker", NOW - 2)
        yield built


async def explain(frontend: Frontend, **body: str) -> dict[str, Any]:
    status, answer = await frontend.post("/explain", body)
    assert status == 200, answer
    return dict(answer)


def permits(frontend: Frontend) -> Permits:
    return Permits(frontend.client, frontend.keys, "this")


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("delay", "due in 60 s"),
        ("unack", "in flight for 0 s on attempt 1"),
        ("error", "retry 1 of 3 at 08:00:30Z, last answer 503"),
        ("dead", "dead because answered 503"),
    ],
)
async def test_a_task_in_each_state_is_explained(frontend: Frontend, state: str, sentence: str) -> None:
    await put_all_states(frontend)
    answer = await explain(frontend, id=state)
    _, task = await frontend.post("/query", {"id": state})
    assert (answer["sentence"], answer["state"], answer["last_error"]) == (sentence, state, task["last_error"])
    assert (answer.get("due_at"), answer.get("died_at")) == (task.get("due_at"), task.get("died_at"))
    assert answer["counts"] == dict.fromkeys(STATES, 1)
    assert (answer["workers"], answer["last_beat_s"]) == (1, 0)


async def test_a_lease_is_as_long_as_its_topics_timeout_makes_it(frontend: Frontend) -> None:
    await frontend.request("PATCH", "/topics/order/policy", {"timeout": 20})
    await put_task(frontend, "unack")
    assert (await explain(frontend, id="unack"))["sentence"] == "in flight for 5 s on attempt 1"


async def test_a_pause_is_named_as_the_reason(frontend: Frontend) -> None:
    await frontend.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await frontend.request("PATCH", "/topics/order/policy", {"paused": True})
    answer = await explain(frontend, id="a")
    assert (answer["sentence"], answer["paused"]) == ("its topic is paused; due for 12 s", True)
    await permits(frontend).hold_paused([("order", shard.index) for shard in frontend.keys.shards])
    assert (await explain(frontend, topic="order"))["sentence"] == (
        "its topic is paused; 1 task is due, the oldest for 12 s"
    )


async def test_a_hold_is_named_as_the_reason(frontend: Frontend) -> None:
    await frontend.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await permits(frontend).hold("order", NOW + 245_000, None, NOW)
    answer = await explain(frontend, id="a")
    assert answer["sentence"] == "its topic is held until 08:04:05Z, as its receiver asked; due for 12 s"
    assert answer["held_until"] == "2027-01-15T08:04:05.000Z"
    await frontend.request("PATCH", "/topics/order/policy", {"rate": 10})
    await permits(frontend).resume({"order": (NOW + 245_000, None)}, NOW)  # is not paused: stays as it is
    assert (await explain(frontend, id="a"))["held_until"] == "2027-01-15T08:04:05.000Z"


async def test_slow_start_is_named_as_the_reason(frontend: Frontend) -> None:
    await frontend.store.tasks.create([a_task(id="a", created_at=NOW - 12_002)])
    await permits(frontend).hold("order", NOW - 5000, NOW + 5000, NOW)
    answer = await explain(frontend, topic="order")
    assert answer["sentence"] == ("its topic is in slow start until 08:00:05Z; 1 task is due, the oldest for 12 s")
    assert answer["held_until"] is None


async def test_a_store_without_workers_is_named_as_the_reason(frontend: Frontend) -> None:
    await frontend.store.stats.remove_worker("worker")
    await put_task(frontend, "delay")
    answer = await explain(frontend, id="delay")
    assert answer["sentence"] == "due in 60 s; no worker is running"
    assert (answer["workers"], answer["last_beat_s"]) == (0, None)


@pytest.mark.parametrize(
    ("age_ms", "workers", "sentence"),
    [
        (9_999, 1, "it has no tasks"),
        (10_000, 0, "it has no tasks; no worker heartbeat for 10 s"),
        (40_000, 0, "it has no tasks; no worker heartbeat for 40 s"),
    ],
)
async def test_a_worker_without_a_heartbeat_for_ten_seconds_counts_as_gone(
    frontend: Frontend, age_ms: int, workers: int, sentence: str
) -> None:
    await frontend.store.stats.remove_worker("worker")
    await frontend.store.stats.heartbeat("silent", NOW - 2 - age_ms)
    answer = await explain(frontend, topic="order")
    assert (answer["sentence"], answer["workers"], answer["last_beat_s"]) == (sentence, workers, age_ms / 1000)


async def test_a_topic_is_explained(frontend: Frontend) -> None:
    await put_all_states(frontend, topic="shop/order")
    answer = await explain(frontend, topic="shop/order")
    assert answer["sentence"] == (
        "none of its tasks is due: the next is due in 60 s, "
        "1 task is in flight, 1 task is between two attempts, 1 task is dead"
    )
    assert (answer["topic"], answer["next_due_at"]) == ("shop/order", "2027-01-15T08:01:00.000Z")


async def test_a_task_with_an_unreadable_body_is_explained(frontend: Frontend) -> None:
    await put_task(frontend, "delay")
    shard = frontend.keys.shard_of("delay")
    await frontend.client._redis.hset(shard.pool.decode(), pack_id("delay"), b"\xc1")
    assert (await explain(frontend, id="delay"))["max_retry"] is None


@pytest.mark.parametrize(
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
async def test_a_wrong_field_is_refused_by_name(frontend: Frontend, body: object, detail: str) -> None:
    assert await frontend.post("/explain", body) == bad_request(detail, detail.partition(":")[0])


async def test_an_unknown_id_is_404(frontend: Frontend) -> None:
    status, answer = await frontend.post("/explain", {"id": "a"})
    assert (status, answer["detail"]) == (404, "no task has the id 'a'")
