"""The topics of an embedded application's handlers: they become pulled ones, unless that would take others' tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from later import Later, StoreClaims
from later.client import AsyncClient
from later.core.audit_event import AuditAction
from later.core.errors import Conflict
from later.core.policy_scopes import namespace_scope
from later.puller import pull_worker
from tests.cases import each_case
from tests.in_process.embedded import claims_of, until, working

CALLBACK = "http://127.0.0.1:9/called"


@asynccontextmanager
async def opened(claims: StoreClaims) -> AsyncIterator[AsyncClient]:
    """Open a later, and yield a client of it that belongs to no handlers."""
    async with Later(claims) as operator:
        yield operator.client


def handling(claims: StoreClaims, topic: str) -> Later:
    tasks = Later(claims)
    tasks.handler(topic)(lambda: None)
    return tasks


async def test_a_topic_that_nobody_has_set_up_is_claimed_here_and_the_audit_trail_says_so(server_url: str) -> None:
    claims = claims_of(server_url)
    async with opened(claims) as client:
        async with handling(claims, "team/order"):
            assert (await client.policy("team/order")).values["deliver"] == "pull"
        trail = (await claims._opened()).store.audit_trail
        await trail.flush()
        [entry] = [entry async for entry in trail.read()]
    assert entry.fields["event"] == AuditAction.POLICY_CHANGED
    assert (entry.fields["namespace"], entry.fields["after"]) == ("team", {"deliver": "pull"})


@each_case(
    "topic, policy, of_namespace, why_not",
    [
        ("told/order", {"deliver": "push"}, False, "its policy says so"),
        ("pushing/order", {"deliver": "push"}, True, "its policy says so"),
        ("called/order", {"callback": CALLBACK}, False, "its policy names a callback"),
        ("calling/order", {"callback": CALLBACK}, True, "its policy names a callback"),
        ("busy/order", None, False, "it has tasks already, which may have callbacks"),
    ],
)
async def test_a_topic_whose_tasks_daemons_may_call_is_left_to_them_and_the_log_says_what_to_do(
    server_url: str,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    policy: Mapping[str, object] | None,
    of_namespace: bool,
    why_not: str,
) -> None:
    claims = claims_of(server_url)
    async with opened(claims) as client:
        if policy is None:
            await client.create(topic, callback=CALLBACK, delay="1h")
        else:
            await client.set_policy(namespace_scope(topic.partition("/")[0]) if of_namespace else topic, policy)
        async with handling(claims, topic), handling(claims, topic):
            assert (await client.policy(topic)).values["deliver"] == "push"
            with pytest.raises(Conflict, match="its policy's deliver is push"):
                await claims.claim([topic], 1, 0)
    [record] = [
        record for record in caplog.records if topic in record.getMessage() and record.name.startswith("later.in")
    ]
    assert record.getMessage() == (
        f"tasks of {topic} are delivered by daemons, not claimed here: {why_not} "
        f"(later topics set {topic} --deliver pull)"
    )


async def test_a_topic_that_becomes_a_pulled_one_later_is_claimed_from_then_on(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_worker, "RECHECK_S", 0.02)
    claims, runs = claims_of(server_url), list[float]()
    tasks = Later(claims)
    handler = tasks.handler("order")(lambda: runs.append(time.monotonic()))
    async with opened(claims) as client:
        await client.set_policy("order", {"deliver": "push"})
        async with working(tasks) as worker:
            await asyncio.sleep(0)
            await client.set_policy("order", {"deliver": "pull"})
            await handler.enqueue(None)
            await until(lambda: bool(runs))
            assert not worker.done()


async def test_an_application_that_is_called_takes_no_topic(server_url: str) -> None:
    claims = claims_of(server_url)
    tasks = Later(claims, callback=CALLBACK)
    tasks.handler("order")(lambda: None)
    async with opened(claims) as client, tasks:
        assert (await client.policy("order")).values["deliver"] == "push"
