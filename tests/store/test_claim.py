"""A claim takes due tasks, in order, and only once; due topics come in the order of their turns."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from later.core.errors import UnreadableBody
from later.core.task import Task, pack_id
from later.store.keys import Bucket, Shard
from later.store.scripts import MAX_TASKS
from later.store.tasks import FENCE_BITS
from later.store.types import Claim, ClaimRequest, ClaimResult, DueTopic, DueTopics, WorkerSnapshot
from tests.builders import NOW, a_task
from tests.store.inspection import (
    FAILURE,
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    done,
    failed,
    findings,
    locate,
    read_contents,
    release_due,
    unwrap_claim,
)  # fmt: skip
from tests.store_fixture import StoreFixture


def same_shard(store: StoreFixture, count: int, topic: str = "order", created_at: int = NOW) -> list[Task]:
    """Return tasks of one shard, each due a second after the one before."""
    ids = (f"{topic}-{n}" for n in itertools.count())
    mine = itertools.islice((id for id in ids if store.keys.shard_of(id).index == 0), count)
    return [a_task(id=id, own_id=True, topic=topic, delay=n, created_at=created_at) for n, id in enumerate(mine)]


async def claim(store: StoreFixture, now: int, limit: int = 500) -> ClaimResult:
    [answer] = await store.tasks.claim([ClaimRequest("order", 0, limit)], now, now + LEASE_MS)
    return unwrap_claim(answer)


async def test_only_due_tasks_are_claimed(store: StoreFixture) -> None:
    due, later = same_shard(store, 2)
    await store.tasks.create([due, later])
    claims = await claim(store, NOW + 999)
    assert [claim.id for claim in claims.claims] == [due.id]
    assert await locate(store, due.id) == (Bucket.UNACK, NOW + 999 + LEASE_MS)
    assert await locate(store, later.id) == (Bucket.DELAY, NOW + 1000)


async def test_a_task_is_due_at_its_time_and_not_before(store: StoreFixture) -> None:
    [task] = same_shard(store, 1, created_at=NOW + 1)
    await store.tasks.create([task])
    assert (await claim(store, NOW)).claims == []
    assert [claim.due_at for claim in (await claim(store, NOW + 1)).claims] == [NOW + 1]


async def test_the_tasks_due_first_are_claimed_first(store: StoreFixture) -> None:
    tasks = same_shard(store, 10)
    await store.tasks.create(tasks[::-1])
    claims = await claim(store, NOW + 60_000, limit=4)
    assert [claim.id for claim in claims.claims] == [task.id for task in tasks[:4]]


async def test_no_more_tasks_than_requested_are_claimed(store: StoreFixture) -> None:
    await store.tasks.create([a_task() for _ in range(1100)])
    results = await store.tasks.claim([ClaimRequest("order", 0, 3)], NOW, NOW + 1)
    assert all(len(unwrap_claim(result).claims) <= 3 for result in results)
    while await claim_due(store, limit=10_000):
        pass
    contents = await assert_sound(store)
    assert len(contents.buckets[Bucket.UNACK, "order"]) == 1100


async def test_a_claim_returns_at_most_500(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 600))
    assert len((await claim(store, NOW + 10**6, limit=10_000)).claims) == 500


async def test_a_claimed_task_cannot_be_claimed_again(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 1))
    first, second = await claim(store, NOW), await claim(store, NOW)
    assert (len(first.claims), second.claims, second.wake_at) == (1, [], None)


async def test_a_claim_holds_the_task_and_its_lease(store: StoreFixture) -> None:
    [task] = same_shard(store, 1)
    await store.tasks.create([task])
    [claimed] = (await claim(store, NOW + 5)).claims
    fence = claimed.fence
    lease_end = NOW + 5 + LEASE_MS
    assert claimed == Claim(task.id, pack_id(task.id), "order", 0, task, NOW, 1, fence, None, lease_end)


async def test_each_delivery_is_a_new_attempt_under_a_new_fence_and_knows_the_last_failure(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 1))
    [first] = (await claim(store, NOW)).claims
    await store.tasks.settle([failed(first, NOW + 10)])
    await release_due(store, Bucket.ERROR, NOW + 10)
    [second] = (await claim(store, NOW + 10)).claims
    assert (second.attempt, second.failure, second.due_at) == (2, FAILURE, NOW + 10)
    assert second.fence != first.fence


async def test_a_lost_lease_counts_as_an_attempt(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 1))
    await claim(store, NOW)
    await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
    [again] = (await claim(store, NOW + LEASE_MS)).claims
    assert (again.attempt, again.failure) == (2, None)


async def test_no_fence_is_given_twice_to_the_same_ids(store: StoreFixture) -> None:
    fences = []
    for _ in range(3):
        await store.tasks.create(same_shard(store, 2))
        claims = (await claim(store, NOW + 1000)).claims
        fences += [claimed.fence for claimed in claims]
        await store.edits.delete([claimed.id for claimed in claims])
    assert len(set(fences)) == 6


@pytest.mark.parametrize("base", [0, 10**15, 2**FENCE_BITS - 1])
async def test_the_fences_of_a_large_claim_are_exact_numbers_that_settle(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, base: int
) -> None:
    monkeypatch.setattr("later.store.tasks.randbits", lambda bits: base)
    await store.tasks.create(same_shard(store, MAX_TASKS))
    claims = (await claim(store, NOW + 10**6, limit=MAX_TASKS)).claims
    assert [claimed.fence for claimed in claims] == [base + 1 + n for n in range(MAX_TASKS)]
    assert await store.tasks.settle([done(claimed) for claimed in claims]) == [True] * MAX_TASKS


async def test_a_claim_of_an_older_version_beside_is_settled_and_its_counter_left(store: StoreFixture) -> None:
    [task] = same_shard(store, 1)
    await store.tasks.create([task])
    [claimed] = (await claim(store, NOW)).claims
    counted = replace(claimed, fence=7)
    await ask(store, [("HSET", store.keys.shards[0].attempts, claimed.packed, "1 7"), ("SET", "{later:0}:fence", 7)])
    assert await store.tasks.settle([done(claimed), done(counted)]) == [False, True]
    await store.tasks.create([task])
    await claim(store, NOW)
    assert await ask(store, [("GET", "{later:0}:fence")]) == [b"7"]


async def test_the_turn_of_a_topic_with_due_tasks_left_comes_again_now(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 3))
    claims = await claim(store, NOW + 60_000, limit=1)
    assert claims.wake_at == NOW + 60_000
    assert (await read_contents(store)).wakes[Bucket.DELAY, 0, "order"] == NOW + 60_000


async def test_a_topic_with_later_tasks_left_wakes_for_the_next(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 3))
    claims = await claim(store, NOW, limit=1)
    assert claims.wake_at == NOW + 1000
    assert (await read_contents(store)).wakes[Bucket.DELAY, 0, "order"] == NOW + 1000


async def test_an_empty_topic_has_no_wake_time(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 1))
    assert (await claim(store, NOW)).wake_at is None
    assert (await read_contents(store)).wakes == {(Bucket.UNACK, 0, "order"): NOW + LEASE_MS}


async def test_unack_wakes_when_the_first_lease_ends(store: StoreFixture) -> None:
    await store.tasks.create(same_shard(store, 2))
    await claim(store, NOW)
    await claim(store, NOW + 1000)
    assert (await read_contents(store)).wakes[Bucket.UNACK, 0, "order"] == NOW + LEASE_MS


async def test_a_topic_that_was_served_goes_to_the_end_of_the_line(store: StoreFixture) -> None:
    await store.tasks.create([task for topic in "abc" for task in same_shard(store, 3, topic)])
    for turn, topic in enumerate("cab"):
        await store.tasks.claim([ClaimRequest(topic, 0, 1)], NOW + 60_000 + turn, NOW + 90_000)
    assert [wake.topic for wake in (await store.tasks.due_topics(Bucket.DELAY, 10)).topics] == ["c", "a", "b"]


async def test_an_entry_without_a_body_is_an_orphan(store: StoreFixture) -> None:
    [task] = same_shard(store, 1)
    await store.tasks.create([task])
    shard, packed = store.keys.shards[0], pack_id(task.id)
    await ask(store, [("HDEL", shard.pool, packed), ("HSET", shard.attempts, packed, "3 7")])
    claims = await claim(store, NOW)
    assert (claims.orphans, claims.claims, claims.wake_at) == (1, [], None)
    await assert_sound(store)
    assert (await read_contents(store)).attempts == {}


async def test_an_entry_of_a_task_in_flight_is_an_orphan(store: StoreFixture) -> None:
    [task] = same_shard(store, 1)
    await store.tasks.create([task])
    [claimed] = (await claim(store, NOW)).claims
    await _add_entry(store, store.keys.shards[0], Bucket.DELAY, task.id)
    again = await claim(store, NOW)
    assert (again.orphans, again.claims) == (1, [])
    await assert_sound(store)
    assert await store.tasks.settle([done(claimed)]) == [True]


async def test_an_orphan_uses_up_no_fence(store: StoreFixture) -> None:
    orphan, task = same_shard(store, 2)
    await store.tasks.create([orphan, task])
    await ask(store, [("HDEL", store.keys.shards[0].pool, pack_id(orphan.id))])
    claims = await claim(store, NOW + 1000)
    assert (claims.orphans, [claimed.id for claimed in claims.claims]) == (1, [task.id])
    assert await store.tasks.settle([done(claimed) for claimed in claims.claims]) == [True]


async def test_a_body_that_cannot_be_read_is_claimed_as_such(store: StoreFixture) -> None:
    [task] = same_shard(store, 1)
    await store.tasks.create([task])
    await ask(store, [("HSET", store.keys.shards[0].pool, pack_id(task.id), b"\xc1")])
    [claimed] = (await claim(store, NOW)).claims
    assert isinstance(claimed.task, UnreadableBody)
    assert await findings(store) == []


async def test_many_topics_are_claimed_in_one_round_trip(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(400)])
    assert sorted(claimed.topic for claimed in await claim_due(store)) == sorted(f"topic-{n}" for n in range(400))
    await assert_sound(store)


async def test_a_claim_of_an_unknown_topic_leaves_no_trace(store: StoreFixture) -> None:
    assert await claim(store, NOW) == (None, 0, [])
    assert (await read_contents(store)).wakes == {}


@pytest.mark.parametrize(("limit", "topics", "full"), [(2, "ab", True), (2, "a", False), (3, "ab", False)])
async def test_due_topics_say_whether_there_may_be_more(
    store: StoreFixture, limit: int, topics: str, full: bool
) -> None:
    for number, topic in enumerate(topics):
        await store.tasks.create(same_shard(store, 1, topic, NOW - number))
    due = await store.tasks.due_topics(Bucket.DELAY, limit)
    assert due.topics == [DueTopic(NOW - n, topic, 0) for n, topic in reversed(list(enumerate(topics)))]
    assert (due.more_at is not None) is full


async def test_due_topics_are_in_order_over_all_shards(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", own_id=True, topic=f"{n}", delay=n) for n in range(40)])
    due = await store.tasks.due_topics(Bucket.DELAY, 100)
    assert [wake.topic for wake in due.topics] == [f"{n}" for n in range(40)]


async def test_a_snapshot_has_the_first_time_of_each_bucket(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", own_id=True, topic=f"{n}") for n in range(20)])
    claims = await claim_due(store)
    await store.tasks.settle([failed(claim, NOW + 100 + int(claim.topic)) for claim in claims[:10]])
    await store.tasks.create([a_task(id="late", own_id=True, topic="late", delay=60)])
    snapshot = await store.tasks.worker_snapshot(100)
    assert [wake.topic for wake in snapshot.delay.topics] == ["late"]
    assert snapshot.unack_at == NOW + LEASE_MS
    assert snapshot.error_at == NOW + 100 + min(int(claim.topic) for claim in claims[:10])


async def test_a_snapshot_of_an_empty_store_is_empty(store: StoreFixture) -> None:
    assert await store.tasks.worker_snapshot(100) == WorkerSnapshot(DueTopics([], None), [], None, None, None)


async def _add_entry(store: StoreFixture, shard: Shard, bucket: Bucket, id: str) -> None:
    await ask(
        store,
        [("ZADD", shard.bucket(bucket, b"order"), NOW, pack_id(id)), ("ZADD", shard.wakes[bucket], NOW, "order")],
    )
