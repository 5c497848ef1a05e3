"""The move of all data to another store, while nobody uses either.

Both ends are marked in `later:meta` with the random name of the move, so that no daemon starts on them meanwhile, and a
run that was killed is gone on with by the next one: everything is put unless it is there, and the target knows how far
the tasks are. At the end the numbers of all that is counted must agree; then the source is marked as moved, which is
for good.

Only one run is at work on a source: it renews its name there, and stops if another one has taken over. Otherwise the
slower one would put tasks once more that have been delivered from the target.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from secrets import token_hex
from typing import NamedTuple

import msgspec

from later.core.errors import LaterError, StoreDown
from later.core.export_lines import SETTINGS
from later.core.store_records import TaskEntry
from later.store import scripts
from later.store.fanout import MAX_READ_BYTES
from later.store.open import Store
from later.store.schema import LAYOUT_NEEDS, MOVED, MOVING, check_server, parse_needs, server_info
from later.store.scripts import Argument
from later.store.store_reader import StoreReader, TaskMark
from later.store.store_writer import Put, StoreWriter

BEATEN_WITHIN_MS = 10_000
"""An instance that has sent a heartbeat within this time may still run."""
TASKS_AT_ONCE = 8000
"""Tasks that are put together: with 256 shards some 30 in each call."""
SHOWN = 10
"""Differences that an error lists."""
RENEW_EVERY_S = 0.5
"""How often a run says that it is at work."""
KILLED_AFTER_S = 3.0
"""How long a run says nothing until it counts as killed. One that only paused finds that another one has taken over."""
LOOK_EVERY_S = 0.2
_META_FIELDS = ("moving_to", "moved_to", "moving_from", "moved_from", "moving_mark", "needs")
_TURN_FIELDS = ("moving_run", "moving_renewals")

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
    """The fields of `later:meta` about moves, in the order of `_META_FIELDS`."""

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
        self._name = b""
        self._turn = _MoveTurn(source)
        self._reader = StoreReader(source.client, source.keys)
        self._target_reader = StoreReader(target.client, target.keys)
        self._writer = StoreWriter(target.client, target.keys, target.policies)

    async def run(self, on_progress: OnProgress) -> MoveReport:
        """Move everything.

        Raises:
            MoveRefused: an instance or another run is at work at one of the ends, the target is not empty, or the two
                do not agree.
            StoreMismatch: the target's server cannot hold tasks safely.
        """
        async with self._turn.hold():
            return await self._run(on_progress)

    async def _run(self, on_progress: OnProgress) -> MoveReport:
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
        if target.moved_to is not None:
            raise MoveRefused("the target's data was moved away: empty it, or choose another --to or --to-prefix")
        if target.moving_from is not None and target.moving_from != source.moving_to:
            raise MoveRefused(
                "the target holds a part of another move: empty it, or choose another --to or --to-prefix"
            )
        if target.moving_from is None:
            await self._check_empty()
            await self._mark_ends(source)
        else:
            self._name = self._turn.move = target.moving_from
            await self._check_idle()
        await self._writer.add_needs(sorted(parse_needs(source.needs) - LAYOUT_NEEDS))

    async def _mark_ends(self, source: _Meta) -> None:
        """Mark both ends with a new name, so that a target that was filled in part before is one of another move."""
        name = token_hex(8).encode()
        await _mark(self._source, {"moving_to": name}, add=MOVING)
        try:
            if (await _read_meta(self._target)).moving_to == name:
                raise MoveRefused("both ends are the same store: choose another --to or --to-prefix")
            await self._check_idle()  # a daemon may have started before the mark
        except BaseException:
            earlier = source.moving_to or b""
            await _mark(self._source, {"moving_to": earlier}, remove="" if earlier else MOVING)
            raise
        # A daemon that has started there noted how it was configured itself.
        await _mark(self._target, {"moving_from": name, **dict.fromkeys(map(bytes.decode, SETTINGS), b"")}, add=MOVING)
        self._name = self._turn.move = name

    async def _check_empty(self) -> None:
        """Check that the target holds nothing that could stand in the way of what comes."""
        tasks = await self._target_reader.count_tasks()
        if tasks:
            raise MoveRefused(
                f"the target holds {tasks:,} tasks: choose another --to or --to-prefix, or `later export` and `import`"
            )
        for kind, count in (await self._target_reader.count_others()).items():
            if count:
                records = "record" if count == 1 else "records"
                raise MoveRefused(
                    f"the target holds {count:,} {records} of the kind {kind}, which would stay as they are: "
                    "empty it, choose another --to or --to-prefix, or `later export` and `import`"
                )

    async def _check_idle(self) -> None:
        await _check_idle("source", self._source)
        await _check_idle("target", self._target)

    async def _compare(self) -> None:
        """Compare the numbers of tasks at both ends, by topic and bucket, and those of other records, by kind."""
        expected, found = await _count_all(self._reader), await _count_all(self._target_reader)
        places = sorted(place for place in expected.keys() | found.keys() if expected.get(place) != found.get(place))
        if not places:
            return
        await self._set_mark(b"")  # the next run looks at every task again
        lines = [
            f"{place}: {expected.get(place, 0):,} in the source, {found.get(place, 0):,} in the target"
            for place in places
        ]
        more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        surplus = any(found.get(place, 0) > expected.get(place, 0) for place in places)
        advice = (
            "something has used one of them: `--abandon` the move, empty the target and begin again"
            if surplus
            else "run the same command again, which puts what is missing"
        )
        raise MoveRefused(f"the ends do not agree, so the move is not over: {'; '.join(lines[:SHOWN])}{more}; {advice}")

    async def _set_mark(self, mark: bytes) -> None:
        """Note in the target how far the tasks are; b"": not at all. Raises MoveRefused: it is not ours any more."""
        if not await _change(self._target, {"moving_mark": mark}, expected={"moving_from": self._name}):
            raise MoveRefused(
                "the target has lost the mark of this move, so its data may be gone, or others have changed it: "
                "empty it, then run the same command again"
            )

    async def _end(self) -> None:
        """Mark the source as moved, then let the target be used. From the first of the two on, there is no way back."""
        if (await _read_meta(self._target)).moving_from != self._name:
            await self._set_mark(b"")
        await self._turn.end({"moved_to": self._place.encode()}, add=MOVED, remove=MOVING)
        await self._open_target(self._name)

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
            await self._turn.confirm()
            now = (await self._target.time.now()).high
            put += (await self._writer.put_tasks(batch.tasks, now)).count(Put.DONE)
            if batch.mark is not None:
                await self._set_mark(_encode(batch.mark))
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


class _MoveTurn:
    """The turn of a run at its source. It is renewed each `RENEW_EVERY_S`, and lost if another run has taken it."""

    def __init__(self, source: Store) -> None:
        self._source = source
        self._run = token_hex(8).encode()
        self._renewals = 0
        self._renewed_at = 0.0
        self.move = b""
        """The name of the move, once it is known: it must stay that of the source."""

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Take the turn, and give it back at the end. Raises MoveRefused: another run is at work."""
        before = await self._wait_for_others()
        if not await _change(self._source, {"moving_run": self._run, "moving_renewals": b"0"}, expected=before):
            raise _another_run()
        self._renewed_at = _loop_time()
        renewing = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            with suppress(StoreDown):
                await _change(self._source, dict.fromkeys(_TURN_FIELDS, b""), expected={"moving_run": self._run})

    async def confirm(self) -> None:
        """Check that the turn is still ours. Raises MoveRefused."""
        if _loop_time() - self._renewed_at > 2 * RENEW_EVERY_S:
            await self._renew()

    async def end(self, fields: Mapping[str, bytes], *, add: str, remove: str) -> None:
        """Write the source's last mark, if the turn is still ours. Raises MoveRefused."""
        fields = await _with_needs(self._source, fields, add, remove)
        if not await _change(self._source, fields, expected=self._expected()):
            raise await self._reason()

    async def _wait_for_others(self) -> dict[str, bytes]:
        """Wait until no other run renews its turn, and return what the last one has left."""
        before, until = await self._read(), _loop_time() + KILLED_AFTER_S
        while before["moving_run"] and _loop_time() < until:
            await asyncio.sleep(LOOK_EVERY_S)
            now = await self._read()
            if now["moving_run"] and now != before:
                raise _another_run()
            before = now
        return before

    async def _read(self) -> dict[str, bytes]:
        values = await self._source.client.execute("open", ("HMGET", self._source.keys.meta, *_TURN_FIELDS))
        return {field: value or b"" for field, value in zip(_TURN_FIELDS, values, strict=True)}

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            with suppress(LaterError):  # `confirm` and `end` tell of it
                await self._renew()

    async def _renew(self) -> None:
        self._renewals += 1
        fields = {"moving_renewals": b"%d" % self._renewals}
        if not await _change(self._source, fields, expected=self._expected()):
            raise await self._reason()
        self._renewed_at = _loop_time()

    async def _reason(self) -> MoveRefused:
        if (await self._read())["moving_run"] not in (b"", self._run):
            return _another_run()
        return MoveRefused("the move was abandoned meanwhile: it is not over, and the source may be used again")

    def _expected(self) -> dict[str, bytes]:
        return {"moving_run": self._run, **({"moving_to": self.move} if self.move else {})}


def _another_run() -> MoveRefused:
    return MoveRefused("another run of `later move` is at work on the source: wait for its end")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _count_all(reader: StoreReader) -> dict[str, int]:
    """Return the numbers of tasks, by bucket and topic, and of other records, by kind."""
    tasks = {
        f"{bucket} of {topic.decode('utf-8', 'backslashreplace')}": count
        for (topic, bucket), count in (await reader.count_by_bucket()).tasks.items()
    }
    return tasks | {f"records of the kind {kind}": count for kind, count in (await reader.count_others()).items()}


async def check_source(source: Store) -> None:
    """Check whether a move from this store may begin or go on, which is to be known before its target is laid out.

    Raises:
        MoveRefused: an instance runs on it, or its tasks and its buckets do not agree.
        StoreDown: the store cannot be reached.
    """
    meta = await _read_meta(source)
    if meta.moved_to is not None:
        return
    if meta.moving_from is not None:
        raise MoveRefused(
            "the source is the target of a move that is not over: go on with that one, which has all of the data"
        )
    await _check_idle("source", source)
    reader = StoreReader(source.client, source.keys)
    await _check_schedules(source)
    in_buckets, in_pool = sum((await reader.count_by_bucket()).tasks.values()), await reader.count_tasks()
    if in_buckets != in_pool:
        raise MoveRefused(
            f"the source has {in_pool:,} tasks, but {in_buckets:,} entries of buckets: "
            "run `later doctor --repair` on it first"
        )


async def _check_schedules(source: Store) -> None:
    hashes = [key for shard in source.keys.shards for key in (shard.schedules, shard.schedule_states)]
    sizes = await source.client.execute_all("read", [("HLEN", key) for key in hashes])
    if sizes[::2] != sizes[1::2]:
        raise MoveRefused("the source has schedules that are not whole: run `later doctor --repair` on it first")


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


async def _mark(store: Store, fields: Mapping[str, bytes], *, add: str = "", remove: str = "") -> None:
    """Write fields of the store's meta (b"": remove them), and change `needs`, in one step."""
    await _change(store, await _with_needs(store, fields, add, remove), expected={})


async def _with_needs(store: Store, fields: Mapping[str, bytes], add: str, remove: str) -> dict[str, bytes]:
    """Return the fields and what `needs` is to be then."""
    needs = parse_needs((await _read_meta(store)).needs) - {remove} | {add} - {""}
    return {**fields, "needs": ",".join(sorted(needs)).encode()}


async def _change(store: Store, fields: Mapping[str, bytes], *, expected: Mapping[str, bytes]) -> bool:
    """Write fields of the store's meta if others are as `expected` (b"": missing); return False if they are not."""
    arguments: list[Argument] = [len(expected)]
    arguments += [part for field in (*expected.items(), *fields.items()) for part in field]
    return bool(await store.client.execute("put", scripts.CHANGE_META.call([store.keys.meta], arguments)))


def _parse_mark(stored: bytes | None) -> TaskMark:
    return TaskMark(0) if stored is None else TaskMark(*_decode_mark(stored))
