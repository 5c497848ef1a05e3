"""Permits, holds and ramps in the store: over all instances and shards, through crashes and calls out of order."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.policy import MIN_RATE
from later.store.doctor import Doctor
from later.store.keys import Bucket
from later.store.permits import SAVED_MS, PermitGrant, PermitRequest, Permits
from later.store.types import ClaimRequest
from tests.builders import NOW, a_task
from tests.store.inspection import LEASE_MS, ask, assert_sound, claim_due, findings, read_contents, unwrap_claim
from tests.store_fixture import StoreFixture, hold_topic

END = NOW + LEASE_MS


async def acquire(permits: Permits, wanted: int, now: int = NOW, **changes: Any) -> PermitGrant:
    request = PermitRequest(
        topic="order", in_flight=0, wanted=wanted, returned=0, lease_end=END, rate=0.0, concurrency=0
    )._replace(**changes)
    [answer] = await permits.acquire([request], now)
    assert isinstance(answer, PermitGrant)
    return answer


class TestConcurrency:
    async def test_no_more_is_granted_than_all_instances_may_have_together(self, store: StoreFixture) -> None:
        one, other = store.new_permits("one"), store.new_permits("other")
        assert await acquire(one, 7, concurrency=10) == PermitGrant(7, None)
        assert await acquire(other, 7, concurrency=10) == PermitGrant(3, None)
        assert await acquire(one, 1, in_flight=7, concurrency=10) == PermitGrant(0, None)
        assert await one.in_use(["order"], NOW) == {"order": 10}

    async def test_a_returned_permit_is_available_to_all(self, store: StoreFixture) -> None:
        one, other = store.new_permits("one"), store.new_permits("other")
        await acquire(one, 10, concurrency=10)
        await acquire(one, 0, in_flight=4, concurrency=10)
        assert await acquire(other, 10, concurrency=10) == PermitGrant(6, None)

    async def test_a_lost_instance_has_its_permits_until_their_lease_ends(self, store: StoreFixture) -> None:
        await acquire(store.new_permits("lost"), 10, concurrency=10)
        other = store.new_permits("other")
        assert (await acquire(other, 10, END - 1, concurrency=10)).permits == 0
        assert (await acquire(other, 10, END, concurrency=10, lease_end=END + 1)).permits == 10

    async def test_a_lease_is_as_long_as_the_longest_of_its_permits(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 1, concurrency=10, lease_end=END + 5_000)
        await acquire(one, 1, in_flight=1, concurrency=10, lease_end=END)
        assert await store.new_permits("other").in_use(["order"], END + 4_999) == {"order": 2}

    async def test_an_older_call_that_arrives_late_is_ignored(self, store: StoreFixture) -> None:
        one, overtaken = store.new_permits("one"), store.new_permits("one")
        await acquire(one, 0, concurrency=10)
        await acquire(one, 8, concurrency=10)
        assert await acquire(overtaken, 2, concurrency=10) == PermitGrant(0, None)  # its first call, as if sent before
        assert await one.in_use(["order"], NOW) == {"order": 8}

    async def test_a_limit_that_was_lowered_grants_nothing_until_enough_have_ended(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 10, concurrency=10)
        assert (await acquire(one, 1, in_flight=10, concurrency=3)).permits == 0
        assert (await acquire(one, 5, in_flight=2, concurrency=3)).permits == 1

    async def test_nothing_is_kept_of_a_topic_that_has_nothing_under_way(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 3, concurrency=10)
        await acquire(one, 0, concurrency=10)
        assert await store.redis.exists(store.keys.permits("order").decode()) == 0


class TestRate:
    @pytest.mark.parametrize("rate", [10.0, 1000.0, 2.5, 0.5])
    async def test_over_ten_seconds_the_rate_is_granted(self, store: StoreFixture, rate: float) -> None:
        """Two instances ask for all they can get, every 10 ms."""
        instances, granted = [store.new_permits("one"), store.new_permits("other")], 0
        for at in range(NOW, NOW + 10_000, 10):
            granted += (await acquire(instances[at // 10 % 2], 500, at, rate=rate)).permits
        assert granted == pytest.approx(10 * rate, rel=0.05, abs=1.001)

    async def test_a_grant_says_when_the_rate_allows_more(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        first = await acquire(one, 5, rate=10.0)
        assert first == PermitGrant(1, NOW + 100)
        assert (await acquire(one, 5, NOW + 99, rate=10.0)).permits == 0
        assert (await acquire(one, 5, NOW + 100, rate=10.0)).permits == 1

    async def test_a_caller_that_asks_a_little_late_loses_nothing(self, store: StoreFixture) -> None:
        one, granted = store.new_permits("one"), 0
        for at in range(NOW, NOW + 10_000, 103):
            granted += (await acquire(one, 5, at, rate=10.0)).permits
        assert granted == pytest.approx(100, abs=1)

    async def test_permits_that_were_not_requested_cause_no_burst(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 1, rate=1000.0)
        assert (await acquire(one, 10_000, NOW + SAVED_MS, rate=1000.0)).permits == SAVED_MS
        assert (await acquire(one, 10_000, NOW + 60_000, rate=1000.0)).permits == 1

    async def test_permits_that_found_no_task_are_granted_again(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 1, rate=1000.0)
        assert (await acquire(one, 100, NOW + 100, rate=1000.0)).permits == 100
        await acquire(one, 0, NOW + 100, returned=60, rate=1000.0)
        assert (await acquire(one, 100, NOW + 100, rate=1000.0)).permits == 60

    async def test_both_limits_hold(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 1, rate=1000.0, concurrency=3)
        assert await acquire(one, 50, NOW + 100, rate=1000.0, concurrency=3) == PermitGrant(3, None)
        granted = await acquire(one, 500, NOW + 101, in_flight=3, rate=1000.0, concurrency=300)
        assert granted == PermitGrant(98, NOW + 102)

    async def test_a_rate_that_is_raised_counts_from_then_on(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        assert (await acquire(one, 5, rate=0.01)).permits == 1
        assert (await acquire(one, 5, NOW + 10, rate=100.0)).permits == 1

    async def test_a_rate_that_was_lifted_is_forgotten(self, store: StoreFixture) -> None:
        one = store.new_permits("one")
        await acquire(one, 5, rate=10.0)
        assert await acquire(one, 500, NOW + 1) == PermitGrant(500, None)
        assert await store.redis.hkeys(store.keys.permits("order").decode()) == [b"of:one"]


async def test_a_full_store_grants_and_holds(store: StoreFixture) -> None:
    one = store.new_permits("one")
    await acquire(one, 3, concurrency=10)
    await store.tasks.create([a_task()])
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        assert (await acquire(one, 3, in_flight=3, concurrency=10, rate=10.0)).permits == 1
        await one.hold_paused([("order", shard.index) for shard in store.keys.shards])
        assert await one.paused_topics() == {"order"}
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


async def pause(store: StoreFixture, topic: str = "order") -> None:
    await store.new_permits().hold_paused([(topic, shard.index) for shard in store.keys.shards])


class TestHolds:
    async def test_nothing_of_a_held_topic_is_claimed_before_the_hold_ends(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(), a_task(topic="mail")])
        await hold_topic(store, "order", NOW + 5000)
        assert {claim.topic for claim in await claim_due(store)} == {"mail"}
        snapshot = await store.tasks.worker_snapshot(10)
        assert {wake.at for wake in snapshot.delay.topics if wake.topic == "order"} == {NOW + 5000}
        assert {claim.topic for claim in await claim_due(store, NOW + 5000)} == {"order"}
        await assert_sound(store, NOW + 5000)

    async def test_a_claim_that_was_planned_before_finds_it_held(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a")])
        shard = store.keys.shard_of("a").index
        await hold_topic(store, "order", NOW + 5000)
        [answer] = await store.tasks.claim([ClaimRequest("order", shard, 5)], NOW, END)
        assert answer == (NOW + 5000, 0, [])
        await pause(store)
        [answer] = await store.tasks.claim([ClaimRequest("order", shard, 5)], NOW + 5000, END)
        assert answer == (None, 0, [])

    async def test_creates_releases_and_deletes_leave_it_held(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a"), a_task(id="b")])
        await pause(store)
        await store.tasks.create([a_task(id="c", delay=-5)])
        await store.edits.delete(["a"])
        assert await claim_due(store, NOW + 60_000) == []
        assert await findings(store, NOW + 60_000) == []
        wakes = (await ask(store, [("ZSCORE", store.keys.shard_of("c").wakes[Bucket.DELAY], "order")]))[0]
        assert float(wakes) == float("-inf")

    async def test_a_topic_that_is_held_before_it_has_tasks_is_held_when_it_has(self, store: StoreFixture) -> None:
        await pause(store)
        await store.tasks.create([a_task()])
        assert await claim_due(store) == []
        assert await store.new_permits().paused_topics() == {"order"}

    async def test_the_longer_of_two_holds_counts(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task()])
        await hold_topic(store, "order", NOW + 5000)
        await hold_topic(store, "order", NOW + 1000)
        assert await claim_due(store, NOW + 4999) == []
        await pause(store)
        await hold_topic(store, "order", NOW + 9000)
        assert await claim_due(store, NOW + 60_000) == []

    async def test_a_resumed_topic_is_claimed_from_its_moment_on(self, store: StoreFixture) -> None:
        permits = store.new_permits()
        await store.tasks.create([a_task()])
        await pause(store)
        await permits.resume({"order": (NOW + 1000, None)}, NOW)
        assert await claim_due(store, NOW + 999) == []
        assert len(await claim_due(store, NOW + 1000)) == 1
        assert await permits.paused_topics() == set()

    async def test_a_hold_of_a_receiver_is_not_resumed(self, store: StoreFixture) -> None:
        permits = store.new_permits()
        await store.tasks.create([a_task()])
        await hold_topic(store, "order", NOW + 5000)
        await permits.resume({"order": (NOW, None)}, NOW)
        assert await claim_due(store, NOW + 4999) == []

    async def test_all_paused_topics_are_found_however_many(self, store: StoreFixture) -> None:
        topics = [f"t{n}" for n in range(1203)]
        for topic in topics:
            await store.new_permits().hold_paused([(topic, 0)])
        assert await store.new_permits().paused_topics() == set(topics)

    async def test_a_ramp_is_known_to_all_while_it_lasts(self, store: StoreFixture) -> None:
        permits, book = store.new_permits(), store.new_policy_book()
        await pause(store)
        await permits.resume({"order": (NOW + 1000, NOW + 11_000)}, NOW)
        await permits.resume({"mail": (NOW + 2000, NOW + 12_000)}, NOW)
        await book.read()
        assert book.ramps == {"order": NOW + 11_000, "mail": NOW + 12_000}
        await permits.resume({"x": (NOW + 11_000, NOW + 21_000)}, NOW + 11_000)
        await book.read()
        assert book.ramps == {"mail": NOW + 12_000, "x": NOW + 21_000}

    async def test_the_rest_of_a_claim_can_be_held(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=f"t{n}") for n in range(100)])
        requests = [ClaimRequest("order", shard.index, 1, hold_until=NOW + 10) for shard in store.keys.shards]
        answers = await store.tasks.claim(requests, NOW, END)
        assert {getattr(answer, "wake_at", None) for answer in answers} == {NOW + 10}
        assert await claim_due(store, NOW + 9) == []
        assert len(await claim_due(store, NOW + 10)) == 100 - len(requests)

    async def test_a_topic_whose_next_task_is_due_after_the_hold_is_not_held(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a"), a_task(id="a2", delay=60)])
        shard = store.keys.shard_of("a").index
        await store.tasks.claim([ClaimRequest("order", shard, 5, hold_until=NOW + 10)], NOW, END)
        assert all(at > 0 for at in (await read_contents(store)).wakes.values())


async def test_the_doctor_finds_nothing_wrong_with_a_held_topic_and_leaves_it_held(store: StoreFixture) -> None:
    task = a_task(id="a")
    await store.tasks.create([task])
    await pause(store)
    shard = store.keys.shard_of("a")
    await ask(store, [("ZREM", shard.bucket(Bucket.DELAY, b"order"), "a")])
    doctor = Doctor(store.client, store.keys)
    [finding] = [finding async for finding in doctor.examine(NOW)]
    assert await doctor.repair(finding, NOW)
    assert await claim_due(store, NOW + 60_000) == []
    assert await findings(store, NOW) == []


async def test_a_claim_with_permits_passes_a_hold_set_for_the_rate(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="a2")])
    shard = store.keys.shard_of("a").index
    await store.tasks.claim([ClaimRequest("order", shard, 0, hold_until=NOW + 500)], NOW, END)
    [refused] = await store.tasks.claim([ClaimRequest("order", shard, 1)], NOW, END)
    assert refused == (NOW + 500, 0, [])
    [passed] = await store.tasks.claim([ClaimRequest("order", shard, 1, has_permits=True)], NOW, END)
    assert len(unwrap_claim(passed).claims) == 1


async def test_a_claim_with_permits_passes_no_hold_of_a_receiver_and_no_pause(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a")])
    request = ClaimRequest("order", store.keys.shard_of("a").index, 1, has_permits=True)
    await hold_topic(store, "order", NOW + 500)
    assert unwrap_claim((await store.tasks.claim([request], NOW, END))[0]).claims == []
    await pause(store)
    assert unwrap_claim((await store.tasks.claim([request], NOW + 500, END))[0]).claims == []


async def test_a_clock_that_was_set_back_holds_up_no_rate(store: StoreFixture) -> None:
    one = store.new_permits("one")
    await acquire(one, 1, NOW + 3_600_000, rate=10.0)
    assert (await acquire(one, 1, NOW, rate=10.0)).permits == 1


async def test_the_wait_for_the_least_rate_is_limited(store: StoreFixture) -> None:
    one = store.new_permits("one")
    await acquire(one, 1, rate=MIN_RATE)
    assert (await acquire(one, 1, NOW + 1, rate=MIN_RATE)).again_at == NOW + 10_000_000


async def test_all_topics_are_resumed_though_the_store_is_full(store: StoreFixture) -> None:
    topics = [f"t{n}" for n in range(50)]
    for topic in topics:
        await pause(store, topic)
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        await store.new_permits().resume(dict.fromkeys(topics, (NOW, NOW + 5000)), NOW)
        assert await store.new_permits().paused_topics() == set()
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
