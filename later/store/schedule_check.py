"""The part of the doctor that checks schedules: each fires when its state says, and each is in the list of schedules.

A schedule may fire or change while it is looked at. So each suspect is looked at again, and has a defect only if it is
the same after its entries were read as before: whatever changes them changes its state, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple

from later.store.client import StoreClient
from later.store.keys import Shard, parse_schedule_member, schedule_member
from later.store.schedules import RawSchedule, Schedules
from later.store.scripts import Command

SLICE = 50
"""Schedules read at once: each may have 128 KiB."""


class ScheduleDefect(NamedTuple):
    """A defect of the schedule `id`; `namespace` is that of a wrong entry in the list of schedules, "" for none."""

    kind: Literal["time", "unlisted", "leftover"]
    id: str
    namespace: str = ""


class ScheduleCheck:
    """Finds and repairs the defects of schedules. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, schedules: Schedules) -> None:
        self._client = client
        self._schedules = schedules

    async def defects(self, shard: Shard) -> AsyncIterator[ScheduleDefect]:
        """Yield the defects of a shard's schedules. Those that this version cannot read are passed over."""
        reported = set[str]()
        for scan in (("HSCAN", shard.schedule_states), ("ZSCAN", shard.firings)):
            async for names in self._scan(scan):
                ids = [name.decode() for name in names]
                suspects = [read.id for read, defect in await self._examine(shard, ids) if defect is not None]
                for id in suspects:
                    defect = None if id in reported else await self._confirm(shard, id)
                    if defect is not None:
                        reported.add(id)
                        yield defect
        async for names in self._scan(("ZSCAN", shard.schedule_index)):
            for namespace, id in map(parse_schedule_member, names):
                if await self._is_stale(id, namespace):
                    yield ScheduleDefect("leftover", id, namespace)

    async def repair(self, shard: Shard, id: str, namespace: str = "") -> bool:
        """Repair a schedule in its present state. Return False if nothing is wrong any more."""
        if namespace:
            if not await self._is_stale(id, namespace):
                return False
            member = schedule_member(namespace, id)
            is_removed = bool(await self._client.execute("doctor", ("ZREM", shard.schedule_index, member)))
            if not await self._is_stale(id, namespace):  # it was put meanwhile
                await self._schedules.restore(id)
            return is_removed
        return await self._confirm(shard, id) is not None and await self._schedules.restore(id)

    async def _confirm(self, shard: Shard, id: str) -> ScheduleDefect | None:
        """Return the defect of a schedule that did not change while it was looked at."""
        [(before, defect)] = await self._examine(shard, [id])
        [after] = await self._schedules.read_each([id])
        return defect if after == before else None

    async def _is_stale(self, id: str, namespace: str) -> bool:
        """Return True if a schedule is gone, or its topic is of another namespace than the one it is listed under."""
        [read] = await self._schedules.read_each([id])
        schedule = read.parse_if_readable()
        if schedule is None:
            return not read.definition
        return schedule.definition.topic_namespace != namespace

    async def _examine(self, shard: Shard, ids: Sequence[str]) -> list[tuple[RawSchedule, ScheduleDefect | None]]:
        """Return schedules, and what their entries seem to lack, or to have too much."""
        reads: list[RawSchedule] = []
        while len(reads) < len(ids):
            reads += await self._schedules.read_each(ids[len(reads) :])
        schedules = [read.parse_if_readable() for read in reads]
        members = [
            schedule_member("" if s is None else s.definition.topic_namespace, id)
            for id, s in zip(ids, schedules, strict=True)
        ]
        if not ids:
            return []
        commands: list[Command] = [
            ("ZMSCORE", shard.firings, *ids), ("ZMSCORE", shard.schedule_index, *members),
        ]  # fmt: skip
        times, listed = await self._client.execute_all("doctor", commands)
        found: list[tuple[RawSchedule, ScheduleDefect | None]] = []
        for read, schedule, time, entry in zip(reads, schedules, times, listed, strict=True):
            defect = None
            if schedule is not None:
                fires = not schedule.state.paused and schedule.state.next_at is not None
                if fires != (time is not None):
                    defect = ScheduleDefect("time", read.id)
                elif entry is None:
                    defect = ScheduleDefect("unlisted", read.id)
            elif not (read.definition and read.state) and (read.definition or read.state or time is not None):
                defect = ScheduleDefect("leftover", read.id)
            found.append((read, defect))
        return found

    async def _scan(self, scan: Command) -> AsyncIterator[list[bytes]]:
        """Yield the names in a hash or a sorted set, some at a time."""
        cursor = 0
        while True:
            cursor, found = await self._client.execute("doctor", (*scan, cursor, "COUNT", SLICE))
            names = [name for name, *_ in found] if isinstance(found, list) else [*found]
            for start in range(0, len(names), SLICE):
                yield names[start : start + SLICE]
            if cursor == 0:
                return
