"""A verdict moves a task on; what comes back and what is released waits in delay again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from later.core.retry import SettleTarget, Verdict
from later.core.task import pack_id
from later.store.keys import Bucket
from later.store.types import Claim, DueTopic, ReleaseResult, Settlement, TaskRecord
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import FAILURE, LEASE_MS, ask, assert_sound, died, done, failed, let_go, place, see, take


async def in_flight(house: House, count: int = 1, **changes: Any) -> list[Claim]:
    await house.store.create([a_task(**changes) for _ in range(count)])
    return await take(house)


async def found(house: House, id: str) -> TaskRecord:
    [answer] = await house.store.query([id])
    assert isinstance(answer, TaskRecord)
    return answer


class TestSettle:
    async def test_a_task_that_is_done_is_gone(self, house: House) -> None:
        [claim] = await in_flight(house)
        assert await house.store.settle([done(claim)]) == [True]
        assert await place(house, claim.id) is None
        assert (await assert_sound(house)).done == {}

    async def test_the_id_that_a_caller_chose_is_remembered(self, house: House) -> None:
        [claim] = await in_flight(house, id="a", own_id=True)
        await house.store.settle([done(claim, remember_until=NOW + 7)])
        assert (await see(house)).done == {"a": NOW + 7}

    async def test_a_task_that_failed_waits_in_error(self, house: House) -> None:
        [claim] = await in_flight(house)
        assert await house.store.settle([failed(claim, NOW + 10_000)]) == [True]
        assert await place(house, claim.id) == (Bucket.ERROR, NOW + 10_000)
        assert (await found(house, claim.id)).failure == FAILURE
        await assert_sound(house)

    async def test_a_task_that_is_given_up_lies_in_dead(self, house: House) -> None:
        [claim] = await in_flight(house, id="a", own_id=True)
        assert await house.store.settle([died(claim, NOW + 3)]) == [True]
        assert await place(house, claim.id) == (Bucket.DEAD, NOW + 3)
        assert (await found(house, claim.id)).failure == FAILURE
        assert (await assert_sound(house)).done == {}

    async def test_the_last_failure_replaces_the_one_before(self, house: House) -> None:
        [first] = await in_flight(house)
        await house.store.settle([failed(first, NOW)])
        await let_go(house, Bucket.ERROR, NOW)
        [second] = await take(house)
        newer = msgspec.structs.replace(FAILURE, failures=2, attempt=2)
        await house.store.settle([Settlement(second, Verdict(SettleTarget.DEAD, NOW, newer), None)])
        assert (await found(house, first.id)).failure == newer

    async def test_each_bucket_wakes_at_its_earliest(self, house: House) -> None:
        claims = await in_flight(house, 20)
        by_shard: dict[int, list[Claim]] = {}
        for claim in claims:
            by_shard.setdefault(claim.shard, []).append(claim)
        shard, some = max(by_shard.items(), key=lambda entry: len(entry[1]))
        await house.store.settle([failed(claim, NOW + 50 - n) for n, claim in enumerate(some)])
        wakes = (await assert_sound(house)).wakes
        assert wakes[Bucket.ERROR, shard, "order"] == NOW + 51 - len(some)
        assert (Bucket.UNACK, shard, "order") not in wakes

    async def test_more_than_one_call_carries_are_settled_each_by_its_own_verdict(self, house: House) -> None:
        claims = await in_flight(house, 1100)
        claims += await take(house) + await take(house)
        fates: list[Callable[[Claim], Settlement]] = [done, died, lambda claim: failed(claim, NOW + 9)]
        settlements = [fates[n % 3](claim) for n, claim in enumerate(claims)]
        assert await house.store.settle(settlements) == [True] * 1100
        assert await house.store.settle(settlements) == [False] * 1100
        sight = await assert_sound(house)
        assert len(sight.buckets[Bucket.DEAD, "order"]) == 367
        assert len(sight.buckets[Bucket.ERROR, "order"]) == 366

    async def test_many_topics_are_settled_in_one_round_trip(self, house: House) -> None:
        await house.store.create([a_task(topic=f"topic-{n}") for n in range(300)])
        claims = await take(house)
        assert await house.store.settle([done(claim) for claim in claims]) == [True] * 300
        assert (await assert_sound(house)).wakes == {}


class TestGiveBack:
    async def test_what_was_given_back_is_as_if_it_had_not_been_claimed(self, house: House) -> None:
        await house.store.create([a_task()])
        before = await see(house)
        [claim] = await take(house, NOW + 5)
        assert await house.store.give_back([claim]) == [True]
        assert await see(house) == before

    async def test_only_the_last_attempt_is_taken_back(self, house: House) -> None:
        [lost] = await in_flight(house)
        await let_go(house, Bucket.UNACK, lost.lease_end)
        [claim] = await take(house, lost.lease_end)
        await house.store.give_back([claim])
        [again] = await take(house, lost.lease_end)
        assert again.attempt == 2
        assert again.fence > claim.fence

    async def test_it_keeps_its_failure_and_its_due_time(self, house: House) -> None:
        [claim] = await in_flight(house)
        await house.store.settle([failed(claim, NOW + 10)])
        await let_go(house, Bucket.ERROR, NOW + 25)
        [second] = await take(house, NOW + 30)
        await house.store.give_back([second])
        after = await found(house, claim.id)
        assert (after.state, after.score, after.attempts, after.failure) == (Bucket.DELAY, NOW + 25, 1, FAILURE)

    async def test_its_topic_wakes_no_later_than_it_is_due(self, house: House) -> None:
        [claim] = await in_flight(house)
        await house.store.give_back([claim])
        assert (await assert_sound(house)).wakes == {(Bucket.DELAY, claim.shard, "order"): NOW}

    async def test_given_back_twice_counts_once(self, house: House) -> None:
        [claim] = await in_flight(house)
        assert await house.store.give_back([claim, claim]) == [True, False]
        assert await house.store.give_back([claim]) == [False]
        await assert_sound(house)

    async def test_more_than_one_call_carries_are_given_back(self, house: House) -> None:
        claims = await in_flight(house, 1100)
        claims += await take(house) + await take(house)
        assert await house.store.give_back(claims) == [True] * 1100
        assert len((await assert_sound(house)).buckets[Bucket.DELAY, "order"]) == 1100


class TestRelease:
    async def test_a_lease_holds_until_its_end(self, house: House) -> None:
        [claim] = await in_flight(house)
        wake = DueTopic(claim.lease_end, "order", claim.shard)
        early = await house.store.release(Bucket.UNACK, [wake], claim.lease_end - 1)
        assert early == [ReleaseResult(0, claim.lease_end)]
        assert await place(house, claim.id) == (Bucket.UNACK, claim.lease_end)

    async def test_a_task_whose_lease_ran_out_is_due_now(self, house: House) -> None:
        [claim] = await in_flight(house)
        now = claim.lease_end + 5
        released = await house.store.release(Bucket.UNACK, [DueTopic(0, "order", claim.shard)], now)
        assert released == [ReleaseResult(1, None)]
        assert await place(house, claim.id) == (Bucket.DELAY, now)
        assert (await assert_sound(house, now)).wakes == {(Bucket.DELAY, claim.shard, "order"): now}

    async def test_a_task_whose_pause_is_over_is_due_now(self, house: House) -> None:
        [claim] = await in_flight(house)
        await house.store.settle([failed(claim, NOW + 10)])
        assert await let_go(house, Bucket.ERROR, NOW + 9) == 0
        assert await let_go(house, Bucket.ERROR, NOW + 10) == 1
        assert await place(house, claim.id) == (Bucket.DELAY, NOW + 10)
        await assert_sound(house, NOW + 10)

    async def test_whoever_waits_longer_in_delay_stays_in_front(self, house: House) -> None:
        await in_flight(house, id="a", own_id=True)
        tasks = [a_task(id=f"t{n}", own_id=True, delay=1) for n in range(99)]
        await house.store.create([task for task in tasks if house.keys.shard_of(task.id) == house.keys.shard_of("a")])
        await let_go(house, Bucket.UNACK, NOW + LEASE_MS)
        shard = house.keys.shard_of("a").index
        assert (await see(house)).wakes[Bucket.DELAY, shard, "order"] == NOW + 1000

    async def test_only_what_has_waited_long_enough_is_released(self, house: House) -> None:
        claims = await in_flight(house, 30)
        await house.store.settle([failed(claim, NOW + n) for n, claim in enumerate(claims)])
        assert await let_go(house, Bucket.ERROR, NOW + 14) == 15
        sight = await assert_sound(house, NOW + 14)
        assert sorted(sight.buckets[Bucket.ERROR, "order"].values()) == [NOW + n for n in range(15, 30)]

    async def test_the_dead_are_not_released(self, house: House) -> None:
        [claim] = await in_flight(house)
        await house.store.settle([died(claim)])
        assert await let_go(house, Bucket.UNACK, NOW + 10**9) == await let_go(house, Bucket.ERROR, NOW + 10**9) == 0
        assert await place(house, claim.id) == (Bucket.DEAD, NOW)

    async def test_an_entry_that_waits_in_delay_already_keeps_its_due_time(self, house: House) -> None:
        [claim] = await in_flight(house)
        shard, packed = house.keys.shards[claim.shard], pack_id(claim.id)
        await ask(
            house,
            [
                ("ZADD", shard.bucket(Bucket.DELAY, b"order"), NOW + 3, packed),
                ("ZADD", shard.wakes[Bucket.DELAY], NOW + 3, "order"),
            ],
        )
        await let_go(house, Bucket.UNACK, claim.lease_end)
        assert await place(house, claim.id) == (Bucket.DELAY, NOW + 3)

    async def test_a_release_carries_at_most_500_and_says_that_there_are_more(self, house: House) -> None:
        tasks = [a_task(id=f"t{n}", own_id=True) for n in range(20_000)]
        await house.store.create([task for task in tasks if house.keys.shard_of(task.id).index == 0][:1100])
        while await take(house):
            pass
        end, wake = NOW + LEASE_MS, DueTopic(0, "order", 0)
        rounds = [(await house.store.release(Bucket.UNACK, [wake], end))[0] for _ in range(4)]
        assert rounds == [
            ReleaseResult(500, end),
            ReleaseResult(500, end),
            ReleaseResult(100, None),
            ReleaseResult(0, None),
        ]
        await assert_sound(house, end)

    async def test_many_topics_are_released_in_one_round_trip(self, house: House) -> None:
        await house.store.create([a_task(topic=f"topic-{n}") for n in range(300)])
        await take(house)
        assert await let_go(house, Bucket.UNACK, NOW + LEASE_MS) == 300
        await assert_sound(house, NOW + LEASE_MS)
