"""The move of all data to another store, while nobody uses either.

Both ends are marked in `later:meta` with the random name of the move, so that no daemon starts on them meanwhile, and a
run that was killed is gone on with by the next one: everything is put unless it is there, and the target knows how far
the tasks are. At the end the numbers of tasks must agree; then the source is marked as moved, which is for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import Enum
from secrets import token_hex
from typing import NamedTuple

import msgspec

from later.core.errors import LaterError
from later.core.store_records import TaskEntry
from later.store import scripts
from later.store.fanout import MAX_READ_BYTES
from later.store.open import Store
from later.store.schema import LAYOUT_NEEDS, MOVED, MOVING, check_server, parse_needs, server_info
from later.store.store_reader import StoreReader, TaskMark
from later.store.store_writer import Put, StoreWriter

BEATEN_WITHIN_MS = 10_000
"""An instance that has sent a heartbeat within this time may still run."""
TASKS_AT_ONCE = 8000
"""Tasks that are put together: with 256 shards some 30 in each call."""
SHOWN = 10
"""Differences that an error lists."""
_META_FIELDS = ("moving_to", "moved_to", "moving_from", "moved_from", "moving_mark", "needs")

_encode = msgspec.json.Encoder().encode
_decode_mark = msgspec.json.Decoder(tuple[int, bytes, int, bytes]).decode


class MoveRefused(LaterError):
    """The operator's fault, or the data's: the move cannot begin, go on or end; the text says why."""


class MoveState(Enum):
    """How a run of a move has ended."""

    DONE = "done"
    WAS_DONE = "was done"
    """A run before had done all of it."""


class MoveReport(NamedTuple):
    """The numbers of a run: tasks that the store holds, tasks and other records that this run has put."""

    state: MoveState
    tasks: int = 0
    put: int = 0
    others: int = 0


class _Meta(NamedTuple):
    """What `later:meta` says of moves, by `_META_FIELDS`."""

    moving_to: bytes | None
    moved_to: bytes | None
    moving_from: bytes | None
    moved_from: bytes | None
    moving_mark: bytes | None
    needs: bytes | None


class _Batch(NamedTuple):
    """Tasks to put together, and how far all have been read then; None: no further than before."""

    tasks: list[TaskEntry]
    mark: TaskMark | None


OnProgress = Callable[[int, int], None]
"""Called with the number of tasks that are in the target, and of all."""


class Move:
    """One run of a move. `place` is where the data will be, as the source says it from then on.

    Every method raises StoreDown; then the next run goes on.
    """

    def __init__(self, source: Store, target: Store, place: str) -> None:
        self._source = source
        self._target = target
        self._place = place
        self._reader = StoreReader(source.client, source.keys)
        self._target_reader = StoreReader(target.client, target.keys)
        self._writer = StoreWriter(target.client, target.keys, target.policies)

    async def run(self, on_progress: OnProgress) -> MoveReport:
        """Move everything.

        Raises:
            MoveRefused: an instance runs at one of the ends, the target is not empty, or the two do not agree.
            StoreMismatch: the target's server cannot hold tasks safely.
        """
        source, target = await _read_meta(self._source), await _read_meta(self._target)
        if source.moved_to is not None:
            return await self._end_again(source, target)
        target_client = self._target.client
        check_server(await server_info(target_client.execute_each), in_cluster=target_client.is_cluster)
        await self._begin(source, target)
        total = await self._reader.count_tasks()
        others = await self._put_others()
        put = await self._put_tasks(target.moving_mark, total, on_progress)
        await self._compare()
        await self._check_idle()
        await self._end()
        return MoveReport(MoveState.DONE, total, put, others)

    # Beginning and end

    async def _begin(self, source: _Meta, target: _Meta) -> None:
        """Mark both ends, unless they are marked."""
        await check_source(self._source)
        await _check_idle("target", self._target)
        if target.moving_from is not None and target.moving_from != source.moving_to:
            raise MoveRefused(
                "the target holds a part of another move: empty it, or choose another --to or --to-prefix"
            )
        if target.moving_from is None:
            await self._check_empty()
        name = source.moving_to or token_hex(8).encode()
        is_new = source.moving_to is None
        await _mark(self._source, {"moving_to": name}, add=MOVING)
        try:
            if (await _read_meta(self._target)).moving_to == name:
                raise MoveRefused("both ends are the same store: choose another --to or --to-prefix")
            await self._check_idle()  # a daemon may have started before the mark
        except BaseException:
            if is_new:
                await _mark(self._source, {"moving_to": b""}, remove=MOVING)
            raise
        await _mark(self._target, {"moving_from": name}, add=MOVING)
        await self._writer.add_needs(sorted(parse_needs(source.needs) - LAYOUT_NEEDS))

    async def _check_empty(self) -> None:
        """Check that the target has no tasks."""
        tasks = await self._target_reader.count_tasks()
        if tasks:
            raise MoveRefused(
                f"the target holds {tasks:,} tasks: choose another --to or --to-prefix, or `later export` and `import`"
            )

    async def _check_idle(self) -> None:
        await _check_idle("source", self._source)
        await _check_idle("target", self._target)

    async def _compare(self) -> None:
        """Compare the numbers of tasks at both ends, by topic and bucket."""
        expected = (await self._reader.count_by_bucket()).tasks
        found = (await self._target_reader.count_by_bucket()).tasks
        places = sorted(place for place in expected.keys() | found.keys() if expected.get(place) != found.get(place))
        if not places:
            return
        await _mark(self._target, {"moving_mark": b""})  # the next run looks at every task again
        lines = [
            f"{bucket} of {topic.decode('utf-8', 'backslashreplace')}: {expected.get((topic, bucket), 0):,} "
            f"in the source, {found.get((topic, bucket), 0):,} in the target"
            for topic, bucket in places
        ]
        more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise MoveRefused(f"the ends do not agree, so the move is not over: {'; '.join(lines[:SHOWN])}{more}")

    async def _end(self) -> None:
        """Mark the source as moved, then let the target be used. From the first of the two on, there is no way back."""
        source = await _read_meta(self._source)
        await _mark(self._source, {"moved_to": self._place.encode()}, add=MOVED, remove=MOVING)
        await self._open_target(source.moving_to or b"")

    async def _end_again(self, source: _Meta, target: _Meta) -> MoveReport:
        """Let the target be used, if a run before was killed before it did that."""
        name = source.moving_to
        if name is not None and name == target.moving_from:
            await self._open_target(name)
        elif name is None or name != target.moved_from:
            where = (source.moved_to or b"").decode("utf-8", "backslashreplace")
            raise MoveRefused(f"the source's data was moved to {where}, which is another store than --to")
        return MoveReport(MoveState.WAS_DONE)

    async def _open_target(self, name: bytes) -> None:
        await _mark(self._target, {"moving_from": b"", "moving_mark": b"", "moved_from": name}, remove=MOVING)

    # Copying

    async def _put_others(self) -> int:
        """Put all but tasks, and return how many records were not there."""
        now, put = (await self._target.time.now()).high, 0
        async for records in self._reader.shared():
            put += (await self._writer.put(records, now)).count(Put.DONE)
        for shard in self._source.keys.shards:
            async for records in self._reader.in_shard(shard):
                put += (await self._writer.put(records, now)).count(Put.DONE)
        return put

    async def _put_tasks(self, stored_mark: bytes | None, total: int, on_progress: OnProgress) -> int:
        """Put the tasks after a mark, and return how many were not there. The next ones are read meanwhile."""
        after = _parse_mark(stored_mark)
        done = await self._count_before(after)
        put = 0

        async def put_batch(batch: _Batch) -> None:
            nonlocal done, put
            now = (await self._target.time.now()).high
            put += (await self._writer.put_tasks(batch.tasks, now)).count(Put.DONE)
            if batch.mark is not None:
                await self._target.client.execute(
                    "put", ("HSET", self._target.keys.meta, "moving_mark", _encode(batch.mark))
                )
            done += len(batch.tasks)
            on_progress(min(done, total), total)

        await _handle_ahead(self._batches(after), put_batch)
        return put

    async def _count_before(self, mark: TaskMark) -> int:
        """Return about how many tasks are before a mark: those in the target."""
        return await self._target_reader.count_tasks() if mark != TaskMark(0) else 0

    async def _batches(self, after: TaskMark) -> AsyncIterator[_Batch]:
        tasks: list[TaskEntry] = []
        size, mark = 0, None
        for shard in self._source.keys.shards[after.shard :]:
            async for piece in self._reader.by_bucket(shard, after if shard.index == after.shard else None):
                tasks += piece.tasks
                size += sum(len(task.body) for task in piece.tasks)
                mark = piece.mark or mark
                if len(tasks) >= TASKS_AT_ONCE or size >= MAX_READ_BYTES:
                    yield _Batch(tasks, mark)
                    tasks, size, mark = [], 0, None
        yield _Batch(tasks, mark)


async def check_source(source: Store) -> None:
    """Check whether a move from this store may begin or go on, which is to be known before its target is laid out.

    Raises:
        MoveRefused: an instance runs on it, or its tasks and its buckets do not agree.
        StoreDown: the store cannot be reached.
    """
    if (await _read_meta(source)).moved_to is not None:
        return
    await _check_idle("source", source)
    reader = StoreReader(source.client, source.keys)
    in_buckets, in_pool = sum((await reader.count_by_bucket()).tasks.values()), await reader.count_tasks()
    if in_buckets != in_pool:
        raise MoveRefused(
            f"the source has {in_pool:,} tasks, but {in_buckets:,} entries of buckets: "
            "run `later doctor --repair` on it first"
        )


async def abandon(source: Store) -> None:
    """Let the source of a move that is not over be used again. What the target has of it stays unused.

    Raises:
        MoveRefused: no move from it is under way.
        StoreDown: the store cannot be reached.
    """
    meta = await _read_meta(source)
    if meta.moved_to is not None:
        where = meta.moved_to.decode("utf-8", "backslashreplace")
        raise MoveRefused(f"the move to {where} is over: tasks may have been delivered from there")
    if meta.moving_to is None:
        raise MoveRefused("no move from this store is under way")
    await _mark(source, {"moving_to": b""}, remove=MOVING)


async def _check_idle(name: str, store: Store) -> None:
    """Check that no instance has sent a heartbeat lately."""
    now = (await store.time.now()).high
    told = await store.instances.read()
    beats = told.workers | {
        instance: max(beat.at, told.workers.get(instance, 0)) for instance, beat in told.heartbeats.items()
    }
    instance, at = max(beats.items(), key=lambda beat: beat[1], default=("", 0))
    if now - at < BEATEN_WITHIN_MS:
        raise MoveRefused(
            f"an instance runs on the {name}, or was killed less than {BEATEN_WITHIN_MS // 1000} s ago: "
            f"{instance}, whose last heartbeat is {max(now - at, 0) / 1000:.1f} s old; stop it first"
        )


async def _handle_ahead(
    batches: AsyncIterator[_Batch], handle: Callable[[_Batch], Coroutine[None, None, None]]
) -> None:
    """Handle each batch, one after the other, while the next one is read."""
    handling: asyncio.Task[None] | None = None
    try:
        async for batch in batches:
            if handling is not None:
                await handling
            handling = asyncio.create_task(handle(batch))
        if handling is not None:
            await handling
    finally:
        if handling is not None and not handling.done():
            handling.cancel()
            await asyncio.wait([handling])


async def _read_meta(store: Store) -> _Meta:
    return _Meta(*await store.client.execute("open", ("HMGET", store.keys.meta, *_META_FIELDS)))


async def _mark(store: Store, fields: dict[str, bytes], *, add: str = "", remove: str = "") -> None:
    """Write fields of the store's meta (b"": remove them), and change `needs`, in one step."""
    needs = parse_needs((await _read_meta(store)).needs) - {remove} | {add} - {""}
    fields = {**fields, "needs": ",".join(sorted(needs)).encode()}
    arguments = [part for field in fields.items() for part in field]
    await store.client.execute("put", scripts.CHANGE_META.call([store.keys.meta], arguments))


def _parse_mark(stored: bytes | None) -> TaskMark:
    return TaskMark(0) if stored is None else TaskMark(*_decode_mark(stored))
