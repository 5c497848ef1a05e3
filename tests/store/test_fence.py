"""A worker that has lost a lease cannot change the task any more, whatever has happened to it since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from later.core.errors import LaterError
from later.core.lease import Lease, lease_of
from later.core.retry import SettleTarget, Verdict
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import Claim, Settlement
from tests.builders import NOW, a_task
from tests.store.inspection import (
    FAILURE,
    LEASE_MS,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture

LATE = NOW + LEASE_MS
Verb = Callable[[StoreFixture, Claim], Awaitable[list[bool | LaterError]]]
ENDING_VERBS: dict[str, Verb] = {
    "done": lambda store, claim: store.tasks.settle([done(claim, NOW + 10**9)]),
    "failed": lambda store, claim: store.tasks.settle([failed(claim, LATE + 10_000)]),
    "died": lambda store, claim: store.tasks.settle([died(claim)]),
    "moved": lambda store, claim: store.dead_letter_topics.settle([moved(claim)]),
    "given back": lambda store, claim: store.tasks.give_back([claim]),
    "acked": lambda store, claim: store.pulls.ack([lease(claim)], NOW),
    "released": lambda store, claim: store.pulls.release([lease(claim)]),
}
LATE_VERBS = ENDING_VERBS | {
    "extended": lambda store, claim: store.pulls.extend([lease(claim)], LATE + 10**9),
}


def moved(claim: Claim) -> Settlement:
    """Return the death of a claimed task that lives on in another topic."""
    assert isinstance(claim.task, Task)
    verdict = Verdict(SettleTarget.DEAD, LATE, FAILURE, msgspec.structs.replace(claim.task, topic="failed"))
    return Settlement(claim, verdict, None)


def lease(claim: Claim) -> Lease:
    """Return the lease that a consumer with this claim has."""
    assert isinstance(claim.task, Task)
    return lease_of(claim.task, claim.fence, claim.due_at)


pytestmark = pytest.mark.parametrize("late", LATE_VERBS.values(), ids=LATE_VERBS)


@pytest.fixture
def shards() -> int:
    """Return a few: one id is in one shard, however many there are."""
    return 2


async def claim_task(store: StoreFixture, now: int = NOW) -> Claim:
    [claim] = await claim_due(store, now)
    return claim


async def create(store: StoreFixture, **changes: Any) -> None:
    assert await store.tasks.create([a_task(id="a", own_id=True, **changes)]) == [True]


async def assert_changes_nothing(store: StoreFixture, late: Verb, claim: Claim, now: int = LATE) -> None:
    before = await read_contents(store)
    assert await late(store, claim) == [False]
    assert await read_contents(store) == before
    await assert_sound(store, now)


async def test_after_its_lease_ran_out(store: StoreFixture, late: Verb) -> None:
    await create(store)
    lost = await claim_task(store)
    await release_due(store, Bucket.UNACK, LATE)
    await assert_changes_nothing(store, late, lost)


async def test_after_another_claimed_it(store: StoreFixture, late: Verb) -> None:
    await create(store)
    lost = await claim_task(store)
    await release_due(store, Bucket.UNACK, LATE)
    present = await claim_task(store, LATE)
    await assert_changes_nothing(store, late, lost)
    assert await store.tasks.settle([done(present)]) == [True]
    assert (await assert_sound(store, LATE)).pool == set()


@pytest.mark.parametrize("by_another", ENDING_VERBS.values(), ids=ENDING_VERBS)
async def test_after_another_claimed_and_ended_it(store: StoreFixture, late: Verb, by_another: Verb) -> None:
    await create(store)
    lost = await claim_task(store)
    await release_due(store, Bucket.UNACK, LATE)
    assert await by_another(store, await claim_task(store, LATE)) == [True]
    await assert_changes_nothing(store, late, lost)


@pytest.mark.parametrize("first", ENDING_VERBS.values(), ids=ENDING_VERBS)
async def test_after_it_was_settled_already(store: StoreFixture, late: Verb, first: Verb) -> None:
    await create(store)
    claim = await claim_task(store)
    assert await first(store, claim) == [True]
    await assert_changes_nothing(store, late, claim)


async def test_twice_in_one_call_counts_once(store: StoreFixture, late: Verb) -> None:
    await create(store)
    claim = await claim_task(store)
    assert await store.tasks.settle([done(claim), failed(claim, LATE), died(claim)]) == [True, False, False]
    await assert_changes_nothing(store, late, claim)


async def test_after_it_was_given_back_and_claimed_again(store: StoreFixture, late: Verb) -> None:
    await create(store)
    claim = await claim_task(store)
    await store.tasks.give_back([claim])
    await claim_task(store)
    await assert_changes_nothing(store, late, claim)


async def test_after_it_was_deleted(store: StoreFixture, late: Verb) -> None:
    await create(store)
    claim = await claim_task(store)
    await store.edits.delete(["a"])
    await assert_changes_nothing(store, late, claim)


@pytest.mark.parametrize("topic", ["order", "other"])
async def test_after_it_was_deleted_and_created_anew(store: StoreFixture, late: Verb, topic: str) -> None:
    await create(store)
    claim = await claim_task(store)
    await store.edits.delete(["a"])
    await create(store, topic=topic)
    await assert_changes_nothing(store, late, claim)


@pytest.mark.parametrize("topic", ["order", "other"])
async def test_while_a_new_task_with_the_id_is_in_flight(store: StoreFixture, late: Verb, topic: str) -> None:
    await create(store)
    lost = await claim_task(store)
    await store.edits.delete(["a"])
    await create(store, topic=topic)
    present = await claim_task(store)
    assert present.fence != lost.fence
    await assert_changes_nothing(store, late, lost)
    assert await late(store, present) == [True]
    await assert_sound(store, LATE)


async def test_after_it_failed_and_was_claimed_again(store: StoreFixture, late: Verb) -> None:
    await create(store)
    claim = await claim_task(store)
    await store.tasks.settle([failed(claim, NOW + 1)])
    await release_due(store, Bucket.ERROR, NOW + 1)
    await claim_task(store, NOW + 1)
    await assert_changes_nothing(store, late, claim)
