"""The trace context of a task stays with it: over retries, lost leases, redrives, edits and moves to other topics."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.edit import TaskChanges
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, Settings, topic_scope
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import TaskEdit
from tests.builders import NOW, a_task
from tests.store.inspection import LEASE_MS, claim_due, died, done, failed, release_due
from tests.store.test_dead_letter_topics import find, move
from tests.store.test_follow_ups import ended, follow_ups, settle
from tests.store.test_redrive import redrive
from tests.store_fixture import StoreFixture

CONTEXT = bytes.fromhex("ab" * 16 + "cd" * 8 + "01")
SAMPLED, UNSAMPLED = f"00-{'ab' * 16}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'cd' * 8}-00"
LATER = NOW + 10 * LEASE_MS


async def context_in(store: StoreFixture, id: str = "a") -> bytes:
    """Return the context that the store holds of a task."""
    record = await find(store, id)
    assert isinstance(record.task, Task)
    return record.task.trace_context


async def test_it_stays_over_retries_lost_leases_and_a_redrive(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", trace_context=CONTEXT)])
    [claim] = await claim_due(store)
    await store.tasks.settle([failed(claim, NOW + 1)])
    await release_due(store, Bucket.ERROR, LATER)
    [retried] = await claim_due(store, LATER)
    await release_due(store, Bucket.UNACK, LATER + 10 * LEASE_MS)
    [again] = await claim_due(store, LATER + 10 * LEASE_MS)
    await store.tasks.settle([died(again)])
    await redrive(store, now=LATER + 20 * LEASE_MS)
    [redriven] = await claim_due(store, LATER + 20 * LEASE_MS)
    tasks = [claim.task for claim in (claim, retried, again, redriven)]
    assert [task.trace_context for task in tasks if isinstance(task, Task)] == [CONTEXT] * 4


async def test_it_stays_over_an_edit(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", delay=60, trace_context=CONTEXT)])
    await store.edits.update([TaskEdit("a", TaskChanges(id="a", content="changed"), Policies(DEFAULT_POLICY), NOW)])
    record = await find(store, "a")
    assert isinstance(record.task, Task)
    assert (record.task.content, record.task.trace_context) == ("changed", CONTEXT)


async def test_it_goes_along_to_the_dead_letter_topic_and_back(store: StoreFixture) -> None:
    await move(store, a_task(id="a", trace_context=CONTEXT))
    assert (await find(store, "a")).topic == "failed"
    assert await context_in(store) == CONTEXT


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"trace_context": CONTEXT}, CONTEXT),
        ({"headers": {"traceparent": SAMPLED}}, CONTEXT),
        ({"headers": {"traceparent": UNSAMPLED}}, b""),
        ({}, b""),
    ],
)
async def test_a_follow_up_belongs_to_the_trace_of_the_task_that_ended(
    store: StoreFixture, changes: dict[str, Any], context: bytes
) -> None:
    rules = Policies(DEFAULT_POLICY, {topic_scope("order"): Settings({"on_done": "events"})})
    await store.tasks.create([a_task(id="a", **changes)])
    [claim] = await claim_due(store)
    assert await settle(store, [ended(store, done(claim), rules)]) == [True]
    [made] = await follow_ups(store)
    assert isinstance(made.task, Task)
    assert made.task.trace_context == context
