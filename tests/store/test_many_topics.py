"""One call claims from, or settles tasks of, many topics of a shard; each topic is served as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from later.core.errors import StoreFault
from later.core.task import Task, pack_id
from later.store.keys import Bucket, Keys, Shard, group_topics
from later.store.scripts import BY_SHA, CLAIM, MAX_TASKS, MAX_TOPICS, SETTLE
from later.store.types import Claim, ClaimRequest, ClaimResult
from tests.builders import NOW, a_task
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    findings,
    read_contents,
    unwrap_claim,
)
from tests.store_fixture import StoreFixture, hold_topic


@pytest.fixture
def shards() -> int:
    """Return 1, unless a test says otherwise: a call takes topics of one shard."""
    return 1


async def claim(store: StoreFixture, requests: list[ClaimRequest], now: int = NOW) -> list[ClaimResult]:
    return [unwrap_claim(answer) for answer in await store.tasks.claim(requests, now, now + LEASE_MS)]


def tasks_of(topic: str, count: int, **changes: Any) -> list[Task]:
    """Return tasks of a topic, each due a second after the one before."""
    return [a_task(id=f"{topic}-{n}", own_id=True, topic=topic, **{"delay": n} | changes) for n in range(count)]


def ids(results: list[ClaimResult]) -> list[list[str]]:
    return [[claim.id for claim in result.claims] for result in results]


async def count_claims(store: StoreFixture) -> int:
    """Return how many calls of scripts the store has served since the statistics were reset."""
    stats: dict[str, dict[str, int]] = await store.redis.info("commandstats")
    return stats["cmdstat_evalsha"]["calls"]


async def test_each_topic_gets_its_own_tasks_wake_time_and_lease(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 3), *tasks_of("b", 1), *tasks_of("c", 2)])
    requests = [ClaimRequest("c", 0, 5), ClaimRequest("a", 0, 2), ClaimRequest("b", 0, 1, lease_extra_ms=7)]
    results = await claim(store, requests, NOW + 1000)
    assert ids(results) == [["c-0", "c-1"], ["a-0", "a-1"], ["b-0"]]
    assert [result.wake_at for result in results] == [None, NOW + 2000, None]
    lease_end = NOW + 1000 + LEASE_MS
    assert (await read_contents(store)).wakes == {
        (Bucket.DELAY, 0, "a"): NOW + 2000,
        (Bucket.UNACK, 0, "a"): lease_end,
        (Bucket.UNACK, 0, "b"): lease_end + 7,
        (Bucket.UNACK, 0, "c"): lease_end,
    }


async def test_the_claims_of_a_call_have_fences_of_their_own(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=f"{n % 30}") for n in range(90)])
    claims = await claim_due(store)
    assert len({claim.fence for claim in claims}) == 90
    assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * 90
    assert (await assert_sound(store)).pool == set()


async def test_few_tasks_are_claimed_as_many_are(store: StoreFixture) -> None:
    for limit in range(1, 14):  # a few are read in another way
        await store.redis.flushall()
        await store.tasks.create([*tasks_of("a", 20), *tasks_of("b", 1, created_at=NOW + 12_000)])
        results = await claim(store, [ClaimRequest("a", 0, limit), ClaimRequest("b", 0, limit)], NOW + 11_000)
        claimed = min(limit, 12)
        assert ids(results) == [[f"a-{n}" for n in range(claimed)], []]
        assert [result.wake_at for result in results] == [max(NOW + 11_000, NOW + claimed * 1000), NOW + 12_000]
        await assert_sound(store, NOW + 11_000)


@pytest.mark.parametrize("shards", [1, 2])
async def test_topics_of_a_shard_are_claimed_in_one_call(store: StoreFixture, shards: int) -> None:
    await store.tasks.create([a_task(topic=f"{n}") for n in range(MAX_TOPICS)])
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    requests = [ClaimRequest(f"{n}", shard, 1) for n in range(MAX_TOPICS) for shard in range(shards)]
    await store.redis.config_resetstat()
    assert sum(len(result.claims) for result in await claim(store, requests)) == MAX_TOPICS
    assert await count_claims(store) == shards


def group_sizes(targets: list[tuple[str, int, int]]) -> list[int]:
    """Return how many items each call takes of items with this topic, shard and number of tasks."""
    keys = Keys("later", 2)
    groups = group_topics([(keys.shards[shard], topic.encode(), tasks) for topic, shard, tasks in targets])
    positions = [position for group in groups for of_topic in group.topics.values() for position in of_topic]
    assert sorted(positions) == list(range(len(targets)))
    return [sum(map(len, group.topics.values())) for group in groups]


def test_a_call_takes_no_more_topics_and_tasks_than_it_may() -> None:
    assert group_sizes([(f"{n}", 0, 1) for n in range(MAX_TOPICS + 1)]) == [MAX_TOPICS, 1]
    assert group_sizes([(f"{n % MAX_TOPICS}", 0, 1) for n in range(MAX_TASKS + 3)]) == [MAX_TASKS, 3]
    assert group_sizes([(f"{n}", 0, MAX_TASKS // 2) for n in range(3)]) == [2, 1]
    assert group_sizes([(f"{n}", n % 2, MAX_TASKS) for n in range(4)]) == [1, 1, 1, 1]
    assert group_sizes([(f"{n}", n % 2, 1) for n in range(4)]) == [2, 2]


async def test_a_topic_requested_twice_is_served_once(store: StoreFixture) -> None:
    await store.tasks.create(tasks_of("a", 3))
    results = await claim(store, [ClaimRequest("a", 0, 1), ClaimRequest("a", 0, 5)], NOW + 5000)
    assert ids(results) == [["a-0"], []]
    assert [result.wake_at for result in results] == [NOW + 5000, NOW + 5000]
    await assert_sound(store, NOW + 5000)


async def test_a_held_topic_does_not_hold_the_others_of_its_call(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("held", 1), *tasks_of("open", 1), *tasks_of("paused", 1)])
    await hold_topic(store, "held", NOW + 60_000)
    await store.permits.hold_paused([("paused", 0)])
    requests = [ClaimRequest(topic, 0, 1) for topic in ("held", "open", "paused")]
    results = await claim(store, requests)
    assert ids(results) == [[], ["open-0"], []]
    assert [result.wake_at for result in results] == [NOW + 60_000, None, None]


async def test_a_topic_that_cannot_be_read_does_not_stop_the_others_of_its_call(store: StoreFixture) -> None:
    shard = store.keys.shards[0]
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 1), *tasks_of("c", 1)])
    await ask(store, [("SET", shard.bucket(Bucket.UNACK, b"a"), "no set")])
    await ask(store, [("DEL", shard.bucket(Bucket.DELAY, b"b")), ("SET", shard.bucket(Bucket.DELAY, b"b"), "no set")])
    requests = [ClaimRequest(topic, 0, 1) for topic in "abc"]
    *unreadable, claimed = await store.tasks.claim(requests, NOW, NOW + LEASE_MS)
    assert await store.redis.zcard(shard.bucket(Bucket.DELAY, b"a")) == 1  # nothing of it was moved
    assert [type(answer) for answer in unreadable] == [StoreFault, StoreFault]
    assert "WRONGTYPE" in str(unreadable[0])
    assert ids([unwrap_claim(claimed)]) == [["c-0"]]


async def test_each_topic_may_return_its_bytes_and_one_task_at_least(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.store.tasks.MAX_CLAIM_BYTES", 3 * 2500)
    await store.tasks.create([*tasks_of("large", 70, content="x" * 1000), *tasks_of("huge", 2, content="x" * 3500)])
    await store.tasks.create(tasks_of("small", 5))
    results = await claim(store, [ClaimRequest(t, 0, 90) for t in ("large", "huge", "small")], NOW + 70_000)
    assert ids(results) == [["large-0", "large-1"], ["huge-0"], [f"small-{n}" for n in range(5)]]
    assert [result.wake_at for result in results] == [NOW + 70_000, NOW + 70_000, None]
    await assert_sound(store, NOW + 70_000)


async def test_a_task_that_is_too_large_for_a_call_keeps_its_turn_and_is_claimed_in_the_next(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.store.tasks.MAX_CLAIM_BYTES", 3 * 2500)
    await store.tasks.create([*tasks_of("large", 9, content="x" * 1000), *tasks_of("huge", 2, content="x" * 9000)])
    await store.tasks.create(tasks_of("small", 2))
    results = await claim(store, [ClaimRequest(t, 0, 90) for t in ("large", "huge", "small")], NOW + 70_000)
    assert ids(results) == [["large-0", "large-1"], [], ["small-0", "small-1"]]
    assert [result.wake_at for result in results] == [NOW + 70_000, NOW + 70_000, None]
    contents = await assert_sound(store, NOW + 70_000)
    assert (contents.wakes[Bucket.DELAY, 0, "huge"], contents.wakes[Bucket.DELAY, 0, "large"]) == (NOW, NOW + 70_000)
    next_turn = await store.tasks.due_topics(Bucket.DELAY, 9)
    requests = [ClaimRequest(due.topic, 0, 90) for due in next_turn.topics]
    assert ids(await claim(store, requests, NOW + 70_001)) == [["huge-0"], []]


async def test_a_call_reads_no_more_large_bodies_than_it_may_return_and_a_few(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold up the store's other clients: a hundred topics may have a hundred large tasks each."""
    monkeypatch.setattr("later.store.tasks.MAX_CLAIM_BYTES", 100_000)
    for n in range(50):
        await store.tasks.create(tasks_of(f"t{n:02}", 3, delay=0, content="x" * 10_000))
    await store.client.execute("load", ("SCRIPT", "LOAD", CLAIM.source))
    await store.redis.config_resetstat()
    results = await claim(store, [ClaimRequest(f"t{n:02}", 0, 3) for n in range(50)], NOW + 1)
    assert sum(map(len, ids(results))) == 9
    assert (await store.redis.info("commandstats"))["cmdstat_hmget"]["calls"] == 2  # a slice, and the attempts
    claimed = set[str]()
    for turn in range(2, 7):
        due = await store.tasks.due_topics(Bucket.DELAY, 50)
        answers = await claim(store, [ClaimRequest(wake.topic, 0, 3) for wake in due.topics], NOW + turn)
        claimed.update(result.claims[0].topic for result in answers if result.claims)
    assert len(claimed - {f"t{n:02}" for n in range(9)}) == 41, "each topic has its turn before any has its second"


async def test_orphans_of_a_topic_cost_the_others_nothing(store: StoreFixture) -> None:
    shard = store.keys.shards[0]
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 2), *tasks_of("c", 1)])
    [in_flight] = await claim_due(store, topics=["c"])
    await _put_back(store, shard, in_flight)
    await ask(store, [("HDEL", shard.pool, pack_id("b-0"))])
    results = await claim(store, [ClaimRequest(topic, 0, 2) for topic in "abc"], NOW + 5000)
    assert ids(results) == [["a-0"], ["b-1"], []]
    assert [result.orphans for result in results] == [0, 1, 1]
    await assert_sound(store, NOW + 5000)
    assert await store.tasks.settle([done(in_flight)]) == [True]


async def test_a_call_that_claims_nothing_removes_stale_wake_entries(store: StoreFixture) -> None:
    shard = store.keys.shards[0]
    await ask(store, [("ZADD", shard.wakes[Bucket.DELAY], NOW, "a", NOW, "b")])
    assert ids(await claim(store, [ClaimRequest("a", 0, 1), ClaimRequest("b", 0, 1)])) == [[], []]
    assert (await read_contents(store)).wakes == {}
    assert await findings(store) == []


async def _put_back(store: StoreFixture, shard: Shard, claim: Claim) -> None:
    """Add an entry of a task in flight to delay, as no script does."""
    delay = shard.bucket(Bucket.DELAY, claim.topic.encode())
    await ask(store, [("ZADD", delay, NOW, claim.packed), ("ZADD", shard.wakes[Bucket.DELAY], NOW, claim.topic)])


async def test_one_call_settles_tasks_of_many_topics_each_by_its_own_verdict(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 3, delay=0), *tasks_of("b", 2), *tasks_of("c", 1), *tasks_of("d", 1)])
    claims = {claim.id: claim for claim in await claim_due(store, NOW + 5000)}
    settlements = [
        done(claims["a-0"], NOW + 7),
        failed(claims["b-0"], NOW + 60_000),
        died(claims["c-0"]),
        failed(claims["a-1"], NOW + 50_000),
        failed(claims["b-1"], NOW + 40_000),
        done(claims["d-0"]),
    ]
    assert await store.tasks.settle(settlements) == [True] * 6
    contents = await assert_sound(store, NOW + 5000)
    assert contents.buckets == {
        (Bucket.UNACK, "a"): {"a-2": NOW + 5000 + LEASE_MS},
        (Bucket.ERROR, "a"): {"a-1": NOW + 50_000},
        (Bucket.ERROR, "b"): {"b-0": NOW + 60_000, "b-1": NOW + 40_000},
        (Bucket.DEAD, "c"): {"c-0": NOW},
    }
    assert contents.wakes[Bucket.ERROR, 0, "b"] == NOW + 40_000
    assert contents.done == {"a-0": NOW + 7}
    assert contents.outcome.keys() == {"a-1", "b-0", "b-1", "c-0"}


async def test_a_lost_lease_of_one_topic_does_not_concern_the_others(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 1), *tasks_of("c", 1)])
    a, b, c = sorted(await claim_due(store), key=lambda claim: claim.id)
    late = replace(b, fence=b.fence + 17)
    assert await store.tasks.settle([done(late), done(a), failed(a, NOW + 9), done(c)]) == [False, True, False, True]
    assert (await assert_sound(store)).buckets == {(Bucket.UNACK, "b"): {"b-0": NOW + LEASE_MS}}


@pytest.mark.parametrize("bucket", [Bucket.UNACK, Bucket.ERROR, Bucket.DEAD])
async def test_a_topic_that_cannot_be_settled_does_not_stop_the_others_of_its_call(
    store: StoreFixture, bucket: Bucket
) -> None:
    await store.tasks.create([*tasks_of("a", 2, delay=0), *tasks_of("b", 1)])
    *broken, sound = sorted(await claim_due(store, NOW + 5000), key=lambda claim: claim.id)
    key = store.keys.shards[0].bucket(bucket, b"a")
    await ask(store, [("DEL", key), ("SET", key, "no set")])
    settlements = [failed(broken[0], NOW + 9), died(broken[1]), done(sound)]
    *errors, settled = await store.tasks.settle(settlements)
    assert [type(error) for error in errors] == [StoreFault, StoreFault]
    assert settled is True
    pool = await store.redis.hlen(store.keys.shards[0].pool)
    assert pool == 2  # nothing of the broken topic was changed


async def test_a_topic_whose_leases_cannot_be_read_does_not_stop_those_with_one_task_each(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 1), *tasks_of("c", 1)])
    a, b, c = sorted(await claim_due(store), key=lambda claim: claim.id)
    key = store.keys.shards[0].bucket(Bucket.UNACK, b"b")
    await ask(store, [("DEL", key), ("SET", key, "no set")])
    before, broken, after = await store.tasks.settle([done(a), done(b), failed(c, NOW + 9)])
    assert (before, type(broken), after) == (True, StoreFault, True)
    assert await store.redis.hlen(store.keys.shards[0].pool) == 2


async def test_a_lost_lease_in_a_topic_that_cannot_be_read_does_not_stop_the_others(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 1), *tasks_of("c", 1)])
    a, b, c = sorted(await claim_due(store), key=lambda claim: claim.id)
    key = store.keys.shards[0].bucket(Bucket.UNACK, b"b")
    await ask(store, [("DEL", key), ("SET", key, "no set")])
    late = replace(b, fence=b.fence + 17)
    before, broken, after = await store.tasks.settle([done(a), done(late), failed(c, NOW + 9)])
    assert (before, type(broken), after) == (True, StoreFault, True)
    [alone] = await store.tasks.settle([done(late)])
    assert isinstance(alone, StoreFault)
    await ask(store, [("DEL", key)])
    contents = await read_contents(store)
    assert (contents.pool, contents.buckets) == ({"b-0", "c-0"}, {(Bucket.ERROR, "c"): {"c-0": NOW + 9}})


async def test_topics_with_one_settled_task_each_keep_the_leases_of_their_others(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 2), *tasks_of("b", 1), *tasks_of("c", 2)])
    claims = {claim.id: claim for claim in await claim_due(store, NOW + 5000)}
    assert await store.tasks.settle([done(claims[id]) for id in ("a-0", "b-0", "c-0")]) == [True] * 3
    contents = await assert_sound(store, NOW + 5000)
    assert contents.buckets.keys() == {(Bucket.UNACK, "a"), (Bucket.UNACK, "c")}


async def test_a_call_that_settles_nothing_corrects_stale_wake_entries(store: StoreFixture) -> None:
    await store.tasks.create([*tasks_of("a", 1), *tasks_of("b", 1)])
    claims = await claim_due(store)
    await store.tasks.settle([done(claims[0])])
    wakes = store.keys.shards[0].wakes[Bucket.UNACK]
    await ask(store, [("ZADD", wakes, NOW, claims[0].topic, NOW, claims[1].topic)])
    late = [done(replace(claim, fence=1)) for claim in claims]
    assert await store.tasks.settle(late) == [False, False]
    await assert_sound(store)


async def test_a_store_at_maxmemory_goes_on_claiming_and_settling(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=f"{n}") for n in range(50)])
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in (CLAIM, SETTLE)])
    await store.redis.config_set("maxmemory", 1)
    try:
        claims = await claim_due(store, limit=1)
        assert len(claims) == 50
        nothing_due = await claim(store, [ClaimRequest("unknown", 0, 1), ClaimRequest("0", 0, 1)])
        assert ids(nothing_due) == [[], []]
        settlements = [done(replace(claims[0], fence=1)), *(failed(some, NOW + 9) for some in claims)]
        assert await store.tasks.settle(settlements) == [False] + [True] * 50
    finally:
        await store.redis.config_set("maxmemory", 0)
