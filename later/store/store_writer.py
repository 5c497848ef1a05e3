"""Puts records into a store, each unless it is there: whatever is put again, or was never gone, stays as it is.

The order of the records does not matter. A task that was in flight becomes due at once, because its lease is one of
another store.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

from later.core.errors import LaterError
from later.core.policy_scopes import FOLLOW_UP_FIELDS, NO_SETTINGS, Level, Policies, PolicyScope, Settings
from later.core.schedule import MAX_SCHEDULES, Schedule
from later.core.store_records import (
    FieldEntry,
    FieldKind,
    JobEntry,
    Record,
    ScheduleEntry,
    TaskEntry,
    TimeEntry,
    TimeKind,
    TrailEntry,
)
from later.core.task import Task, decode_task_or_error, unpack_id
from later.core.task_names import name_of, pack_remembered
from later.store import scripts
from later.store.audit_trail import MAX_EVENTS
from later.store.client import StoreClient
from later.store.keys import Bucket, Keys, Shard, group_items, job_of, schedule_member
from later.store.policies import CHANGES_KEPT, PolicyBook, Replacement, needs_of
from later.store.scripts import Argument, Command

BUCKETS = (Bucket.DELAY, Bucket.ERROR, Bucket.DEAD)
_NUMBERS: dict[str, int] = {bucket.value: number for number, bucket in enumerate(BUCKETS, 1)}
VERSIONED = frozenset({FieldKind.POLICY, FieldKind.API_KEY, FieldKind.SIGNING})
"""Hashes of which processes have a copy, which they read again when the version is another one."""
FEEDING = ("dead_to", *FOLLOW_UP_FIELDS)
"""Fields of a policy that name a topic which gets tasks when others end."""
FIELDS_AT_ONCE = 500
GROUPS_AT_ONCE = 200
"""Script calls in one round trip."""
TOPICS_KNOWN = 100_000
"""Topics that are remembered as held; a topic that is forgotten is held again."""
OLDER = "equal or smaller"
"""A part of the error of XADD for an entry that is not the newest."""

_encode = msgspec.json.Encoder().encode
_decode_settings = msgspec.json.Decoder(Settings).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode


class Put(IntEnum):
    """The result of putting a record."""

    DONE = 1
    EXISTS = 0
    ENDED = -1
    """The task has ended, and its id is remembered."""


class StoreWriter:
    """Puts records. Every method raises StoreDown; then some may have been put, and all may be put again.

    With `hold`, all topics are paused before their first task is put. With `checks_ended`, a task of which the id is
    remembered as ended is not put.
    """

    def __init__(
        self, client: StoreClient, keys: Keys, policies: PolicyBook, *, hold: bool = False, checks_ended: bool = False
    ) -> None:
        self._client = client
        self._keys = keys
        self._policies = policies
        self._hold = hold
        self._checks_ended = checks_ended
        self._held = set[bytes]()
        self._fed = set[bytes]()
        """Topics that get tasks when those of other topics end, and are not paused yet."""
        self.held_topics = 0
        """How many topics were paused."""

    async def put(self, records: Sequence[Record], now: int) -> list[Put]:
        """Put records at `now` (ms), and return what became of each."""
        by_type: dict[type, list[int]] = {}
        for position, record in enumerate(records):
            by_type.setdefault(type(record), []).append(position)
        answers = [Put.EXISTS] * len(records)
        for kind, positions in by_type.items():
            chosen: list[Any] = [records[position] for position in positions]
            for position, answer in zip(positions, await self._put_of_type(kind, chosen, now), strict=True):
                answers[position] = answer
        return answers

    async def _put_of_type(self, kind: type, records: list[Any], now: int) -> list[Put]:
        if kind is TaskEntry:
            return await self.put_tasks(records, now)
        if kind is FieldEntry:
            return await self.put_fields(records)
        if kind is TrailEntry:
            return await self._put_audit(records)
        if kind is ScheduleEntry and self._hold:
            await self._hold_scheduled(records)
        puts = {TimeEntry: self._time_commands, ScheduleEntry: self._schedule_commands, JobEntry: self._job_commands}
        return await self._put_each([puts[kind](record) for record in records])  # type: ignore[operator]  # its own

    # Tasks

    async def put_tasks(self, tasks: Sequence[TaskEntry], now: int) -> list[Put]:
        """Put tasks; those that were in flight become due at `now` (ms)."""
        if self._hold:
            await self._hold_topics({task.topic for task in tasks})
        names = [unpack_id(task.id) for task in tasks]
        targets = [(self._keys.shard_of(name), task.topic) for name, task in zip(names, tasks, strict=True)]
        answers = [Put.EXISTS] * len(tasks)
        groups = group_items(tasks, targets)
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            part = groups[start : start + GROUPS_AT_ONCE]
            commands = [self._put_command(*group.target, group.items, now) for group in part]
            for group, codes in zip(part, await self._client.execute_all("put", commands), strict=True):
                for position, code in zip(group.positions, codes, strict=True):
                    answers[position] = Put(code)
        return answers

    def _put_command(self, shard: Shard, topic: bytes, tasks: Sequence[TaskEntry], now: int) -> Command:
        keys = [shard.pool, shard.attempts, shard.outcome, shard.done, shard.expiry, shard.topics]
        keys += [shard.bucket(bucket, topic) for bucket in BUCKETS]
        keys += [shard.wakes[bucket] for bucket in BUCKETS]
        arguments: list[Argument] = [topic, int(self._hold)]
        for id, _, bucket, at, body, attempts, failure in [_without_lease(task, now) for task in tasks]:
            task = decode_task_or_error(unpack_id(id) if self._checks_ended else "", body)
            ttl_end: Argument = ""
            name = b""
            if isinstance(task, Task):
                if task.expires_at is not None and bucket != Bucket.DEAD:
                    ttl_end = task.expires_at
                if self._checks_ended and task.own_id:
                    name = pack_remembered(name_of(task))
            arguments += [id, body, _NUMBERS[bucket], at, attempts or b"", failure or b"", ttl_end, name]
        return scripts.PUT_TASKS.call(keys, arguments)

    async def _hold_topics(self, topics: set[bytes]) -> None:
        """Pause topics by their policies, whatever these say. The tasks themselves come with a hold."""
        new = sorted((topics | self._fed) - self._held)
        self._fed.clear()
        if len(self._held) > TOPICS_KNOWN:
            self._held.clear()
        paused = _encode(NO_SETTINGS.merge({"paused": True}))
        answers = await self.put_fields([FieldEntry(FieldKind.POLICY, b"topic:" + topic, paused) for topic in new])
        for topic, answer in zip(new, answers, strict=True):
            if answer is Put.EXISTS:
                await self._pause(topic.decode())
        self._held.update(new)
        self.held_topics += len(new)

    async def _hold_scheduled(self, schedules: Sequence[ScheduleEntry]) -> None:
        """Pause the topics of schedules, in all shards at once: the next firing may be a moment away."""
        topics = {_decode_schedule(schedule.definition).topic.encode() for schedule in schedules}
        await self._hold_topics(topics)
        holds = [
            scripts.HOLD.call([shard.wakes[Bucket.DELAY], shard.topics], [topic, "inf"])
            for topic in sorted(topics)
            for shard in self._keys.shards
        ]
        for start in range(0, len(holds), FIELDS_AT_ONCE):
            await self._client.execute_all("put", holds[start : start + FIELDS_AT_ONCE])

    async def _pause(self, topic: str) -> None:
        """Pause a topic that has a policy of its own."""

        async def decide(policies: Policies) -> Replacement | None:
            settings = policies.settings_at(scope)
            return None if settings.fields.get("paused") is True else Replacement(settings.merge({"paused": True}))

        scope = PolicyScope(Level.TOPIC, topic)
        await self._policies.replace(scope, decide)

    # Fields

    async def put_fields(self, fields: Sequence[FieldEntry]) -> list[Put]:
        """Put fields of hashes that are in no shard. With `hold`, policies of topics say that these are paused."""
        by_kind: dict[FieldKind, list[int]] = {}
        for position, field in enumerate(fields):
            by_kind.setdefault(field.kind, []).append(position)
        answers = [Put.EXISTS] * len(fields)
        for kind, positions in by_kind.items():
            for start in range(0, len(positions), FIELDS_AT_ONCE):
                part = positions[start : start + FIELDS_AT_ONCE]
                chosen = [fields[position] for position in part]
                if kind is FieldKind.POLICY:
                    chosen = await self._prepare_policies(chosen)
                codes = await self._client.execute("put", self._fields_command(kind, chosen))
                for position, code in zip(part, codes, strict=True):
                    answers[position] = Put(code)
        return answers

    def _fields_command(self, kind: FieldKind, fields: Sequence[FieldEntry]) -> Command:
        key = self._keys.meta if kind is FieldKind.SETTING else self._keys.copied_hashes[kind]
        keys = [key, self._keys.policy_changes] if kind is FieldKind.POLICY else [key]
        arguments: list[Argument] = [int(kind in VERSIONED), CHANGES_KEPT]
        for field in fields:
            arguments += [field.name, field.value]
        return scripts.PUT_FIELDS.call(keys, arguments)

    async def _prepare_policies(self, fields: Sequence[FieldEntry]) -> list[FieldEntry]:
        """Note what daemons must know because of these policies, and let those of topics be paused if all are."""
        prepared, needs = list[FieldEntry](), set[str]()
        for field in fields:
            settings = _decode_settings(field.value)
            needs.update(needs_of(settings))
            is_topic = field.name.startswith(b"topic:")
            if self._hold:
                self._fed.update(str(settings.fields[name]).encode() for name in FEEDING if settings.fields.get(name))
            value = _encode(settings.merge({"paused": True})) if self._hold and is_topic else field.value
            prepared.append(field._replace(value=value))
        await self.add_needs(sorted(needs))
        return prepared

    async def add_needs(self, needs: Sequence[str]) -> None:
        """Note what every daemon on the store must know."""
        await self._client.execute_all("put", [scripts.NEED.call([self._keys.meta], [need]) for need in needs])

    # Others

    def _time_commands(self, entry: TimeEntry) -> list[Command]:
        if entry.kind is TimeKind.RAMP:
            return [("ZADD", self._keys.ramps, "NX", entry.at, entry.name)]
        return [("ZADD", self._keys.shard_of(unpack_id(entry.name)).done, "NX", entry.at, entry.name)]

    def _schedule_commands(self, entry: ScheduleEntry) -> list[Command]:
        definition = _decode_schedule(entry.definition)
        shard = self._keys.shard_of(definition.id)
        keys = [shard.schedules, shard.schedule_states, shard.firings, shard.schedule_index]
        next_at: Argument = "" if entry.next_at is None else entry.next_at
        member = schedule_member(definition.topic_namespace, definition.id)
        changed: list[Argument] = [entry.definition, entry.state, next_at, b"", member, MAX_SCHEDULES]
        return [scripts.SET_SCHEDULE.call(keys, [definition.id, b"", b"", *changed])]

    def _job_commands(self, entry: JobEntry) -> list[Command]:
        name = entry.counter.decode("utf-8", "backslashreplace")
        shard = self._keys.shard_of(job_of(name))
        counts: list[Command] = [("HSETNX", shard.job(name), field, count) for field, count in entry.counts.items()]
        return [*counts, ("ZADD", shard.jobs, "NX", entry.forget_at, entry.counter)]

    async def _put_each(self, puts: Sequence[Sequence[Command]]) -> list[Put]:
        """Run the commands of each record; it was put if one of them has written something."""
        answers = await self._client.execute_all("put", [command for commands in puts for command in commands])
        results, start = list[Put](), 0
        for commands in puts:
            end = start + len(commands)
            results.append(Put.DONE if any(answer == 1 for answer in answers[start:end]) else Put.EXISTS)
            start = end
        return results

    async def _put_audit(self, entries: Sequence[TrailEntry]) -> list[Put]:
        """Put entries of the audit trail; those that are older than its newest one cannot be put."""
        commands: list[Command] = [
            ("XADD", self._keys.audit_trail, "MAXLEN", "~", MAX_EVENTS, id, "event", event) for id, event in entries
        ]
        results = list[Put]()
        for answer in await self._client.execute_each("put", commands):
            if isinstance(answer, LaterError) and OLDER not in str(answer):
                raise answer
            results.append(Put.EXISTS if isinstance(answer, LaterError) else Put.DONE)
        return results


def _without_lease(task: TaskEntry, now: int) -> TaskEntry:
    """Return a task as it waits here: one that was in flight is due at `now`, and keeps the number of its attempts."""
    if task.bucket != Bucket.UNACK:
        return task
    begun_and_fence = b" ".join((task.attempts or b"0 0").split(b" ")[:2])
    return task._replace(bucket=Bucket.DELAY.value, at=now, attempts=begun_and_fence)
