"""The number of store commands of each verb. No verb runs a command for each task of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from later.core.clock import Interval
from later.core.edit import TaskChanges
from later.core.if_exists import Upsert
from later.core.lease import Lease
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.task import Task
from later.store.keys import Bucket
from later.store.pull_plan import PullRequest, PullResult, PullTopic
from later.store.scan import Scanner, ScanRange
from later.store.scripts import BY_SHA
from later.store.types import BucketRange, TaskEdit
from tests.builders import NOW, a_task
from tests.store.inspection import LEASE_MS, claim_due, died, done, failed, list_page, release_due
from tests.store_fixture import StoreFixture

Counts = dict[str, int]
Verb = Callable[[StoreFixture, list[Task]], Awaitable[Counts]]

OWN_COMMANDS = {"info", "config|resetstat"}
"""The commands of this test itself."""


@pytest.fixture
def shards() -> int:
    """Return 1: the number of commands grows with the shards that a batch touches, not with its tasks."""
    return 1


async def commands_of(store: StoreFixture, act: Callable[[], Awaitable[Any]]) -> Counts:
    """Return how often the store ran each command during `act`, including those of its scripts."""
    await store.redis.config_resetstat()
    await act()
    stats: dict[str, dict[str, int]] = await store.redis.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    return {name: calls for name, calls in counts.items() if name not in OWN_COMMANDS and calls}


async def creating(store: StoreFixture, tasks: list[Task]) -> Counts:
    return await commands_of(store, lambda: store.tasks.create(tasks))


async def creating_own(store: StoreFixture, tasks: list[Task]) -> Counts:
    return await creating(store, [msgspec.structs.replace(task, own_id=True) for task in tasks])


async def claiming(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: claim_due(store))


async def claiming_one_of_each_topic(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: claim_due(store, limit=1))


async def pull(store: StoreFixture) -> list[Lease]:
    """Pull all due tasks, and return their leases."""
    [result] = await store.pulls.claim([PullRequest([PullTopic("order", 500, LEASE_MS)], 500)], Interval(NOW, NOW))
    assert isinstance(result, PullResult)
    return [task.lease for task in result.tasks]


async def pulling(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: pull(store))


async def pulling_nothing(store: StoreFixture, tasks: list[Task]) -> Counts:
    request = PullRequest([PullTopic("order", 500, LEASE_MS)], 500)
    return await commands_of(store, lambda: store.pulls.claim([request] * 100, Interval(NOW, NOW)))


async def looking_at_topics_without_tasks(store: StoreFixture, tasks: list[Task]) -> Counts:
    topics = [f"idle{n}" for n in range(1000)]
    return await commands_of(store, lambda: store.pulls.due_topics(topics, NOW))


async def acking(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    leases = await pull(store)
    return await commands_of(store, lambda: store.pulls.ack(leases, NOW))


async def releasing_leases(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    leases = await pull(store)
    return await commands_of(store, lambda: store.pulls.release(leases))


async def extending(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    leases = await pull(store)
    return await commands_of(store, lambda: store.pulls.extend(leases, NOW + 2 * LEASE_MS))


async def claim_together(store: StoreFixture) -> str:
    """Claim all due tasks under one id, and return it."""
    return (await store.claim_records.claim("order", LEASE_MS, LEASE_MS, 100, Interval(NOW, NOW))).tasks[0].claim_id


async def claiming_together(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: claim_together(store))


async def reading_a_claim(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    claim_id = await claim_together(store)
    await store.claim_records.read("order", claim_id, Interval(NOW, NOW))  # opens a second connection
    return await commands_of(store, lambda: store.claim_records.read("order", claim_id, Interval(NOW, NOW)))


async def extending_a_claim(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    claim_id, now = await claim_together(store), Interval(NOW, NOW)
    return await commands_of(store, lambda: store.claim_records.update("order", claim_id, LEASE_MS, LEASE_MS, now))


async def releasing_a_claim(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    claim_id = await claim_together(store)
    return await commands_of(store, lambda: store.claim_records.release("order", claim_id, Interval(NOW, NOW)))


async def settling_done(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    settlements = [done(claim) for claim in await claim_due(store)]
    return await commands_of(store, lambda: store.tasks.settle(settlements))


async def settling_failed(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    settlements = [failed(claim, NOW + 10_000) for claim in await claim_due(store)]
    return await commands_of(store, lambda: store.tasks.settle(settlements))


async def moving_dead(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    settlements = []
    for claim in await claim_due(store):
        settlement = died(claim)
        assert isinstance(claim.task, Task)
        moved = msgspec.structs.replace(claim.task, topic="failed")
        settlements.append(settlement._replace(verdict=msgspec.structs.replace(settlement.verdict, moved=moved)))
    return await commands_of(store, lambda: store.dead_letter_topics.settle(settlements))


async def releasing(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    await claim_due(store)
    return await commands_of(store, lambda: release_due(store, Bucket.UNACK, NOW + LEASE_MS))


async def querying(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    await store.lookup.query([tasks[0].id])  # otherwise their topic would have to be found out
    return await commands_of(store, lambda: store.lookup.query([task.id for task in tasks]))


async def querying_another_topic(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create([a_task(id="other", topic="other"), *tasks])
    await store.lookup.query(["other"])
    return await commands_of(store, lambda: store.lookup.query([task.id for task in tasks]))


def upserting(changes: TaskChanges, *, exist: bool = True) -> Verb:
    async def upsert(store: StoreFixture, tasks: list[Task]) -> Counts:
        await store.tasks.create(tasks if exist else [])
        upserts = [Upsert(task, changes, Policies(Policy())) for task in tasks]
        return await commands_of(store, lambda: store.upserts.upsert(upserts))

    return upsert


async def deleting(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: store.edits.delete([task.id for task in tasks]))


def editing(changes: TaskChanges) -> Verb:
    async def edit(store: StoreFixture, tasks: list[Task]) -> Counts:
        await store.tasks.create(tasks)
        edits = [TaskEdit(task.id, changes, Policies(Policy()), NOW) for task in tasks]
        return await commands_of(store, lambda: store.edits.update(edits))

    return edit


async def running_now(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: store.edits.run_now([task.id for task in tasks], NOW))


async def redriving(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    await store.tasks.settle([died(claim) for claim in await claim_due(store)])
    dead = BucketRange("order", Bucket.DEAD)
    return await commands_of(store, lambda: store.dead_letters.redrive(dead, now=NOW + 1))


async def purging(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: store.dead_letters.purge([BucketRange("order", Bucket.DELAY)]))


async def listing(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    return await commands_of(store, lambda: list_page(store, BucketRange("order", Bucket.DELAY), 1000))


async def exporting(store: StoreFixture, tasks: list[Task]) -> Counts:
    await store.tasks.create(tasks)
    scanner = Scanner(store.client, store.keys)
    [split] = await scanner.split(ScanRange("order", (Bucket.DELAY,)), 1000)
    return await commands_of(store, lambda: anext(scanner.read([split])))


@pytest.fixture(autouse=True)
async def scripts(store: StoreFixture) -> None:
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])


@pytest.mark.parametrize(
    ("verb", "counts"),
    [
        (creating, {"evalsha": 1, "hset": 1, "zadd": 3}),
        (claiming, {
            "zrange": 3, "evalsha": 1, "zrangebyscore": 1, "hmget": 3, "zmscore": 2, "zrem": 1, "del": 1,
            "zadd": 2, "hset": 1,
        }),
        (settling_done, {
            "evalsha": 1, "zrem": 3, "hmget": 1, "zmscore": 2, "hdel": 2, "zrange": 1, "exists": 1,
        }),
        (settling_failed, {
            "evalsha": 1, "zrem": 2, "hmget": 1, "zmscore": 3, "hset": 1, "zadd": 2, "zrange": 2, "exists": 1,
        }),
        (moving_dead, {
            "evalsha": 1, "hmget": 1, "zmscore": 4, "zcard": 1, "zrem": 5, "zrange": 1, "hdel": 2, "hset": 1, "zadd": 3,
            "publish": 1,
        }),
        (creating_own, {"evalsha": 1, "hmget": 1, "zmscore": 1, "hset": 1, "zadd": 3}),
        (releasing, {"zrange": 2, "evalsha": 1, "zrangebyscore": 1, "zrem": 3, "zadd": 2}),
        (querying, {"evalsha": 1, "hmget": 3, "zmscore": 5}),
        (querying_another_topic, {"evalsha": 2, "hmget": 6, "zmscore": 10}),
        (editing(TaskChanges(content="b")), {"hmget": 7, "evalsha": 2, "zmscore": 7, "hset": 1}),
        (editing(TaskChanges(delay=9, ttl=99)), {
            "hmget": 7, "evalsha": 2, "zmscore": 7, "hset": 1, "zrem": 1, "zadd": 4, "zrange": 2, "zscore": 1,
        }),
        (upserting(TaskChanges(), exist=False), {
            "evalsha": 2, "hmget": 6, "zmscore": 4, "hset": 1, "zrem": 1, "zadd": 3,
        }),
        (upserting(TaskChanges(content="b")), {"evalsha": 2, "hmget": 6, "zmscore": 4, "hset": 1}),
        (upserting(TaskChanges(delay=9)), {
            "evalsha": 2, "hmget": 6, "zmscore": 4, "hset": 1, "zrem": 1, "zadd": 3, "zrange": 2, "zscore": 1,
        }),
        (running_now, {"hmget": 7, "evalsha": 2, "zrem": 2, "zmscore": 7, "zadd": 2, "zrange": 1}),
        (redriving, {
            "hmget": 6, "evalsha": 4, "zcount": 6, "zrange": 2, "zrem": 3, "zmscore": 5, "hdel": 2, "zadd": 2,
        }),
        (purging, {"evalsha": 1, "zrangebyscore": 1, "zrem": 3, "hdel": 3, "zrange": 2, "zscore": 1}),
        (listing, {"evalsha": 2, "zcount": 2, "zrange": 1, "hmget": 6, "zmscore": 5}),
        (exporting, {"evalsha": 1, "zcount": 2, "zrange": 1, "hmget": 11}),
        (pulling, {
            "evalsha": 1, "zrangebyscore": 1, "zrange": 1, "hmget": 3, "zmscore": 2, "zrem": 1, "del": 1, "zadd": 3,
            "hset": 1,
        }),
        (pulling_nothing, {"evalsha": 1, "zrangebyscore": 1, "zrange": 1, "zmscore": 2}),
        (looking_at_topics_without_tasks, {"exists": 32}),
        (acking, {"evalsha": 1, "zrem": 2, "hmget": 1, "zmscore": 2, "hdel": 2, "zrange": 1}),
        (releasing_leases, {
            "evalsha": 1, "zrem": 3, "hmget": 1, "zmscore": 1, "hdel": 1, "zrange": 1, "zadd": 2, "publish": 1,
        }),
        (extending, {"evalsha": 1, "zrem": 2, "hmget": 1, "zmscore": 1, "zrange": 1, "zadd": 2}),
        (claiming_together, {
            "evalsha": 1, "zrangebyscore": 1, "zrange": 1, "hmget": 3, "zmscore": 3, "zrem": 1, "del": 1, "zadd": 3,
            "hset": 2, "pexpire": 1,
        }),
        (reading_a_claim, {"hgetall": 1, "evalsha": 1, "hmget": 3, "zmscore": 6}),
        (extending_a_claim, {
            "hgetall": 1, "evalsha": 1, "zrem": 2, "hmget": 1, "zmscore": 1, "zrange": 1, "exists": 1, "zadd": 3,
            "hset": 1, "pexpire": 1,
        }),
        (releasing_a_claim, {
            "hgetall": 1, "evalsha": 1, "zrem": 3, "hmget": 1, "zmscore": 1, "hdel": 1, "zrange": 1, "zadd": 2,
            "publish": 1, "del": 1,
        }),
        (deleting, {"hmget": 5, "zmscore": 1, "evalsha": 2, "hdel": 3, "zrem": 5, "zrange": 2, "zscore": 1}),
    ],
)  # fmt: skip
async def test_a_batch_takes_these_commands(store: StoreFixture, verb: Verb, counts: Counts) -> None:
    assert await verb(store, [a_task(id=f"t{n}") for n in range(100)]) == counts


@pytest.mark.parametrize(
    "verb",
    [
        creating,
        creating_own,
        claiming,
        settling_done,
        settling_failed,
        moving_dead,
        releasing,
        querying,
        deleting,
        editing(TaskChanges(delay=9)),
        upserting(TaskChanges(delay=9)),
        running_now,
        redriving,
        purging,
        listing,
    ],
)
async def test_no_command_is_made_for_each_task(store: StoreFixture, verb: Verb) -> None:
    few = await verb(store, [a_task(id=f"few{n}") for n in range(25)])  # bodies are read in steps of 8, 16, 32, …
    await store.redis.flushdb()
    assert await verb(store, [a_task(id=f"many{n}") for n in range(50)]) == few


@pytest.mark.parametrize(
    ("verb", "per_topic", "per_call"),
    [
        (claiming_one_of_each_topic, {"zrange": 1, "zadd": 1}, {
            "evalsha": 1, "zmscore": 2, "hmget": 2, "hset": 1, "zrem": 1, "del": 1, "zadd": 1, "zrange": 2,
        }),
        (settling_done, {"zrem": 1}, {
            "evalsha": 1, "hmget": 1, "zrem": 2, "hdel": 2, "zmscore": 1, "exists": 2,
        }),
        (settling_failed, {"zrem": 1, "zrange": 1, "zadd": 1}, {
            "evalsha": 1, "hmget": 1, "zrem": 1, "hset": 1, "zadd": 1, "zmscore": 2, "exists": 2,
        }),
    ],
)  # fmt: skip
async def test_topics_of_a_shard_share_what_does_not_concern_one_of_them(
    store: StoreFixture, verb: Verb, per_topic: Counts, per_call: Counts
) -> None:
    expected = Counter(per_call) + Counter({name: calls * 20 for name, calls in per_topic.items()})
    assert await verb(store, [a_task(topic=f"{n}") for n in range(20)]) == expected


@pytest.mark.parametrize(
    ("tasks", "topics", "most"), [(1, 1, 28), (100, 1, 31), (100, 100, 821)], ids=["alone", "one-topic", "many-topics"]
)
async def test_the_life_of_a_task_takes_few_commands(store: StoreFixture, tasks: int, topics: int, most: int) -> None:
    async def live() -> None:
        await store.tasks.create([a_task(topic=f"{n % topics}") for n in range(tasks)])
        claims = await claim_due(store, limit=tasks // topics)
        await store.tasks.settle([done(claim) for claim in claims])

    assert sum((await commands_of(store, live)).values()) <= most
