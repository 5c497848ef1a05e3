"""Follow-up tasks over HTTP: a consumer gets a task for each of those that end in another topic."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.clock import Clock
from later.core.policy import Policy
from later.core.policy_scopes import topic_scope
from later.store import policies
from later.store.policies import PolicyBook
from tests.api.api_fixture import ApiFixture, bad_request, ok, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.api.test_dead_letter_topics import claim, query, reject, set_policy

EVENTS = {"on_dead": "events", "on_done": "events"}


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API in real time, on an empty store of two shards; consumers claim of `jobs`, and its ends of `events`."""
    async with serve_api(shards=2, clock=Clock(time.monotonic, time.time)) as built:
        await set_policy(built, "events", deliver="pull")
        await set_policy(built, "jobs", deliver="pull", **EVENTS)
        yield built


async def next_end(api: ApiFixture) -> dict[str, Any]:
    """Claim the next follow-up task, ack it, and return its content."""
    [task] = await claim(api, "events")
    assert await api.post("/ack", {"leases": [task["lease"]]}) == ok(acked=1, lost=[])
    return dict(json.loads(task["content"]))


def made(api: ApiFixture) -> dict[str, float | None]:
    """Return how many follow-up tasks were counted, by field."""
    name, registry = "later_follow_ups_total", api.metrics.registry
    return {field: registry.get_sample_value(name, {"field": field}) for field in EVENTS}


async def test_the_end_of_each_task_is_claimed_with_what_a_query_answers(api: ApiFixture) -> None:
    await reject(api, "a")
    assert await next_end(api) == await query(api, "a")
    await api.post("/create", {"topic": "jobs", "id": "b", "content": "hello"})
    shown = await query(api, "b")
    [task] = await claim(api, "jobs")
    assert await api.post("/ack", {"leases": [task["lease"]]}) == ok(acked=1, lost=[])
    end = await next_end(api)
    assert end.pop("done_at") >= shown.pop("due_at")
    assert end == {**shown, "state": "done", "attempts": 1}
    assert made(api) == {"on_dead": 1, "on_done": 1}
    assert (await api.post("/claim", {"topic": "events"}))[1]["tasks"] == []


async def test_a_claim_that_waits_is_answered_as_soon_as_a_task_ends(api: ApiFixture) -> None:
    await api.post("/create", {"topic": "jobs", "id": "a"})
    [task] = await claim(api, "jobs")
    waiting = asyncio.create_task(next_end(api))
    body = {"topic": "jobs", "done": [task["lease"]], "wait": 0}
    assert await api.post("/claim", body) == ok(tasks=[], lost=[])
    end = await asyncio.wait_for(waiting, 30)
    assert (end["id"], end["state"]) == ("a", "done")
    assert await api.post("/claim", body) == ok(tasks=[], lost=[task["lease"]])
    assert made(api) == {"on_dead": 0, "on_done": 1}


async def test_an_ack_reads_the_policies_if_those_that_are_known_are_too_old(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_policy(api, "jobs", on_done=None)
    await api.post("/create", {"topic": "jobs", "id": "a"})
    [task] = await claim(api, "jobs")
    other = PolicyBook(api.client, api.keys, Policy(), time.monotonic)
    await other.change(topic_scope("jobs"), lambda before: before.merge(EVENTS))
    monkeypatch.setattr(policies, "FRESH_S", 0.0)
    assert await api.post("/ack", {"leases": [task["lease"]]}) == ok(acked=1, lost=[])
    assert made(api) == {"on_dead": 0, "on_done": 1}


async def test_explanations_name_the_fields_and_say_what_a_follow_up_is(api: ApiFixture) -> None:
    await reject(api, "a")
    _, listed = await api.post("/list", {"topic": "events", "state": "delay"})
    _, explained = await api.post("/explain", {"id": listed["tasks"][0]["id"]})
    assert explained["sentence"].endswith("it was made because another task had ended, which its content names")
    _, explained = await api.post("/explain", {"topic": "jobs"})
    assert {name: explained["policy"].get(name) for name in EVENTS} == EVENTS
    _, explained = await api.post("/explain", {"topic": "events"})
    assert EVENTS.keys().isdisjoint(explained["policy"])


async def test_a_topic_in_which_they_would_be_dead_is_warned_of(api: ApiFixture) -> None:
    warning = (
        "The on_done of order makes tasks without a callback in next, which calls one (deliver push), and its policy "
        'has none: they are dead there ("no callback").'
    )
    assert await set_policy(api, "order", on_done="next") == {"on_done": "next", "warning": warning}
    callback = {"callback": "http://127.0.0.1:8888/next"}
    assert await set_policy(api, "next", **callback) == callback
    assert await set_policy(api, "next", callback=None, deliver="pull") == {"deliver": "pull"}
    assert await set_policy(api, "next", deliver=None) == {"warning": warning}
    assert await set_policy(api, "order", on_done=None) == {}


async def test_a_namespaces_caller_gets_ends_in_its_own_namespace_alone() -> None:
    async with serve_api(authorization=NamedCallers(), clock=Clock(time.monotonic, time.time)) as api:
        team = Tenant(api, "team")
        path = "/topics/team%2Fjobs/policy"
        assert await team.call("PATCH", path, {"on_done": "other/events"}) == bad_request(
            'on_done: expected another topic of the namespace team, got "other/events"', "on_done"
        )
        await team.call("PATCH", "/topics/team%2Fevents/policy", {"deliver": "pull"})
        fields = {"deliver": "pull", "on_done": "team/events"}
        assert await team.call("PATCH", path, fields) == (200, fields)
        await team.post("/create", {"topic": "team/jobs", "id": "6ba7b810-9dad-41d1-80b4-00c04fd430c8"})
        _, claimed = await team.post("/claim", {"topic": "team/jobs", "wait": 5})
        assert (await team.post("/ack", {"leases": [claimed["tasks"][0]["lease"]]}))[1]["acked"] == 1
        _, claimed = await team.post("/claim", {"topic": "team/events", "wait": 5})
        [task] = claimed["tasks"]
        assert json.loads(task["content"])["id"] == "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
        assert (await Tenant(api, "other").post("/query", {"id": task["id"]}))[0] == 404
