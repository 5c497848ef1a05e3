"""A verdict moves a task on; a task that is given back or released waits in delay again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from later.core.retry import SettleTarget, Verdict
from later.core.task import pack_id
from later.store.keys import Bucket
from later.store.types import Claim, DueTopic, ReleaseResult, Settlement, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import (
    FAILURE,
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    locate,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture


async def in_flight(store: StoreFixture, count: int = 1, **changes: Any) -> list[Claim]:
    await store.tasks.create([a_task(**changes) for _ in range(count)])
    return await claim_due(store)


async def query(store: StoreFixture, id: str) -> TaskRecord:
    [answer] = await store.lookup.query([id])
    assert isinstance(answer, TaskRecord)
    return answer


class TestSettle:
    async def test_a_task_that_is_done_is_removed(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        assert await store.tasks.settle([done(claim)]) == [True]
        assert await locate(store, claim.id) is None
        assert (await assert_sound(store)).done == {}

    async def test_the_id_that_a_caller_chose_is_remembered(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store, id="a", own_id=True)
        await store.tasks.settle([done(claim, remember_until=NOW + 7)])
        assert (await read_contents(store)).done == {"a": NOW + 7}

    async def test_a_task_that_failed_waits_in_error(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        assert await store.tasks.settle([failed(claim, NOW + 10_000)]) == [True]
        assert await locate(store, claim.id) == (Bucket.ERROR, NOW + 10_000)
        assert (await query(store, claim.id)).failure == FAILURE
        await assert_sound(store)

    async def test_a_task_that_is_given_up_is_in_dead(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store, id="a", own_id=True)
        assert await store.tasks.settle([died(claim, NOW + 3)]) == [True]
        assert await locate(store, claim.id) == (Bucket.DEAD, NOW + 3)
        assert (await query(store, claim.id)).failure == FAILURE
        assert (await assert_sound(store)).done == {}

    async def test_the_last_failure_replaces_the_one_before(self, store: StoreFixture) -> None:
        [first] = await in_flight(store)
        await store.tasks.settle([failed(first, NOW)])
        await release_due(store, Bucket.ERROR, NOW)
        [second] = await claim_due(store)
        newer = msgspec.structs.replace(FAILURE, failures=2, attempt=2)
        await store.tasks.settle([Settlement(second, Verdict(SettleTarget.DEAD, NOW, newer), None)])
        assert (await query(store, first.id)).failure == newer

    async def test_each_bucket_wakes_at_its_earliest(self, store: StoreFixture) -> None:
        claims = await in_flight(store, 20)
        by_shard: dict[int, list[Claim]] = {}
        for claim in claims:
            by_shard.setdefault(claim.shard, []).append(claim)
        shard, some = max(by_shard.items(), key=lambda entry: len(entry[1]))
        await store.tasks.settle([failed(claim, NOW + 50 - n) for n, claim in enumerate(some)])
        wakes = (await assert_sound(store)).wakes
        assert wakes[Bucket.ERROR, shard, "order"] == NOW + 51 - len(some)
        assert (Bucket.UNACK, shard, "order") not in wakes

    async def test_more_than_one_call_carries_are_settled_each_by_its_own_verdict(self, store: StoreFixture) -> None:
        claims = await in_flight(store, 1100)
        claims += await claim_due(store) + await claim_due(store)
        settlement_builders: list[Callable[[Claim], Settlement]] = [done, died, lambda claim: failed(claim, NOW + 9)]
        settlements = [settlement_builders[n % 3](claim) for n, claim in enumerate(claims)]
        assert await store.tasks.settle(settlements) == [True] * 1100
        assert await store.tasks.settle(settlements) == [False] * 1100
        contents = await assert_sound(store)
        assert len(contents.buckets[Bucket.DEAD, "order"]) == 367
        assert len(contents.buckets[Bucket.ERROR, "order"]) == 366

    async def test_many_topics_are_settled_in_one_round_trip(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(300)])
        claims = await claim_due(store)
        assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * 300
        assert (await assert_sound(store)).wakes == {}


class TestGiveBack:
    async def test_a_task_that_was_given_back_is_as_if_it_had_not_been_claimed(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task()])
        before = await read_contents(store)
        [claim] = await claim_due(store, NOW + 5)
        assert await store.tasks.give_back([claim]) == [True]
        assert await read_contents(store) == before

    async def test_only_the_last_attempt_is_taken_back(self, store: StoreFixture) -> None:
        [lost] = await in_flight(store)
        await release_due(store, Bucket.UNACK, lost.lease_end)
        [claim] = await claim_due(store, lost.lease_end)
        await store.tasks.give_back([claim])
        [again] = await claim_due(store, lost.lease_end)
        assert again.attempt == 2
        assert again.fence != claim.fence

    async def test_it_keeps_its_failure_and_its_due_time(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        await store.tasks.settle([failed(claim, NOW + 10)])
        await release_due(store, Bucket.ERROR, NOW + 25)
        [second] = await claim_due(store, NOW + 30)
        await store.tasks.give_back([second])
        after = await query(store, claim.id)
        assert (after.state, after.score, after.attempts, after.failure) == (Bucket.DELAY, NOW + 25, 1, FAILURE)

    async def test_its_topic_wakes_no_later_than_it_is_due(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        await store.tasks.give_back([claim])
        assert (await assert_sound(store)).wakes == {(Bucket.DELAY, claim.shard, "order"): NOW}

    async def test_given_back_twice_counts_once(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        assert await store.tasks.give_back([claim, claim]) == [True, False]
        assert await store.tasks.give_back([claim]) == [False]
        await assert_sound(store)

    async def test_more_than_one_call_carries_are_given_back(self, store: StoreFixture) -> None:
        claims = await in_flight(store, 1100)
        claims += await claim_due(store) + await claim_due(store)
        assert await store.tasks.give_back(claims) == [True] * 1100
        assert len((await assert_sound(store)).buckets[Bucket.DELAY, "order"]) == 1100


class TestRelease:
    async def test_a_lease_holds_until_its_end(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        wake = DueTopic(claim.lease_end, "order", claim.shard)
        early = await store.tasks.release(Bucket.UNACK, [wake], claim.lease_end - 1)
        assert early == [ReleaseResult(0, claim.lease_end)]
        assert await locate(store, claim.id) == (Bucket.UNACK, claim.lease_end)

    async def test_a_task_whose_lease_ran_out_is_due_now(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        now = claim.lease_end + 5
        released = await store.tasks.release(Bucket.UNACK, [DueTopic(0, "order", claim.shard)], now)
        assert released == [ReleaseResult(1, None)]
        assert await locate(store, claim.id) == (Bucket.DELAY, now)
        assert (await assert_sound(store, now)).wakes == {(Bucket.DELAY, claim.shard, "order"): now}

    async def test_a_task_whose_pause_is_over_is_due_now(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        await store.tasks.settle([failed(claim, NOW + 10)])
        assert await release_due(store, Bucket.ERROR, NOW + 9) == 0
        assert await release_due(store, Bucket.ERROR, NOW + 10) == 1
        assert await locate(store, claim.id) == (Bucket.DELAY, NOW + 10)
        await assert_sound(store, NOW + 10)

    async def test_a_task_that_waits_longer_in_delay_stays_in_front(self, store: StoreFixture) -> None:
        await in_flight(store, id="a", own_id=True)
        tasks = [a_task(id=f"t{n}", own_id=True, delay=1) for n in range(99)]
        await store.tasks.create([task for task in tasks if store.keys.shard_of(task.id) == store.keys.shard_of("a")])
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        shard = store.keys.shard_of("a").index
        assert (await read_contents(store)).wakes[Bucket.DELAY, shard, "order"] == NOW + 1000

    async def test_only_tasks_whose_pause_is_over_are_released(self, store: StoreFixture) -> None:
        claims = await in_flight(store, 30)
        await store.tasks.settle([failed(claim, NOW + n) for n, claim in enumerate(claims)])
        assert await release_due(store, Bucket.ERROR, NOW + 14) == 15
        contents = await assert_sound(store, NOW + 14)
        assert sorted(contents.buckets[Bucket.ERROR, "order"].values()) == [NOW + n for n in range(15, 30)]

    async def test_the_dead_are_not_released(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        await store.tasks.settle([died(claim)])
        for bucket in (Bucket.UNACK, Bucket.ERROR):
            assert await release_due(store, bucket, NOW + 10**9) == 0
        assert await locate(store, claim.id) == (Bucket.DEAD, NOW)

    async def test_an_entry_that_waits_in_delay_already_keeps_its_due_time(self, store: StoreFixture) -> None:
        [claim] = await in_flight(store)
        shard, packed = store.keys.shards[claim.shard], pack_id(claim.id)
        await ask(
            store,
            [
                ("ZADD", shard.bucket(Bucket.DELAY, b"order"), NOW + 3, packed),
                ("ZADD", shard.wakes[Bucket.DELAY], NOW + 3, "order"),
            ],
        )
        await release_due(store, Bucket.UNACK, claim.lease_end)
        assert await locate(store, claim.id) == (Bucket.DELAY, NOW + 3)

    async def test_a_release_carries_at_most_500_and_says_that_there_are_more(self, store: StoreFixture) -> None:
        tasks = [a_task(id=f"t{n}", own_id=True) for n in range(20_000)]
        await store.tasks.create([task for task in tasks if store.keys.shard_of(task.id).index == 0][:1100])
        while await claim_due(store):
            pass
        end, wake = NOW + LEASE_MS, DueTopic(0, "order", 0)
        rounds = [(await store.tasks.release(Bucket.UNACK, [wake], end))[0] for _ in range(4)]
        assert rounds == [
            ReleaseResult(500, end),
            ReleaseResult(500, end),
            ReleaseResult(100, None),
            ReleaseResult(0, None),
        ]
        await assert_sound(store, end)

    async def test_many_topics_are_released_in_one_round_trip(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(300)])
        await claim_due(store)
        assert await release_due(store, Bucket.UNACK, NOW + LEASE_MS) == 300
        await assert_sound(store, NOW + LEASE_MS)
