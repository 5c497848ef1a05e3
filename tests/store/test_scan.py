"""Scans: every task is in exactly one split, whatever its bucket, and large tasks are read a few at a time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest

from later.core.errors import UnreadableBody
from later.core.task import Task, pack_id
from later.store import scan as pieces_module
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
def scan(store: StoreFixture) -> Scanner:
    return Scanner(store.client, store.keys)


async def create(store: StoreFixture, delays: Iterable[float], **changes: Any) -> list[Task]:
    tasks = [a_task(delay=delay, **changes) for delay in delays]
    await store.tasks.create(tasks)
    return tasks


async def read(scan: Scanner, pieces: Sequence[ScanSplit]) -> list[TaskRecord]:
    return [found async for some in scan.read(pieces) for found in some]


def ids_of(tasks: Iterable[Task | TaskRecord]) -> list[str]:
    return sorted(task.id for task in tasks)


async def states(store: StoreFixture) -> dict[Bucket, list[str]]:
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


class TestWhole:
    async def test_an_empty_store_has_no_splits(self, scan: Scanner) -> None:
        assert await scan.split(ALL, 10) == []
        assert await scan.split(DELAYED, 10) == []

    @pytest.mark.parametrize("size", [1, 3, 1000])
    async def test_every_task_of_every_topic_and_state_is_in_one_split(
        self, store: StoreFixture, scan: Scanner, size: int
    ) -> None:
        await states(store)
        found = await read(scan, await scan.split(ALL, size))
        assert len(found) == 12 + 8 + 7 + 6 + 5
        assert sorted(found, key=lambda one: one.id) == await store.lookup.query(ids_of(found))

    async def test_splits_of_a_topic_and_a_state_hold_no_others(self, store: StoreFixture, scan: Scanner) -> None:
        expected = await states(store)
        for bucket, ids in expected.items():
            assert ids_of(await read(scan, await scan.split(ScanRange("order", (bucket,)), 3))) == ids
            assert ids_of(await read(scan, await scan.split(ScanRange(None, (bucket,)), 3))) == ids
        assert await scan.split(ScanRange("nowhere", tuple(Bucket)), 3) == []

    async def test_splits_are_in_the_order_of_topics_states_shards_and_times(
        self, store: StoreFixture, scan: Scanner
    ) -> None:
        await states(store)
        order = list(Bucket)
        pieces = await scan.split(ALL, 2)
        places = [(piece.topic, order.index(piece.bucket), piece.shard, piece.after or ()) for piece in pieces]
        assert places == sorted(places)
        assert {piece.topic for piece in pieces} == {"mail", "order"}

    async def test_bounds_are_from_and_below(self, store: StoreFixture, scan: Scanner) -> None:
        tasks = await create(store, [1, 2, 2, 3, 4])
        for size in (1, 10):
            pieces = await scan.split(DELAYED._replace(since=NOW + 2000, before=NOW + 4000), size)
            assert ids_of(await read(scan, pieces)) == ids_of(tasks[1:4])
        assert await scan.split(DELAYED._replace(since=NOW + 3000, before=NOW + 3000), 1) == []

    async def test_a_paused_topics_tasks_are_among_them(self, store: StoreFixture, scan: Scanner) -> None:
        tasks = await create(store, [5])
        shard = store.keys.shard_of(tasks[0].id)
        await ask(store, [("ZADD", shard.wakes[Bucket.DELAY], "-inf", "order")])
        assert ids_of(await read(scan, await scan.split(ALL, 10))) == ids_of(tasks)


class TestSplits:
    @pytest.mark.parametrize("same_time", [True, False])
    async def test_splits_are_about_as_large_as_asked_and_say_so(
        self, store: StoreFixture, scan: Scanner, same_time: bool
    ) -> None:
        rng = random.Random(3)
        await create(store, [60 if same_time else rng.randrange(120) for _ in range(3000)])
        pieces = await scan.split(DELAYED, 40)
        for piece in pieces:
            found = await read(scan, [piece])
            assert len(found) == piece.tasks
            assert 20 <= len(found) <= 60
        assert sum(piece.tasks for piece in pieces) == 3000

    async def test_a_bucket_of_many_splits_takes_several_calls(
        self, store: StoreFixture, scan: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pieces_module, "MAX_SPLITS", 2)
        tasks = await create(store, [1] * 210)
        pieces = await scan.split(DELAYED, 3)
        assert {piece.tasks for piece in pieces} <= {2, 3, 4}
        assert ids_of(await read(scan, pieces)) == ids_of(tasks)

    async def test_there_is_no_split_of_nothing_behind_the_last_position(
        self, store: StoreFixture, scan: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pieces_module, "MAX_SPLITS", 1)
        tasks = await create(store, [1] * 64)
        pieces = await scan.split(DELAYED, 1)
        assert [piece.tasks for piece in pieces] == [1] * 64
        assert ids_of(await read(scan, pieces)) == ids_of(tasks)

    async def test_many_buckets_are_split_some_at_a_time(
        self, store: StoreFixture, scan: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pieces_module, "BUCKETS_AT_ONCE", 7)
        tasks = [a_task(topic=f"topic-{n}") for n in range(50)]
        await store.tasks.create(tasks)
        pieces = await scan.split(ALL, 10)
        assert [piece.topic for piece in pieces] == sorted(task.topic for task in tasks)
        assert ids_of(await read(scan, pieces)) == ids_of(tasks)

    async def test_ids_of_callers_are_cut_by_their_bytes_among_ours(self, store: StoreFixture, scan: Scanner) -> None:
        own = [a_task(id=id, delay=1) for id in ("a", "A", "a-", "a.b", "~", "ab", "9", "a" * 128)]
        await store.tasks.create(own)
        tasks = [*own, *await create(store, [1] * 20)]
        pieces = await scan.split(DELAYED, 1)
        assert ids_of(await read(scan, pieces)) == ids_of(tasks)
        for piece in pieces:
            after, up_to = piece.after, piece.up_to
            [found] = await read(scan, [piece])
            assert after is None or after.packed < pack_id(found.id)
            assert up_to is None or up_to.packed == pack_id(found.id)


class TestReading:
    async def test_a_body_that_cannot_be_decoded_is_returned_as_its_error(
        self, store: StoreFixture, scan: Scanner
    ) -> None:
        [task] = await create(store, [1])
        await ask(store, [("HSET", store.keys.shard_of(task.id).pool, pack_id(task.id), b"\xc1")])
        [found] = await read(scan, await scan.split(ALL, 10))
        assert (found.id, found.topic, found.state, found.score) == (task.id, "order", Bucket.DELAY, NOW + 1000)
        assert isinstance(found.task, UnreadableBody)

    async def test_an_entry_without_a_body_is_no_task(self, store: StoreFixture, scan: Scanner) -> None:
        tasks = await create(store, [1] * 5)
        await ask(store, [("HDEL", store.keys.shard_of(tasks[0].id).pool, pack_id(tasks[0].id))])
        assert ids_of(await read(scan, await scan.split(ALL, 10))) == ids_of(tasks[1:])

    @pytest.mark.parametrize("same_time", [True, False])
    async def test_what_is_there_all_the_time_is_read_once(
        self, store: StoreFixture, scan: Scanner, same_time: bool
    ) -> None:
        rng = random.Random(7)
        delays = [60 if same_time else rng.randrange(120) for _ in range(400)]
        stay, others = await create(store, delays), await create(store, delays)
        seen: list[str] = []
        pieces = await scan.split(DELAYED, 30)
        async for some in disturbed(store, scan, pieces, others):
            seen += [found.id for found in some]
        staying = {task.id for task in stay}
        assert sorted(id for id in seen if id in staying) == sorted(staying)
        assert len(set(seen)) == len(seen)

    async def test_a_task_that_left_its_bucket_since_the_split_is_not_read_there(
        self, store: StoreFixture, scan: Scanner
    ) -> None:
        tasks = await create(store, [0] * 40)
        pieces = await scan.split(DELAYED, 10)
        claimed = [claim.id for claim in await claim_due(store)]
        assert len(claimed) == len(tasks)
        assert await read(scan, pieces) == []

    async def test_a_task_that_joined_a_split_later_is_read_too(self, store: StoreFixture, scan: Scanner) -> None:
        tasks = await create(store, [60] * 500)  # some in each shard: a bucket that was empty then has no piece
        pieces = await scan.split(DELAYED, 1000)
        tasks += await create(store, [60] * 3000)
        assert ids_of(await read(scan, pieces)) == ids_of(tasks)

    async def test_large_bodies_are_read_a_few_at_a_time(self, store: StoreFixture, scan: Scanner) -> None:
        tasks = await create(store, [1] * 100, content="x" * (MAX_BYTES // 10))
        parts = [some async for some in scan.read(await scan.split(DELAYED, 1000))]
        assert ids_of(found for some in parts for found in some) == ids_of(tasks)
        assert max(len(some) for some in parts) <= max(40, MAX_BODIES)
        assert len(parts) > 1 or len(store.keys.shards) > 1

    async def test_many_small_splits_are_read_at_once(
        self, store: StoreFixture, scan: Scanner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(250)])
        pieces = await scan.split(ALL, 1000)
        trips: list[int] = []
        whole = store.client.execute_each

        async def counted(verb: str, commands: Any) -> Any:
            trips.append(len(commands))
            return await whole(verb, commands)

        monkeypatch.setattr(store.client, "execute_each", counted)
        assert len(await read(scan, pieces)) == 250
        assert trips == [100, 100, 50]


async def disturbed(
    store: StoreFixture, scan: Scanner, pieces: Sequence[ScanSplit], others: list[Task]
) -> AsyncIterator[list[TaskRecord]]:
    """Read, while other tasks are removed and created after each step."""
    rng = random.Random(9)
    async for some in scan.read(pieces):
        yield some
        await store.edits.delete([task.id for task in others[:20]])
        others = others[20:]
        await create(store, [rng.randrange(120) for _ in range(10)])


class TestBatches:
    def test_holds_as_many_as_fit(self) -> None:
        sizes = [3, 3, 5, 1, 12, 2, 8]
        packed = [[piece.tasks for piece in pack] for pack in batch_splits(map(a_split, sizes), 10)]
        assert packed == [[3, 3], [5, 1], [12], [2, 8]]

    def test_of_nothing_is_nothing(self) -> None:
        assert list(batch_splits([], 10)) == []


def a_split(tasks: int) -> ScanSplit:
    return ScanSplit("order", Bucket.DELAY, 0, None, None, None, Position(1, b"a"), tasks)
