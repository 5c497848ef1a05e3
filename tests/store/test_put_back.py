"""Tasks that were claimed and put back, to be claimed later: their first due time stays, and no attempt is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from later.core.edit import TaskChanges
from later.core.held import Held
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import expiry_failure
from later.core.task import pack_id
from later.store.keys import Bucket
from later.store.types import BucketRange, Claim, ExpiredTask, PutBack, TaskEdit, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    done,
    failed,
    locate,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture

AGAIN = NOW + 5_000


async def put_back(store: StoreFixture, **changes: Any) -> Claim:
    """Create a task that is due, claim it, and put it back until AGAIN; return the claim."""
    await store.tasks.create([a_task(id="a", own_id=True, **changes)])
    [claim] = await claim_due(store, NOW + 20)
    assert await store.tasks.put_back([PutBack(claim, AGAIN)]) == [True]
    return claim


async def query(store: StoreFixture) -> TaskRecord:
    [answer] = await store.lookup.query(["a"])
    assert isinstance(answer, TaskRecord)
    return answer


async def test_a_task_that_was_put_back_is_claimed_when_it_is_due_again(store: StoreFixture) -> None:
    await put_back(store)
    assert await locate(store, "a") == (Bucket.DELAY, AGAIN)
    assert await claim_due(store, AGAIN - 1) == []
    [claim] = await claim_due(store, AGAIN)
    assert (claim.due_at, claim.attempt) == (NOW, 1)
    await assert_sound(store, AGAIN)


async def test_it_says_when_it_was_first_due(store: StoreFixture) -> None:
    await put_back(store)
    record = await query(store)
    assert (record.state, record.score, record.due_at, record.attempts) == (Bucket.DELAY, AGAIN, NOW, 0)


@pytest.mark.parametrize("reason", [Held.ORIGIN, Held.FAULT])
async def test_it_says_why_it_was_put_back_last(store: StoreFixture, reason: Held) -> None:
    await put_back(store)
    [claim] = await claim_due(store, AGAIN)
    await store.tasks.put_back([PutBack(claim, AGAIN + 1, reason)])
    record = await query(store)
    assert (record.put_back_for, record.due_at) == (reason, NOW)
    [claim] = await claim_due(store, AGAIN + 1)
    assert (claim.put_back_for, claim.due_at) == (reason, NOW)


async def test_it_may_be_put_back_again_and_again(store: StoreFixture) -> None:
    await put_back(store)
    for at in range(AGAIN, AGAIN + 5):
        [claim] = await claim_due(store, at)
        assert await store.tasks.put_back([PutBack(claim, at + 1)]) == [True]
    assert (await read_contents(store)).attempts == {"a": f"0 0{NOW}"}


async def test_an_attempt_that_was_made_before_still_counts(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    [claim] = await claim_due(store)
    await store.tasks.settle([failed(claim, NOW + 10)])
    await release_due(store, Bucket.ERROR, NOW + 10)
    [second] = await claim_due(store, NOW + 10)
    await store.tasks.put_back([PutBack(second, AGAIN)])
    assert (await query(store)).attempts == 1
    [third] = await claim_due(store, AGAIN)
    assert (third.attempt, third.due_at) == (2, NOW + 10)


async def test_its_topic_wakes_when_it_is_due_again(store: StoreFixture) -> None:
    claim = await put_back(store)
    assert (await assert_sound(store)).wakes == {(Bucket.DELAY, claim.shard, "order"): AGAIN}


async def test_a_lost_lease_puts_nothing_back(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    [lost] = await claim_due(store)
    await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
    [claim] = await claim_due(store, NOW + LEASE_MS)
    before = await read_contents(store)
    assert await store.tasks.put_back([PutBack(lost, AGAIN)]) == [False]
    assert await read_contents(store) == before
    assert await store.tasks.put_back([PutBack(claim, AGAIN + LEASE_MS)]) == [True]
    assert await store.tasks.put_back([PutBack(claim, AGAIN + LEASE_MS)]) == [False]


async def test_tasks_of_many_topics_are_put_back_in_one_round_trip(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", topic=f"topic-{n % 7}") for n in range(1200)])
    claims = await claim_due(store)
    assert await store.tasks.put_back([PutBack(claim, AGAIN) for claim in claims]) == [True] * 1200
    await assert_sound(store)


async def test_a_claim_of_an_earlier_version_takes_it_for_a_task_whose_lease_was_lost(store: StoreFixture) -> None:
    """Earlier versions read an entry as `begun_and_fence` in the prelude still does."""
    await put_back(store)
    [shard] = {store.keys.shard_of("a")}
    source = (
        "local begun, fence = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^(%d+) (%d+)$') return {begun, fence}"
    )
    [[begun, fence]] = await ask(store, [("EVAL", source, 1, shard.attempts, pack_id("a"))])
    assert int(begun) == 0
    assert fence == f"0{NOW}".encode(), "no claim has a fence that begins with 0"


async def update(store: StoreFixture, **changes: Any) -> TaskRecord:
    [record] = await store.edits.update([TaskEdit("a", TaskChanges(**changes), Policies(Policy()), NOW + 100)])
    assert isinstance(record, TaskRecord)
    return record


class TestOtherVerbs:
    async def test_a_new_due_time_replaces_the_first_one(self, store: StoreFixture) -> None:
        await put_back(store)
        assert (await update(store, delay=60)).due_at == NOW + 60_100
        assert (await query(store)).due_at == NOW + 60_100
        assert (await read_contents(store)).attempts == {}
        [claim] = await claim_due(store, NOW + 60_100)
        assert (claim.due_at, claim.attempt) == (NOW + 60_100, 1)

    async def test_a_new_due_time_leaves_the_attempts(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a", own_id=True)])
        [claim] = await claim_due(store)
        await store.tasks.settle([failed(claim, NOW + 10)])
        await release_due(store, Bucket.ERROR, NOW + 10)
        [second] = await claim_due(store, NOW + 10)
        await store.tasks.put_back([PutBack(second, AGAIN)])
        record = await update(store, delay=60)
        assert (record.attempts, record.due_at) == (1, NOW + 60_100)
        assert await query(store) == record
        [third] = await claim_due(store, NOW + 60_100)
        assert (third.attempt, third.due_at) == (2, NOW + 60_100)

    async def test_new_content_leaves_the_first_due_time(self, store: StoreFixture) -> None:
        await put_back(store)
        record = await update(store, content="new")
        assert (record.due_at, record.score) == (NOW, AGAIN)

    async def test_run_now_claims_it_at_once(self, store: StoreFixture) -> None:
        await put_back(store)
        await store.edits.run_now(["a"], NOW + 50)
        [claim] = await claim_due(store, NOW + 50)
        assert claim.due_at == NOW

    @pytest.mark.parametrize(
        "remove",
        [
            lambda store: store.edits.delete(["a"]),
            lambda store: store.dead_letters.purge([BucketRange("order", Bucket.DELAY)]),
        ],
        ids=["delete", "purge"],
    )
    async def test_nothing_of_it_remains(
        self, store: StoreFixture, remove: Callable[[StoreFixture], Awaitable[object]]
    ) -> None:
        await put_back(store)
        await remove(store)
        contents = await assert_sound(store)
        assert (contents.pool, contents.attempts) == (set(), {})

    async def test_a_settle_removes_it(self, store: StoreFixture) -> None:
        await put_back(store)
        await store.tasks.settle([done(claim) for claim in await claim_due(store, AGAIN)])
        assert (await assert_sound(store)).attempts == {}

    async def test_its_ttl_may_end_while_it_waits(self, store: StoreFixture) -> None:
        claim = await put_back(store, ttl=1)
        expired = ExpiredTask("a", "order", claim.shard, None, b"")
        await store.expiry.expire([(expired, expiry_failure(None, NOW + 2000))], NOW + 2000)
        record = await query(store)
        assert (record.state, record.due_at, record.attempts) == (Bucket.DEAD, NOW + 2000, 0)
        await assert_sound(store)
