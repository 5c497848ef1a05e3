"""Schedules: definitions and states, which of them are due, and a page of them.

A schedule is in the shard of its id. Its definition is written when it is put, its small state each time it fires. Each
change starts from what was read, and starts over if that has changed meanwhile; a firing gives way instead, because the
other instance has fired, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from later.core.errors import Conflict, LaterError, ScheduleNotFound, StoreFault, TooManySchedules
from later.core.schedule import (
    MAX_SCHEDULES,
    FiringRecord,
    Schedule,
    ScheduleState,
    StoredSchedule,
    put_schedule,
    set_paused,
)
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import UNREAD, pairs
from later.store.fanout import fan_out, fan_out_reads, parse_flags
from later.store.keys import Keys, Shard, ShardTopic, parse_schedule_member, schedule_member
from later.store.scripts import Argument, Command
from later.store.shared_read import MAX_STARTS

POSTPONE_MS = 60_000
"""When a schedule is looked at again that this instance cannot read, or whose zone it does not know."""
LEFT_TO_OTHERS_MS = 10_000
"""How long it stays due before: another instance, of a newer version, may fire it in time."""

_encode = msgspec.json.Encoder().encode
_decode_definition = msgspec.json.Decoder(Schedule).decode
_decode_state = msgspec.json.Decoder(ScheduleState).decode


class PutResult(NamedTuple):
    """A schedule as it is after it was put, whether it is new, and whether anything has changed."""

    schedule: StoredSchedule
    created: bool
    changed: bool


class SchedulePosition(NamedTuple):
    """A position in the list of schedules, which is by the namespaces of their topics, then by their ids."""

    namespace: str
    id: str


class SchedulePage(NamedTuple):
    """Schedules that follow one another in the list, and the position of the last one; None if the list ends there."""

    schedules: list[StoredSchedule]
    read_to: SchedulePosition | None


class DueSchedule(NamedTuple):
    """A schedule that is due, as it was read: a move starts from that."""

    schedule: StoredSchedule
    raw_state: bytes
    at: int
    """The time (ms) at which it was due: that of its state, or a later one if it was postponed."""

    @property
    def id(self) -> str:
        return self.schedule.definition.id


class DueSchedules(NamedTuple):
    """Schedules that are due, the earliest first, and when (ms) there is more to do; None: not known."""

    schedules: list[DueSchedule]
    next_at: int | None


class ScheduleMove(NamedTuple):
    """A schedule that has fired, and its state from then on."""

    due: DueSchedule
    state: ScheduleState


class RawSchedule(NamedTuple):
    """A schedule as it was read: the bytes of its definition and its state, b"" if there is none."""

    id: str
    shard: Shard
    definition: bytes
    state: bytes

    def parse(self) -> StoredSchedule | None:
        """Return the schedule; None if there is none. Raises StoreFault."""
        if not self.definition or not self.state:
            return None
        try:
            return StoredSchedule(_decode_definition(self.definition), _decode_state(self.state))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreFault(f"schedule {self.id!r} cannot be read: {error}") from error

    def parse_if_readable(self) -> StoredSchedule | None:
        """Return the schedule; None if there is none, or this version cannot read it."""
        try:
            return self.parse()
        except StoreFault:
            return None


class Schedules:
    """Reads and changes schedules. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys, max_schedules: int = MAX_SCHEDULES) -> None:
        self._client = client
        self._keys = keys
        self._max_schedules = max_schedules

    # One schedule

    async def put(self, definition: Schedule, now: int) -> PutResult:
        """Put a definition at `now` (ms, the high end of the store's time). An equal one that is there stays as it is.

        Raises:
            TooManySchedules: it is new, and there are as many as may be.
            Conflict: others changed it each time it was looked at.
        """
        for _ in range(MAX_STARTS):
            read, others = await self._read_to_put(definition.id)
            before = read.parse()
            if before is not None and before.definition == definition:
                return PutResult(before, created=False, changed=False)
            after = put_schedule(definition, before, now)
            if await self._set(read, before, after, self._max_schedules - others):
                return PutResult(after, created=before is None, changed=True)
        raise _changed_each_time(definition.id)

    async def get(self, id: str) -> StoredSchedule:
        """Return a schedule. Raises NotFound."""
        [schedule] = await self._get_each([id])
        if schedule is None:
            raise ScheduleNotFound(id)
        return schedule

    async def delete(self, id: str) -> StoredSchedule:
        """Remove a schedule, and return it as it was. Its tasks stay. Raises NotFound, Conflict."""
        before, _ = await self._change(id, lambda schedule: None)
        return before

    async def set_paused(self, id: str, paused: bool) -> StoredSchedule:
        """Pause or resume a schedule; return it as it is from then on. Raises NotFound, Conflict."""
        _, after = await self._change(id, lambda schedule: set_paused(schedule, paused))
        assert after is not None
        return after

    async def record_run(self, id: str, last: FiringRecord) -> None:
        """Note a firing that somebody asked for: the schedule's own times stay. Raises NotFound, Conflict."""

        def note(schedule: StoredSchedule) -> StoredSchedule:
            return StoredSchedule(schedule.definition, msgspec.structs.replace(schedule.state, last=last))

        await self._change(id, note)

    async def restore(self, id: str) -> bool:
        """Write again when a schedule fires and that it is listed; remove what is left of one that is not whole.

        Return False if it has changed meanwhile. Raises StoreFault: this version cannot read it.
        """
        read = await self._read(id)
        before = read.parse()
        return await self._set(read, before, before, self._max_schedules)

    async def count(self) -> int:
        """Return how many schedules there are."""
        counts: list[Command] = [("HLEN", shard.schedules) for shard in self._keys.shards]
        return sum(await self._client.execute_all("schedules", counts))

    async def _change(
        self, id: str, change: Callable[[StoredSchedule], StoredSchedule | None]
    ) -> tuple[StoredSchedule, StoredSchedule | None]:
        """Replace a schedule by what `change` makes of it, or remove it; return it before and after.

        Raises:
            NotFound: there is none.
            Conflict: others changed it each time it was looked at.
        """
        for _ in range(MAX_STARTS):
            read = await self._read(id)
            before = read.parse()
            if before is None:
                raise ScheduleNotFound(id)
            after = change(before)
            if after == before or await self._set(read, before, after, 0):
                return before, after
        raise _changed_each_time(id)

    async def _read(self, id: str) -> RawSchedule:
        shard = self._keys.shard_of(id)
        commands: list[Command] = [("HGET", shard.schedule_states, id), ("HGET", shard.schedules, id)]
        state, definition = await self._client.execute_all("schedules", commands)
        return RawSchedule(id, shard, definition or b"", state or b"")

    async def _read_to_put(self, id: str) -> tuple[RawSchedule, int]:
        """Return a schedule as it is, and how many there are in other shards."""
        own = self._keys.shard_of(id)
        counts: list[Command] = [("HLEN", shard.schedules) for shard in self._keys.shards if shard is not own]
        reads: list[Command] = [("HGET", own.schedule_states, id), ("HGET", own.schedules, id)]
        *others, state, definition = await self._client.execute_all("schedules", [*counts, *reads])
        return RawSchedule(id, own, definition or b"", state or b""), sum(others)

    async def _set(
        self, read: RawSchedule, before: StoredSchedule | None, after: StoredSchedule | None, room: int
    ) -> bool:
        """Replace a schedule that was read, if it has not changed meanwhile. Its shard has room for `room` of them.

        Raises:
            TooManySchedules: it is new, and there is no room.
        """
        shard, definition, state = read.shard, b"", b""
        next_at: Argument = ""
        if after is not None:
            is_same = before is not None and after.definition == before.definition
            definition = read.definition if is_same else _encode(after.definition)
            state = _encode(after.state)
            next_at = "" if after.state.paused or after.state.next_at is None else after.state.next_at
        command = scripts.SET_SCHEDULE.call(
            [shard.schedules, shard.schedule_states, shard.firings, shard.schedule_index],
            [read.id, read.definition, read.state, definition, state, next_at, _member(before), _member(after), room],
        )
        answer = await self._client.execute("set_schedule", command)
        if answer < 0:
            raise TooManySchedules(f"there are {self._max_schedules} schedules, and no more may be: delete some")
        return bool(answer)

    # Those that are due

    async def due(self, now: int, limit: int, indices: Sequence[int] | None = None) -> DueSchedules:
        """Return schedules that are due at `now` (ms), at most `limit`.

        They are those of the shards with these indices (None: of all) that are there.

        One that this version cannot read is left to other instances, then postponed, so that it holds up no others.
        """
        shards = self._keys.select(indices)
        due: list[Command] = [
            ("ZRANGE", shard.firings, "-inf", now, "BYSCORE", "LIMIT", 0, limit, "WITHSCORES") for shard in shards
        ]
        later: list[Command] = [
            ("ZRANGE", shard.firings, f"({now}", "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES") for shard in shards
        ]
        answers = await self._client.execute_available("due_schedules", [*due, *later], missing=[])
        found, following = answers[: len(shards)], answers[len(shards) :]
        entries = sorted((int(float(at)), id.decode()) for answer in found for id, at in pairs(answer))
        is_more = len(entries) >= limit
        next_times = [int(float(answer[1])) for answer in following if answer]
        reads = await self.read_each([id for _, id in entries[:limit]])
        is_more = is_more or len(reads) < len(entries)
        schedules: list[DueSchedule] = []
        unreadable: list[str] = []
        for (at, _), read in zip(entries, reads, strict=False):
            schedule = read.parse_if_readable()
            if schedule is not None:
                schedules.append(DueSchedule(schedule, read.state, at))
            elif now - at >= LEFT_TO_OTHERS_MS:
                unreadable.append(read.id)
        await self._postpone(unreadable, now + POSTPONE_MS)
        return DueSchedules(schedules, now if is_more else min(next_times, default=None))

    async def move_on(self, moves: Sequence[ScheduleMove]) -> list[bool | LaterError]:
        """Set schedules that have fired to their next times; False for one that is not any more as it was read."""

        def build(target: ShardTopic, some: list[ScheduleMove]) -> Command:
            arguments: list[Argument] = []
            for due, state in some:
                next_at: Argument = "" if state.next_at is None else state.next_at
                arguments += [due.id, due.at, due.raw_state, next_at, _encode(state)]
            return scripts.MOVE_SCHEDULES.call([target.shard.schedule_states, target.shard.firings], arguments)

        return await fan_out(
            self._client,
            "move_schedules",
            moves,
            lambda move: ShardTopic(self._keys.shard_of(move.due.id), b""),
            build,
            parse_flags,
        )

    async def postpone(self, due: Sequence[DueSchedule], until: int) -> None:
        """Let schedules be looked at again at a later time (ms). What was missed by then is judged then."""
        await self._postpone([schedule.id for schedule in due], until)

    async def _postpone(self, ids: Sequence[str], until: int) -> None:
        commands: list[Command] = [("ZADD", self._keys.shard_of(id).firings, "XX", "GT", until, id) for id in ids]
        await self._client.execute_optional("move_schedules", commands, missing=None)

    # All of them

    async def page(
        self,
        limit: int,
        after: SchedulePosition | None,
        namespace: str | None,
        has_room: Callable[[int], bool],
    ) -> SchedulePage:
        """Return the first `limit` schedules after a position; with a `namespace`, of topics of that alone.

        `has_room` is called with the bytes of definitions each time that some were read; if it returns False, the page
        ends there, and says where to go on. Those that cannot be read are left out.
        """
        positions, is_last = await self._positions(limit, after, namespace)
        schedules: list[StoredSchedule] = []
        read_count = 0
        while read_count < len(positions):
            reads = await self.read_each([position.id for position in positions[read_count:]])
            schedules += [schedule for read in reads if (schedule := read.parse_if_readable()) is not None]
            read_count += len(reads)
            if not has_room(sum(len(read.definition) for read in reads)):
                break
        if is_last and read_count == len(positions):
            return SchedulePage(schedules, None)
        return SchedulePage(schedules, positions[read_count - 1])

    async def _positions(
        self, limit: int, after: SchedulePosition | None, namespace: str | None
    ) -> tuple[list[SchedulePosition], bool]:
        """Return the first `limit` positions after one, and whether they are the last."""
        start, end = b"-", b"+"
        if namespace is not None:
            start, end = b"[" + schedule_member(namespace, ""), b"(" + namespace.encode() + b"\1"
        if after is not None:
            start = max(start, b"[" + schedule_member(*after) + b"\0")  # the first member after it
        commands: list[Command] = [
            ("ZRANGE", shard.schedule_index, start, end, "BYLEX", "LIMIT", 0, limit + 1) for shard in self._keys.shards
        ]
        answers = await self._client.execute_all("schedules", commands)
        members = sorted(member for answer in answers for member in answer)
        return [SchedulePosition(*parse_schedule_member(member)) for member in members[:limit]], len(members) <= limit

    async def _get_each(self, ids: Sequence[str]) -> list[StoredSchedule | None]:
        return [read.parse() for read in await self.read_each(ids)]

    async def read_each(self, ids: Sequence[str]) -> list[RawSchedule]:
        """Return the first of these schedules, as many as fit into one round trip: one at least.

        The states are read first: if a definition is newer than its state, no move from that state succeeds.
        """
        if not ids:
            return []

        def locate(id: str) -> ShardTopic:
            return ShardTopic(self._keys.shard_of(id), b"")

        def read_states(target: ShardTopic, some: list[str]) -> Command:
            return ("HMGET", target.shard.schedule_states, *some)

        def read_definitions(target: ShardTopic, some: list[str], max_bytes: int) -> Command:
            return scripts.READ_BODIES.call([target.shard.schedules], [max_bytes, *some])

        states = await fan_out(self._client, "schedules", ids, locate, read_states)
        definitions = await fan_out_reads(self._client, "schedules", ids, locate, read_definitions)
        reads: list[RawSchedule] = []
        for id, state, definition in zip(ids, states, definitions, strict=True):
            for answer in (state, definition):
                if isinstance(answer, LaterError):
                    raise answer
            if definition == UNREAD:
                break
            reads.append(RawSchedule(id, self._keys.shard_of(id), definition or b"", state or b""))
        return reads


def _member(schedule: StoredSchedule | None) -> bytes:
    """Return a schedule's member in the index; b"" for none."""
    return b"" if schedule is None else schedule_member(schedule.definition.topic_namespace, schedule.definition.id)


def _changed_each_time(id: str) -> Conflict:
    return Conflict(f"the schedule {id!r} changed each time it was looked at: try again")
