"""Workers that share the shards of one store: each shard is looked at often enough, and all of them rarely enough."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import pytest

from later.core.errors import LaterError, NodeDown
from later.core.task import Task
from later.store.keys import Bucket, hash_tag
from later.store.tasks import Tasks
from later.store.types import ClaimRequest, WorkerSnapshot
from later.worker.shard_selector import LIST_MS, WorkerList
from later.worker.shard_sharing import ShardSharing
from tests.builders import NOW, a_task
from tests.store.away import tags_away
from tests.store_fixture import StoreFixture
from tests.worker.workers import TICK_MS, FakeSender, ManualWorker

BEAT_MS = 2000
SHARDS = 64


@pytest.fixture
def shards() -> int:
    return SHARDS


class Member:
    """A worker of a fleet, its sender, and its part in sharing shards."""

    def __init__(self, store: StoreFixture, number: int, slots: int) -> None:
        self.name = f"host-{number}:1:{number:04x}"
        self.sender = FakeSender()
        self.worker = ManualWorker(store, self.sender, slots=slots, instance=self.name)
        self.sharing = ShardSharing(self.worker.store, self.name, self.worker.shard_selector)
        self.offset_ms = number * 37 % TICK_MS
        """How much later than others its ticks are."""

    @property
    def workers(self) -> set[str]:
        """The workers that this one knows, by its last heartbeat."""
        return {*self.sharing.owned}

    async def beat(self, now: int) -> None:
        self.worker.at = now
        await self.sharing.beat(now)

    async def tick(self, now: int) -> None:
        self.worker.at = now + self.offset_ms
        await self.worker.claimer.tick(now + self.offset_ms)


class Fleet:
    """Workers whose heartbeats and ticks a test runs, at times that it sets."""

    def __init__(self, store: StoreFixture, count: int, monkeypatch: pytest.MonkeyPatch, slots: int = 20) -> None:
        self.store = store
        self.members = [Member(store, number, slots) for number in range(count)]
        self.at = NOW
        self.looks: dict[int, list[int]] = defaultdict(list)
        """When each shard was looked at."""
        self._looked_at = NOW
        self._count_looks(monkeypatch)

    def _count_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = Tasks.worker_snapshot

        async def count(
            tasks: Tasks, limit: int, *, held: bool = True, shards: Sequence[int] | None = None
        ) -> WorkerSnapshot:
            for shard in range(SHARDS) if shards is None else shards:
                self.looks[shard].append(self._looked_at)
            return await read(tasks, limit, held=held, shards=shards)

        monkeypatch.setattr(Tasks, "worker_snapshot", count)

    async def start(self) -> None:
        """Let all workers look once, and know each other."""
        await self.tick_all()
        for _ in range(2):
            await self.beat_all()
        self.looks.clear()

    async def run(self, ms: int) -> None:
        """Run all ticks and heartbeats of the next `ms`, and end the deliveries that may end."""
        for _ in range(ms // TICK_MS):
            self.at += TICK_MS
            if (self.at - NOW) % BEAT_MS == 0:
                await self.beat_all()
            await self.tick_all()

    async def beat_all(self) -> None:
        for member in self.members:
            await member.beat(self.at)

    async def tick_all(self) -> None:
        for member in sorted(self.members, key=lambda member: member.offset_ms):
            self._looked_at = self.at + member.offset_ms
            await member.tick(self.at)
        await asyncio.sleep(0)

    def longest_gap_ms(self) -> int:
        """Return for how long, at most, nobody looked at some shard."""
        return max(
            max(after - before for before, after in pairwise(looks))
            for looks in (sorted(self.looks[shard]) for shard in range(SHARDS))
        )

    def lateness_ms(self, tasks: Sequence[Task]) -> list[int]:
        """Return how late each of these tasks was delivered. All of them were, once."""
        calls = {call.id: call.at for member in self.members for call in member.sender.calls}
        return [calls[task.id] - task.execute_at for task in tasks]

    async def create_in_each_shard(self, due_at: int) -> list[Task]:
        tasks: dict[int, Task] = {}
        while len(tasks) < SHARDS:
            task = a_task(created_at=self.at, execute_at=due_at)
            tasks.setdefault(self.store.keys.shard_of(task.id).index, task)
        assert set(await self.store.tasks.create([*tasks.values()])) == {True}
        return [*tasks.values()]

    async def create_in_one_shard(self, count: int, shard: int = 0) -> list[Task]:
        tasks: list[Task] = []
        while len(tasks) < count:
            task = a_task(created_at=self.at, execute_at=self.at)
            if self.store.keys.shard_of(task.id).index == shard:
                tasks.append(task)
        assert set(await self.store.tasks.create(tasks)) == {True}
        return tasks


async def test_idle_workers_look_at_each_shard_within_200_ms_and_rarely_in_all(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch)
    await fleet.start()
    await fleet.run(3000)
    assert fleet.longest_gap_ms() <= 200
    assert sum(map(len, fleet.looks.values())) < 3 * SHARDS * 10 * 3
    assert max(member.worker.shard_selector.owned for member in fleet.members) <= 7


async def test_after_half_of_the_workers_vanished_tasks_are_late_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch)
    await fleet.start()
    fleet.members = fleet.members[::2]
    soon = await fleet.create_in_each_shard(NOW + 500)
    await fleet.run(8000)
    later = await fleet.create_in_each_shard(fleet.at + 500)
    await fleet.run(1000)
    assert max(fleet.lateness_ms(soon)) <= 3000
    assert max(fleet.lateness_ms(later)) <= 200
    assert {len(member.workers) for member in fleet.members} == {10}


async def test_workers_that_disagree_on_who_lives_miss_no_shard(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    first, second, *others = fleet.members
    await store.redis.zrem(store.keys.shard_workers, *(member.name for member in others))
    await first.beat(fleet.at)
    await store.redis.zadd(store.keys.shard_workers, {f"ghost-{number}": NOW for number in range(6)})
    await second.beat(fleet.at)
    fleet.members = [first, second]
    tasks = await fleet.create_in_each_shard(NOW + 100)
    await fleet.run(6500)
    assert max(fleet.lateness_ms(tasks)) <= 6400


async def test_one_topic_in_one_shard_is_taken_by_all_workers(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch, slots=4)
    await fleet.start()
    for member in fleet.members:
        member.sender.may_answer.clear()
    await fleet.create_in_one_shard(200)
    await fleet.run(7000)
    assert all(member.worker.fair_share.total_in_use for member in fleet.members)
    for member in fleet.members:
        member.sender.may_answer.set()
        await member.worker.deliveries.drain(60)


async def test_the_census_lets_idle_workers_take_a_backlog_at_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch, slots=4)
    await fleet.start()
    for member in fleet.members:
        member.sender.may_answer.clear()
    await fleet.create_in_one_shard(200)
    fleet.at += 3000
    await store.redis.hset(store.keys.snapshot, "oldest", f"{fleet.at} {NOW}")
    await fleet.beat_all()
    await fleet.run(300)
    assert all(member.worker.fair_share.total_in_use for member in fleet.members)
    for member in fleet.members:
        member.sender.may_answer.set()
        await member.worker.deliveries.drain(60)


async def test_a_task_that_this_process_has_created_is_claimed_at_once_in_any_shard(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch)
    await fleet.start()
    fleet.at += TICK_MS
    [member, *_] = fleet.members
    await member.tick(fleet.at)
    tasks = await fleet.create_in_each_shard(fleet.at)
    member.worker.note_due(fleet.at, [task.id for task in tasks])
    member.worker.fair_share.slots = member.worker.fair_share.free = 200
    await member.tick(fleet.at)
    await member.worker.deliveries.drain(60)
    assert {call.id for call in member.sender.calls} == {task.id for task in tasks}


async def test_workers_with_free_slots_do_without_those_whose_slots_are_full(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch, slots=100)
    await fleet.start()
    full, free = fleet.members[:15], fleet.members[15:]
    for member in full:
        member.worker.fair_share.free = 0
    await fleet.run(3 * BEAT_MS)
    tasks = await fleet.create_in_each_shard(fleet.at + 500)
    await fleet.run(1000)
    assert max(fleet.lateness_ms(tasks)) <= 200
    assert all(len(member.workers) == 5 for member in free)
    assert max(member.worker.shard_selector.owned for member in full) <= 7
    for member in full:
        member.worker.fair_share.free = 100
    await fleet.run(2 * BEAT_MS)
    assert all(len(member.workers) == 20 for member in fleet.members)


# Faults


async def test_a_worker_whose_looks_fail_is_left_out_by_others_while_it_beats(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    failing, *others = fleet.members
    fleet.members = others
    for _ in range(4):
        await fleet.run(BEAT_MS)
        await failing.beat(fleet.at)
    assert await store.redis.zscore(store.keys.shard_workers, failing.name) is None
    assert all(failing.name not in member.workers for member in others)


async def test_workers_look_at_all_shards_when_the_list_cannot_be_read(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    await store.redis.set(store.keys.shard_workers, "no sorted set")
    [member, *_] = fleet.members
    with pytest.raises(LaterError):
        await member.beat(fleet.at)
    fleet.looks.clear()
    await member.tick(NOW + LIST_MS)
    assert len(fleet.looks) == SHARDS


async def test_workers_go_on_with_their_list_while_only_the_node_that_has_it_is_away(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch)
    await fleet.start()
    first, late, *_ = fleet.members
    for member, at in [*((first, NOW + BEAT_MS * number) for number in range(1, 20)), (late, NOW + 60_000)]:
        with tags_away(store.client, [hash_tag(store.keys.shard_workers)]), pytest.raises(NodeDown):
            await member.beat(at)
        await member.tick(at)
        assert (member.worker.shard_selector.owned == SHARDS) == (member is late)


async def test_workers_look_at_all_shards_after_the_clock_was_moved(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    for moved_ms in (-20_000, 20_000):
        for member in fleet.members:
            fleet.looks.clear()
            await member.tick(NOW + moved_ms)
            assert len(fleet.looks) == SHARDS


async def test_beside_workers_of_an_older_version_each_task_is_delivered_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    older, *members = fleet.members
    await store.redis.delete(store.keys.shard_workers)
    older.worker.shard_selector.use_list(None, None)
    tasks = await fleet.create_in_each_shard(NOW + 100)
    for _ in range(3):
        fleet.members = members
        await fleet.beat_all()
        await store.stats.heartbeat(older.name, fleet.at)
        fleet.members = [older, *members]
        await fleet.run(500)
    assert sorted(call.id for member in fleet.members for call in member.sender.calls) == sorted(
        task.id for task in tasks
    )
    assert all(older.name not in member.workers for member in members)


async def test_a_worker_that_stops_leaves_its_shards_to_others_at_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    leaving, *others = fleet.members
    await leaving.sharing.leave()
    await leaving.beat(NOW)
    for member in others:
        await member.beat(NOW)
    assert all(leaving.name not in member.workers for member in others)


async def test_leases_that_end_in_shards_whose_owners_hang_are_requeued(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 6, monkeypatch)
    await fleet.start()
    await fleet.create_in_each_shard(NOW)
    due = await store.tasks.due_topics(Bucket.DELAY, 10)
    await store.tasks.claim([ClaimRequest(topic, shard, 10) for _, topic, shard in due.topics], NOW, NOW + 500)
    working, *hanging = fleet.members
    for _ in range(65):
        fleet.at += TICK_MS
        for member in hanging:
            member.worker.shard_selector.looked_at = fleet.at
        if (fleet.at - NOW) % BEAT_MS == 0:
            await fleet.beat_all()
        await working.tick(fleet.at)
        await working.worker.upkeep.unack_requeuer.tick(fleet.at)
    assert working.worker.shard_selector.owned < SHARDS
    await working.worker.deliveries.drain(60)
    assert (await store.tasks.worker_snapshot(1)).unack_at is None


async def test_a_task_whose_lease_ended_in_a_shard_whose_owners_hang_is_claimed_in_the_next_tick(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch)
    await fleet.start()
    [member, *_] = fleet.members
    await fleet.create_in_each_shard(NOW)
    due = await store.tasks.due_topics(Bucket.DELAY, 10)
    await store.tasks.claim([ClaimRequest(topic, shard, 1) for _, topic, shard in due.topics], NOW, NOW + 50)
    fleet.at += TICK_MS
    await member.tick(fleet.at)
    await member.worker.upkeep.unack_requeuer.tick(fleet.at)
    await member.tick(fleet.at + 1)
    await member.worker.deliveries.drain(60)
    owned = member.worker.shard_selector.owned
    assert len(member.sender.calls) > owned
    assert (await store.tasks.due_topics(Bucket.DELAY, 10)).topics == []


async def test_turns_find_topics_whose_holds_have_ended_at_whichever_ticks_they_come(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(store, 20, monkeypatch, slots=200)
    await fleet.start()
    [member, *_] = fleet.members
    tasks = await fleet.create_in_each_shard(NOW)
    for shard in store.keys.shards:
        await store.redis.zadd(shard.wakes[Bucket.DELAY], {tasks[0].topic: -(NOW + 10)})
    selector = member.worker.shard_selector
    for number in range(1, 140):
        now = NOW + 50 * number
        selector.use_list(WorkerList(20, member.sharing.owned[member.name], now), None)
        await member.worker.claimer.tick(now)
    await member.worker.deliveries.drain(60)
    assert len(member.sender.calls) == SHARDS
