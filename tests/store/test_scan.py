"""Scans: every task is in exactly one split, whatever its bucket, and large tasks are read a few at a time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest

from later.core.errors import UnreadableBody
from later.core.task import Task, pack_id
from later.store import scan as scan_module
from later.store.codec import MAX_BODIES
from later.store.keys import Bucket
from later.store.scan import MAX_BYTES, Position, Scanner, ScanRange, ScanSplit, batch_splits
from later.store.types import TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import ask, claim_due, died, failed
from tests.store_fixture import StoreFixture

ALL = ScanRange(None, tuple(Bucket))
DELAYED = ScanRange("order", (Bucket.DELAY,))


@pytest.fixture
def scanner(store: StoreFixture) -> Scanner:
    return Scanner(store.client, store.keys)


async def create(store: StoreFixture, delays: Iterable[float], **changes: Any) -> list[Task]:
    tasks = [a_task(delay=delay, **changes) for delay in delays]
    await store.tasks.create(tasks)
    return tasks


async def read(scanner: Scanner, splits: Sequence[ScanSplit]) -> list[TaskRecord]:
    return [found async for some in scanner.read(splits) for found in some]


def ids_of(tasks: Iterable[Task | TaskRecord]) -> list[str]:
    return sorted(task.id for task in tasks)


async def create_in_each_state(store: StoreFixture) -> dict[Bucket, list[str]]:
    """Create some tasks in each state, of two topics; return their ids."""
    await create(store, [60] * 12, topic="mail")
    dead = await create(store, [0] * 8)
    claims = {claim.id: claim for claim in await claim_due(store)}
    await store.tasks.settle([died(claims[task.id], NOW + n) for n, task in enumerate(dead)])
    errors = await create(store, [0] * 7)
    claims = {claim.id: claim for claim in await claim_due(store)}
    await store.tasks.settle([failed(claims[task.id], NOW + 9) for task in errors])
    unack = await create(store, [0] * 6)
    await claim_due(store)
    await create(store, [60] * 5)
    found = await store.lookup.query(ids_of([*dead, *errors, *unack]))
    assert {one.state for one in found if isinstance(one, TaskRecord)} == {Bucket.DEAD, Bucket.ERROR, Bucket.UNACK}
    return {Bucket.DEAD: ids_of(dead), Bucket.ERROR: ids_of(errors), Bucket.UNACK: ids_of(unack)}


class TestWholeRange:
    async def test_an_empty_store_has_no_splits(self, scanner: Scanner) -> None:
        assert await scanner.split(ALL, 10) == []
        assert await scanner.split(DELAYED, 10) == []

    @pytest.mark.parametrize("size", [1, 3, 1000])
    async def test_every_task_of_every_topic_and_state_is_in_one_split(
        self, store: StoreFixture, scanner: Scanner, size: int
    ) -> None:
        await create_in_each_state(store)
        found = await read(scanner, await scanner.split(ALL, size))
        assert len(found) == 12 + 8 + 7 + 6 + 5
        assert sorted(found, key=lambda one: one.id) == await store.lookup.query(ids_of(found))

    async def test_splits_of_a_topic_and_a_state_hold_no_others(self, store: StoreFixture, scanner: Scanner) -> None:
        expected = await create_in_each_state(store)
        for bucket, ids in expected.items():
            assert ids_of(await read(scanner, await scanner.split(ScanRange("order", (bucket,)), 3))) == ids
            assert ids_of(await read(scanner, await scanner.split(ScanRange(None, (bucket,)), 3))) == ids
        assert await scanner.split(ScanRange("nowhere", tuple(Bucket)), 3) == []

    async def test_splits_are_in_the_order_of_topics_states_shards_and_times(
        self, store: StoreFixture, scanner: Scanner
    ) -> None:
        await create_in_each_state(store)
        order = list(Bucket)
        splits = await scanner.split(ALL, 2)
        positions = [(split.topic, order.index(split.bucket), split.shard, split.after or ()) for split in splits]
        assert positions == sorted(positions)
        assert {split.topic for split in splits} == {"mail", "order"}

    async def test_bounds_are_from_and_below(self, store: StoreFixture, scanner: Scanner) -> None:
        tasks = await create(store, [1, 2, 2, 3, 4])
        for size in (1, 10):
            splits = await scanner.split(DELAYED._replace(since=NOW + 2000, before=NOW + 4000), size)
            assert ids_of(await read(scanner, splits)) == ids_of(tasks[1:4])
        assert await scanner.split(DELAYED._replace(since=NOW + 3000, before=NOW + 3000), 1) == []

    async def test_the_tasks_of_a_paused_topic_are_scanned_too(self, store: StoreFixture, scanner: Scanner) -> None:
        tasks = await create(store, [5])
        shard = store.keys.shard_of(tasks[0].id)
        await ask(store, [("ZADD", shard.wakes[Bucket.DELAY], "-inf", "order")])
        assert ids_of(await read(scanner, await scanner.split(ALL, 10))) == ids_of(tasks)


class TestSplits:
    @pytest.mark.parametrize("same_time", [True, False])
    async def test_splits_are_about_as_large_as_asked_and_say_so(
        self, store: StoreFixture, scanner: Scanner, same_time: bool
    ) -> None:
        rng = random.Random(3)
        await create(store, [60 if same_time else rng.randrange(120) for _ in range(3000)])
        splits = await scanner.split(DELAYED, 40)
        for split in splits:
            found = await read(scanner, [split])
            assert len(found) == split.tasks
            assert 20 <= len(found) <= 60
        assert sum(split.tasks for split in splits) == 3000

    async def test_a_bucket_of_many_splits_takes_several_calls(
        self, store: StoreFixture, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan_module, "MAX_SPLITS", 2)
        tasks = await create(store, [1] * 210)
        splits = await scanner.split(DELAYED, 3)
        assert {split.tasks for split in splits} <= {2, 3, 4}
        assert ids_of(await read(scanner, splits)) == ids_of(tasks)

    async def test_there_is_no_empty_split_after_the_last_position(
        self, store: StoreFixture, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan_module, "MAX_SPLITS", 1)
        tasks = await create(store, [1] * 64)
        splits = await scanner.split(DELAYED, 1)
        assert [split.tasks for split in splits] == [1] * 64
        assert ids_of(await read(scanner, splits)) == ids_of(tasks)

    async def test_many_buckets_are_split_some_at_a_time(
        self, store: StoreFixture, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan_module, "BUCKETS_AT_ONCE", 7)
        tasks = [a_task(topic=f"topic-{n}") for n in range(50)]
        await store.tasks.create(tasks)
        splits = await scanner.split(ALL, 10)
        assert [split.topic for split in splits] == sorted(task.topic for task in tasks)
        assert ids_of(await read(scanner, splits)) == ids_of(tasks)

    async def test_ids_of_callers_are_split_by_their_bytes_among_those_of_later(
        self, store: StoreFixture, scanner: Scanner
    ) -> None:
        own = [a_task(id=id, delay=1) for id in ("a", "A", "a-", "a.b", "~", "ab", "9", "a" * 128)]
        await store.tasks.create(own)
        tasks = [*own, *await create(store, [1] * 20)]
        splits = await scanner.split(DELAYED, 1)
        assert ids_of(await read(scanner, splits)) == ids_of(tasks)
        for split in splits:
            after, up_to = split.after, split.up_to
            [found] = await read(scanner, [split])
            assert after is None or after.packed < pack_id(found.id)
            assert up_to is None or up_to.packed == pack_id(found.id)


class TestReading:
    async def test_a_body_that_cannot_be_decoded_is_returned_as_its_error(
        self, store: StoreFixture, scanner: Scanner
    ) -> None:
        [task] = await create(store, [1])
        await ask(store, [("HSET", store.keys.shard_of(task.id).pool, pack_id(task.id), b"\xc1")])
        [found] = await read(scanner, await scanner.split(ALL, 10))
        assert (found.id, found.topic, found.state, found.score) == (task.id, "order", Bucket.DELAY, NOW + 1000)
        assert isinstance(found.task, UnreadableBody)

    async def test_an_entry_without_a_body_is_no_task(self, store: StoreFixture, scanner: Scanner) -> None:
        tasks = await create(store, [1] * 5)
        await ask(store, [("HDEL", store.keys.shard_of(tasks[0].id).pool, pack_id(tasks[0].id))])
        assert ids_of(await read(scanner, await scanner.split(ALL, 10))) == ids_of(tasks[1:])

    @pytest.mark.parametrize("same_time", [True, False])
    async def test_a_task_that_stays_is_read_once(self, store: StoreFixture, scanner: Scanner, same_time: bool) -> None:
        rng = random.Random(7)
        delays = [60 if same_time else rng.randrange(120) for _ in range(400)]
        staying_tasks, others = await create(store, delays), await create(store, delays)
        seen: list[str] = []
        splits = await scanner.split(DELAYED, 30)
        async for some in read_with_changes(store, scanner, splits, others):
            seen += [found.id for found in some]
        staying = {task.id for task in staying_tasks}
        assert sorted(id for id in seen if id in staying) == sorted(staying)
        assert len(set(seen)) == len(seen)

    async def test_a_task_that_left_its_bucket_since_the_split_is_not_read_there(
        self, store: StoreFixture, scanner: Scanner
    ) -> None:
        tasks = await create(store, [0] * 40)
        splits = await scanner.split(DELAYED, 10)
        claimed = [claim.id for claim in await claim_due(store)]
        assert len(claimed) == len(tasks)
        assert await read(scanner, splits) == []

    async def test_a_task_that_joined_a_split_later_is_read_too(self, store: StoreFixture, scanner: Scanner) -> None:
        tasks = await create(store, [60] * 500)  # some in each shard: a bucket that was empty then has no split
        splits = await scanner.split(DELAYED, 1000)
        tasks += await create(store, [60] * 3000)
        assert ids_of(await read(scanner, splits)) == ids_of(tasks)

    async def test_large_bodies_are_read_a_few_at_a_time(self, store: StoreFixture, scanner: Scanner) -> None:
        tasks = await create(store, [1] * 100, content="x" * (MAX_BYTES // 10))
        parts = [some async for some in scanner.read(await scanner.split(DELAYED, 1000))]
        assert ids_of(found for some in parts for found in some) == ids_of(tasks)
        assert max(len(some) for some in parts) <= max(40, MAX_BODIES)
        assert len(parts) > 1 or len(store.keys.shards) > 1

    async def test_many_small_splits_are_read_at_once(
        self, store: StoreFixture, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(250)])
        splits = await scanner.split(ALL, 1000)
        round_trips: list[int] = []
        original = store.client.execute_each

        async def counted(verb: str, commands: Any) -> Any:
            round_trips.append(len(commands))
            return await original(verb, commands)

        monkeypatch.setattr(store.client, "execute_each", counted)
        assert len(await read(scanner, splits)) == 250
        assert round_trips == [100, 100, 50]


async def read_with_changes(
    store: StoreFixture, scanner: Scanner, splits: Sequence[ScanSplit], others: list[Task]
) -> AsyncIterator[list[TaskRecord]]:
    """Yield the tasks read; remove and create other tasks after each step."""
    rng = random.Random(9)
    async for some in scanner.read(splits):
        yield some
        await store.edits.delete([task.id for task in others[:20]])
        others = others[20:]
        await create(store, [rng.randrange(120) for _ in range(10)])


class TestBatches:
    def test_holds_as_many_as_fit(self) -> None:
        sizes = [3, 3, 5, 1, 12, 2, 8]
        batches = [[split.tasks for split in batch] for batch in batch_splits(map(a_split, sizes), 10)]
        assert batches == [[3, 3], [5, 1], [12], [2, 8]]

    def test_of_nothing_is_nothing(self) -> None:
        assert list(batch_splits([], 10)) == []


def a_split(tasks: int) -> ScanSplit:
    return ScanSplit("order", Bucket.DELAY, 0, None, None, None, Position(1, b"a"), tasks)
