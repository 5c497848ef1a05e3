"""Policies that another process has just changed: nobody is refused by those that were before."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from later.core.policy import Policy
from later.core.policy_scopes import topic_scope
from later.store.policies import PolicyBook
from later.store.shared_read import REREAD_EVERY_S
from tests.api.api_fixture import MINIMAL, ApiFixture, ok
from tests.builders import NOW, a_task

CALLBACK = MINIMAL["callback"]
Fields = dict[str, Any]


@pytest.fixture
def other(api: ApiFixture) -> PolicyBook:
    """The policies of another process on the same store."""
    return PolicyBook(api.client, api.keys, Policy(), lambda: 0.0)


async def change(other: PolicyBook, topic: str, **fields: Any) -> None:
    await other.change(topic_scope(topic), lambda before: before.merge(fields))


def policy_reads(api: ApiFixture) -> float:
    """Return how often the store was asked for policies."""
    name = "later_store_round_trip_duration_seconds_count"
    return api.metrics.registry.get_sample_value(name, {"verb": "policies"}) or 0.0


async def test_a_claim_is_not_refused_by_the_policy_of_before(api: ApiFixture, other: PolicyBook) -> None:
    await change(other, "jobs", deliver="pull")
    await api.store.tasks.create([a_task(id="a", topic="jobs", callback="", created_at=NOW - 1000)])
    status, answer = await api.post("/claim", {"topic": "jobs"})
    assert (status, [task["id"] for task in answer["tasks"]]) == (200, ["a"])
    await change(other, "mail", deliver="pull")
    assert await api.post("/claim", {"topics": ["jobs", "mail"], "wait": 0.05}) == ok(tasks=[], lost=[])
    await change(other, "jobs", deliver="push")
    await api.store.policies.read()
    assert (await api.post("/claim", {"topic": "jobs", "wait": 60}))[0] == 409


async def test_a_create_is_not_refused_by_the_policy_of_before(api: ApiFixture, other: PolicyBook) -> None:
    cases: list[tuple[str, Fields, Fields, Fields]] = [
        ("a", {}, {"deliver": "pull"}, {}),
        ("b", {"deliver": "pull"}, {"deliver": "push"}, {"callback": CALLBACK}),
        ("c", {"max_delay": 5}, {"max_delay": 10}, {"callback": CALLBACK, "delay": 10}),
        ("d", {"delays": False}, {"delays": True}, {"callback": CALLBACK, "delay": 10}),
        ("e", {}, {"callback": CALLBACK}, {}),
    ]
    for topic, before, after, body in cases:
        await change(other, topic, **before)
        await api.store.policies.read()
        await change(other, topic, **after)
        assert (await api.post("/create", {"topic": topic, **body}))[0] == 200, topic


async def test_an_update_is_not_refused_by_the_policy_of_before(api: ApiFixture, other: PolicyBook) -> None:
    await api.store.tasks.create([a_task(id="a", topic="jobs", delay=60)])
    cases: list[tuple[Fields, Fields, Fields]] = [
        ({"deliver": "pull"}, {"deliver": "push"}, {"callback": CALLBACK}),
        ({"delay_mode": "queue"}, {"delay_mode": "honor"}, {"delay": 5}),
    ]
    for before, after, body in cases:
        await change(other, "jobs", **before)
        await api.store.policies.read()
        await change(other, "jobs", **after)
        assert (await api.post("/update", {"id": "a", **body}))[0] == 200, after


async def test_items_of_a_batch_are_not_refused_by_the_policy_of_before(api: ApiFixture, other: PolicyBook) -> None:
    await change(other, "jobs", deliver="pull")
    items = [{"topic": "jobs", "id": "a"}, {"topic": "jobs", "id": "b", "delay": -1}, {"topic": "order", "id": "c"}]
    _, answer = await api.post("/create/batch?dry_run=true", [*items, {**MINIMAL, "id": "d"}])
    assert answer["refused"] == 2
    await change(other, "mail", deliver="pull")
    _, answer = await api.post("/create/batch", [{"topic": "mail", "id": "e"}, *items, {**MINIMAL, "id": "d"}])
    assert (answer["created"], answer["refused"]) == (3, 2)
    assert [result.get("error", {}).get("field") for result in answer["results"]] == [
        None, None, "delay", "callback", None
    ]  # fmt: skip


async def test_callers_that_are_refused_again_and_again_share_few_reads(api: ApiFixture) -> None:
    before, started = policy_reads(api), monotonic()
    bodies: list[tuple[str, object]] = [("/create", {"topic": "x"}), ("/claim", {"topic": "x"})]
    bodies.append(("/create/batch", [{"topic": "x"}] * 9))
    answers = await asyncio.gather(*(api.post(path, body) for path, body in bodies * 20))
    assert {status for status, _ in answers} == {200, 400, 409}
    assert policy_reads(api) - before <= 2 + (monotonic() - started) / REREAD_EVERY_S


async def test_calls_that_are_not_refused_read_no_policies(api: ApiFixture) -> None:
    before = policy_reads(api)
    assert (await api.post("/create", MINIMAL))[0] == 200
    assert (await api.post("/create/batch", [MINIMAL] * 3))[1]["created"] == 3
    assert (await api.post("/create", {**MINIMAL, "delay": -1}))[0] == 400
    assert policy_reads(api) == before
