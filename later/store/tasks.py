"""The verbs of a task's life: create, claim, settle, give back, release, and the topics that are due.

Methods take many tasks and make one round trip. If single tasks can fail on their own, the answers say so one by one:
a `LaterError` in the place of an answer is that task's error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from secrets import randbits
from typing import Any

import msgspec

from later.core.errors import IdTaken, LaterError, NodeDown, NotFound, first_fault
from later.core.held import Held, TopicHold
from later.core.retry import SettleTarget, encode_failure
from later.core.task import Task, decode_task_or_error, encode_task, pack_id, unpack_id
from later.core.task_names import name_of, pack_remembered
from later.store import scripts
from later.store.bulk_jobs import count_batch_command
from later.store.client import StoreClient
from later.store.codec import parse_failure, parse_put_back, parse_time
from later.store.due_notices import DueNotices
from later.store.fanout import LeadingCommands, parse_flags, spread_answers, spread_by_topic
from later.store.holds import HELD_RANGE, UNHELD_RANGE, held_until, is_for_rate
from later.store.keys import Bucket, Keys, Shard, TopicGroup, group_in_order, group_items, group_topics
from later.store.lookup import Lookup
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import (
    Claim,
    ClaimRequest,
    ClaimResult,
    CreateResult,
    DueTopic,
    DueTopics,
    ExistingTask,
    JobBatch,
    PutBack,
    ReleaseResult,
    Settlement,
    TaskRecord,
    WorkerSnapshot,
)

MAX_CLAIM_BYTES = 32 * 1024 * 1024
"""Bytes of bodies that one claim may return, all its topics together: more might exceed the store's timeout."""
FENCE_BITS = 52
"""Random bits of the base of a claim's fences, which are base + 1, base + 2, …: Lua's numbers hold 53 bits exactly.

The base is drawn here. A counter in the store would give a number twice after a failover to a replica that lags, and
the late settle of a lost claim would end a new task of the same id. It comes from the system for each call, because
forked processes would share the state of any other source.
"""
SettleArguments = tuple[Argument, ...]
"""The arguments of the script `settle` for one task (see `settle_arguments`)."""
GiveBackArguments = tuple[Argument, Argument, Argument, Argument]
"""The arguments of the script `give_back` for one task."""


class Tasks:
    """Tasks on their way through the buckets."""

    def __init__(self, client: StoreClient, keys: Keys, due_notices: DueNotices) -> None:
        self._client = client
        self._keys = keys
        self._lookup = Lookup(client, keys)
        self._due_notices = due_notices

    async def create(self, tasks: Sequence[Task], batch: JobBatch | None = None) -> list[CreateResult | LaterError]:
        """Store new tasks, each in pool and delay in one step; `ExistingTask` for an id that exists.

        With a `batch`, count them into its job and its run: the created tasks in the same step, the batch in the same
        round trip. So are the notices of tasks that consumers claim.

        Raises:
            StoreDown: whether anything was stored is not known.
        """
        counters = [] if batch is None else batch.counters
        forget_times: list[tuple[Argument, Argument]] = [(name, batch.forget_at) for name in counters] if batch else []
        commands: list[Command] = []
        may_be_pulled = False
        shard_of = self._keys.shard_of
        targets = [(shard_of(task.id), task.topic.encode()) for task in tasks]
        groups = group_in_order(tasks, targets, _chosen_id)
        for (shard, topic), some, _ in groups:
            delay, unack, error, _ = shard.buckets(topic)
            keys = [shard.pool, shard.done, delay, shard.wakes[Bucket.DELAY], shard.expiry, unack, error, shard.topics]
            if counters:
                keys += [shard.jobs, *map(shard.job, counters)]
            arguments: list[Argument] = [topic, len(counters), *chain.from_iterable(forget_times)]
            for task in some:
                expires_at: Argument = "" if task.expires_at is None else task.expires_at
                chosen: Argument = name_of(task).encode() if task.is_namespaced_uuid else b"1" if task.own_id else b"0"
                arguments += [pack_id(task.id), encode_task(task), task.execute_at, chosen, expires_at]
            commands.append(scripts.CREATE.call(keys, arguments))
            may_be_pulled = may_be_pulled or not some[0].callback
        count = [] if batch is None else [count_batch_command(self._keys, batch, len(tasks))]
        notices = self._due_notices.of(groups) if may_be_pulled else []
        answers = await self._client.execute_each("create", [*commands, *count, *notices])
        results: list[CreateResult | LaterError] = spread_answers(groups, answers[: len(groups)], _parse_created)
        if elsewhere := [n for n, result in enumerate(results) if result is _ELSEWHERE]:
            found = await self._find_elsewhere([name_of(tasks[n]) for n in elsewhere])
            for n in elsewhere:
                results[n] = found[name_of(tasks[n])]
        return results

    async def _find_elsewhere(self, names: Sequence[str]) -> dict[str, ExistingTask | LaterError]:
        """Return existing tasks that a create did not find in its own topic: dead ones are not due.

        A namespace's UUID that is another namespace's task is taken; so is one of which nothing is known, because
        otherwise the caller would believe in a task of its own.
        """
        found: dict[str, ExistingTask | LaterError] = {
            name: IdTaken() if "/" in name else ExistingTask(None) for name in names
        }
        try:
            async for records in self._lookup.query_in_slices(names):
                for name, record in records.items():
                    if isinstance(record, TaskRecord):
                        found[name] = ExistingTask(None if record.state is Bucket.DEAD else record.score)
                    elif isinstance(record, NotFound) and record.ended:
                        found[name] = ExistingTask(None)
        except LaterError:
            pass  # what was created is known, and that counts
        return found

    async def due_topics(self, bucket: Bucket, limit: int, shards: Sequence[int] | None = None) -> DueTopics:
        """Return the `limit` earliest wake entries of each shard that is there, in delay also of held topics.

        `shards` are the indices of those to look at; None stands for all.

        Raises:
            StoreDown: none of them is there.
        """
        chosen = self._keys.select(shards)
        held = _wake_ranges(chosen, Bucket.DELAY, limit, HELD_RANGE) if bucket is Bucket.DELAY else []
        commands = [*_wake_ranges(chosen, bucket, limit), *held]
        answers = await self._client.execute_available("due_topics", commands, missing=[])
        count = len(chosen)
        due = _parse_wakes(chosen, answers[:count], limit)
        holds = _parse_wakes(chosen, answers[count:], limit, held_until)
        return _merge(due, holds)

    async def worker_snapshot(
        self, limit: int, *, held: bool = True, shards: Sequence[int] | None = None
    ) -> WorkerSnapshot:
        """Return due topics of delay, with `held` also held ones, and the first times of unack, error and schedules.

        One round trip reads all that a worker needs in each tick, of the shards that are there, and the store's time.
        `shards` are the indices of those to look at; None stands for all.

        Raises:
            StoreDown: no shard is there, or the time could not be measured. A worker that looks at some shards sees
                nothing in them instead: it has looked well, and others need not take its part.
        """
        chosen = self._keys.select(shards)
        commands = [*_wake_ranges(chosen, Bucket.UNACK, 1), *_wake_ranges(chosen, Bucket.ERROR, 1)]
        commands += [("ZRANGE", shard.firings, 0, 0, "WITHSCORES") for shard in chosen]
        commands += _wake_ranges(chosen, Bucket.DELAY, limit)
        if held:
            commands += _wake_ranges(chosen, Bucket.DELAY, limit, HELD_RANGE)
        if shards is None:
            answers = await self._client.execute_available_timed("snapshot", commands, missing=[])
        else:
            found = await self._client.execute_each_timed("snapshot", commands)
            if (fault := first_fault(found)) is not None:
                raise fault
            answers = [[] if isinstance(answer, NodeDown) else answer for answer in found]
        count = len(chosen)
        unack, error, firings, delay, holds = (answers[n * count : (n + 1) * count] for n in range(5))
        held_topics = _parse_wakes(chosen, holds, limit, held_until)
        first_unack, first_error = _parse_wakes(chosen, unack, 1).topics, _parse_wakes(chosen, error, 1).topics
        return WorkerSnapshot(
            delay=_merge(_parse_wakes(chosen, delay, limit), held_topics),
            holds=[
                TopicHold(topic.decode(), held_until(float(entry)), is_for_rate(float(entry)))
                for answer in holds
                for topic, entry in zip(answer[::2], answer[1::2], strict=True)
            ],
            unack_at=first_unack[0].at if first_unack else None,
            error_at=first_error[0].at if first_error else None,
            firing_at=min((int(float(answer[1])) for answer in firings if answer), default=None),
        )

    async def claim(
        self,
        requests: Sequence[ClaimRequest],
        now: int,
        lease_end: int,
        max_bytes: int | None = None,
        leading: LeadingCommands | None = None,
    ) -> list[ClaimResult | LaterError]:
        """Claim due tasks, delay → unack, at most 500 for each request; `lease_end` (ms) is that of usual leases.

        The bodies of each script call are limited by its part of `max_bytes` (None: `MAX_CLAIM_BYTES`), but it returns
        at least one task. A topic that gets none for that reason keeps its turn. Of requests for the same topic and
        shard only the first one counts.

        Raises:
            StoreDown: whether anything was claimed is not known.
        """
        max_bytes = (max_bytes or MAX_CLAIM_BYTES) // max(len(requests), 1)
        shards = self._keys.shards
        groups = group_topics(
            (shards[request.shard], request.topic.encode(), min(request.limit, MAX_TASKS)) for request in requests
        )
        commands: list[Command] = []
        for shard, topics in groups:
            keys = [shard.pool, shard.attempts, shard.outcome, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
            arguments: list[Argument] = [now, max_bytes, randbits(FENCE_BITS)]
            delay, unack, _, _ = shard.bucket_prefixes
            for topic, positions in topics.items():
                keys += (delay + topic, unack + topic)
                _, _, limit, lease_extra_ms, hold_until, has_permits, is_pull, record = requests[positions[0]]
                hold: Argument = "" if hold_until is None else hold_until
                passes: Argument = "pull" if is_pull else int(has_permits)
                arguments += (topic, min(limit, MAX_TASKS), lease_end + lease_extra_ms, hold, passes)
            if record is not None:
                keys += (shard.expiry, shard.claim_record(record.claim_id))
                arguments[-1] = "record"
                arguments += (record.claim_id, record.encode(), record.ttl_ms, record.live_until)
            commands.append(scripts.CLAIM.call(keys, arguments))
        results: list[Any] = [None] * len(requests)
        if leading is None:
            answers = await self._client.execute_each("claim", commands)
        else:
            answers = await leading.execute_with(self._client, "claim", commands)
        for (first, *others), answer in spread_by_topic(groups, answers):
            result = results[first] = _parse_claims(requests[first], answer, lease_end)
            for position in others:
                results[position] = result if isinstance(result, LaterError) else ClaimResult(result.wake_at, 0, [])
        return results

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        """Carry out verdicts: unack → removed, error or dead; False if the lease was lost.

        Raises:
            StoreDown: whether anything was settled is not known. Settling again is safe: only the first one counts.
        """
        shards = self._keys.shards
        targets = [(shards[claim.shard], claim.topic.encode(), 1) for claim, _, _ in settlements]
        return await self.settle_leases(targets, list(map(settlement_arguments, settlements)))

    async def settle_leases(
        self, targets: Sequence[tuple[Shard, bytes, int]], items: Sequence[SettleArguments]
    ) -> list[bool | LaterError]:
        """Carry out verdicts as `settle` does; a target is a task's shard and topic, and 1. Raises StoreDown."""
        groups, commands = self.settle_commands(targets, items)
        return settle_answers(groups, await self._client.execute_each("settle", commands), len(items))

    def settle_commands(
        self, targets: Sequence[tuple[Shard, bytes, int]], items: Sequence[SettleArguments]
    ) -> tuple[list[TopicGroup], list[Command]]:
        """Return the commands by which `settle_leases` carries out verdicts, and the groups that they are for."""
        groups = group_topics(targets)
        commands: list[Command] = []
        for shard, topics in groups:
            keys = [shard.pool, shard.attempts, shard.outcome, shard.done, shard.expiry, shard.topics]
            keys += shard.wakes.values()
            counts, tasks = list[Argument](), list[Argument]()
            _, unack, error, dead = shard.bucket_prefixes
            for topic, positions in topics.items():
                keys += (unack + topic, error + topic, dead + topic)
                counts += (topic, len(positions))
                for position in positions:
                    tasks += items[position]
            commands.append(scripts.SETTLE.call(keys, counts + tasks))
        return groups, commands

    async def give_back(self, claims: Sequence[Claim]) -> list[bool | LaterError]:
        """Return claims that were not delivered, unack → delay; False if the lease was lost. Raises StoreDown."""
        return await self.put_back([PutBack(claim, claim.due_at) for claim in claims])

    async def put_back(self, tasks: Sequence[PutBack]) -> list[bool | LaterError]:
        """Return claims that were not delivered, each due at a time of its own, unack → delay.

        A task that is due later than before keeps its first due time. False if the lease was lost. Raises StoreDown.
        """
        shards = self._keys.shards
        return await self.give_back_leases(
            [(shards[claim.shard], claim.topic.encode()) for claim, _, _ in tasks],
            [(claim.packed, claim.fence, due_at, _first_due(claim, due_at, why)) for claim, due_at, why in tasks],
        )

    async def give_back_leases(
        self,
        targets: Sequence[tuple[Shard, bytes]],
        items: Sequence[GiveBackArguments],
        notices: Sequence[Command] = (),
    ) -> list[bool | LaterError]:
        """Return claims as `put_back` does, with notices; a target is a task's shard and topic. Raises StoreDown."""
        commands: list[Command] = []
        groups = group_items(items, targets)
        for (shard, topic), some, _ in groups:
            delay, unack, _, _ = shard.buckets(topic)
            keys = [shard.attempts, delay, unack, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
            commands.append(scripts.GIVE_BACK.call(keys, [topic, *chain.from_iterable(some)]))
        answers = await self._client.execute_each("give_back", [*commands, *notices])
        return spread_answers(groups, answers[: len(groups)], parse_flags)

    async def release(self, bucket: Bucket, topics: Sequence[DueTopic], now: int) -> list[ReleaseResult | LaterError]:
        """Move tasks whose lease or retry pause has ended, unack or error → delay, at most 500 of each topic.

        Raises:
            StoreDown: whether anything was moved is not known.
        """
        commands = []
        for _, name, index in topics:
            shard, topic = self._keys.shards[index], name.encode()
            keys = [shard.bucket(bucket, topic), shard.bucket(Bucket.DELAY, topic)]
            keys += [shard.wakes[bucket], shard.wakes[Bucket.DELAY]]
            commands.append(scripts.RELEASE.call(keys, [topic, now, MAX_TASKS]))
        answers = await self._client.execute_each("release", commands)
        return [
            answer if isinstance(answer, LaterError) else ReleaseResult(answer[1], parse_time(answer[0]))
            for answer in answers
        ]


def _wake_ranges(
    shards: Sequence[Shard], bucket: Bucket, limit: int, arguments: tuple[Argument, ...] = UNHELD_RANGE
) -> list[Command]:
    """Return a command for each shard that reads its earliest wake entries in a range."""
    return [("ZRANGE", shard.wakes[bucket], *arguments, "LIMIT", 0, limit, "WITHSCORES") for shard in shards]


def _parse_wakes(
    shards: Sequence[Shard],
    answers: Sequence[list[bytes]],
    limit: int,
    moment: Callable[[float], int | None] = math.ceil,
) -> DueTopics:
    """Return the topics in the answers to `_wake_ranges`, if any; `moment` returns the time that an entry means."""
    topics, more_ats = list[DueTopic](), list[int]()
    for shard, answer in zip(shards, answers, strict=False):
        for topic, entry in zip(answer[::2], answer[1::2], strict=True):
            at = moment(float(entry))
            if at is not None:
                topics.append(DueTopic(at, topic.decode(), shard.index))
        if len(answer) >= 2 * limit:
            more_ats.append(topics[-1].at)
    return DueTopics(sorted(topics), min(more_ats, default=None))


def _chosen_id(task: Task) -> str:
    return task.id if task.own_id else ""


def settle_answers(groups: Sequence[TopicGroup], answers: Sequence[Any], count: int) -> list[bool | LaterError]:
    """Return the answers to `count` verdicts from those to the commands that carried them out."""
    results: list[Any] = [None] * count
    for positions, answer in spread_by_topic(groups, answers):
        is_error = isinstance(answer, LaterError)
        for number, position in enumerate(positions):
            results[position] = answer if is_error else answer[number] == 1
    return results


def _first_due(claim: Claim, due_at: int, put_back_for: Held) -> Argument:
    """Return the first due time of a claim that is put back, as `give_back` takes it: empty if it is due no later."""
    if due_at <= claim.due_at:
        return ""
    return f"0{claim.due_at}" if put_back_for is Held.FAULT else claim.due_at


def settle_arguments(
    packed_id: bytes, fence: int, target: SettleTarget, time: Argument, failure: bytes, has_ttl: bool
) -> SettleArguments:
    """Return the arguments of the script `settle` for one task: half of them if nothing is left of it, as of most."""
    if target is SettleTarget.DONE and time == "" and not has_ttl:
        return packed_id, fence, "remove"
    return packed_id, fence, target, time, failure, int(has_ttl)


def settlement_arguments(settlement: Settlement) -> SettleArguments:
    """Return the arguments of the script `settle` by which a verdict is carried out."""
    claim, verdict, remember_until = settlement
    task, failure = claim.task, b""
    time: Argument = verdict.at
    if verdict.target is SettleTarget.DONE:
        time = "" if remember_until is None else remember_until
        if isinstance(task, Task) and task.is_namespaced_uuid:
            failure = pack_remembered(name_of(task))
    elif verdict.failure is not None:
        failure = encode_failure(verdict.failure)
    has_ttl = isinstance(task, Task) and task.expires_at is not None
    return settle_arguments(claim.packed, claim.fence, verdict.target, time, failure, has_ttl)


_ELSEWHERE = ExistingTask(None)


def _parse_created(answer: Sequence[int]) -> list[CreateResult]:
    """Parse the answer of the script `create`; `_ELSEWHERE` itself stands for a task that it did not find."""
    return [True if code == 1 else _ELSEWHERE if code < 0 else ExistingTask(code or None) for code in answer]


def _merge(due: DueTopics, held: DueTopics) -> DueTopics:
    more_ats = [at for at in (due.more_at, held.more_at) if at is not None]
    topics = sorted([*due.topics, *held.topics]) if held.topics else due.topics
    return DueTopics(topics, min(more_ats, default=None))


def _parse_claims(request: ClaimRequest, answer: list[Any] | LaterError, lease_end: int) -> ClaimResult | LaterError:
    if isinstance(answer, LaterError):
        return answer
    wake_at, orphans, *entries = answer
    ends = [] if request.record is None else [entry.pop() for entry in entries]
    claims: list[Claim] = []
    for packed, body, due_at, attempt, fence, failure in entries:
        id = unpack_id(packed)
        claims.append(
            Claim(
                id=id,
                packed=packed,
                topic=request.topic,
                shard=request.shard,
                task=decode_task_or_error(id, body),
                due_at=int(float(due_at)),
                attempt=attempt,
                fence=fence,
                failure=parse_failure(failure),
                put_back_for=parse_put_back(due_at) if due_at.startswith(b"0") else None,
                lease_end=lease_end + request.lease_extra_ms,
            )
        )
    if request.record is not None:
        claims = [_recorded(claim, request.record.claim_id, end) for claim, end in zip(claims, ends, strict=True)]
    return ClaimResult(parse_time(wake_at), orphans, claims)


def _recorded(claim: Claim, claim_id: str, end: bytes) -> Claim:
    """Return a claim as one under a record; `end` is that of its task's ttl, as the index has it."""
    task = claim.task
    if end and isinstance(task, Task):
        task = msgspec.structs.replace(task, expires_at=parse_time(end))
    return msgspec.structs.replace(claim, task=task, claim_id=claim_id)
