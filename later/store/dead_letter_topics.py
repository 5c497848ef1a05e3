"""Moves of tasks between a topic and its dead-letter topic, each by one script within the task's shard.

A task that dies in a topic with `dead_to` does not go to the bucket `dead`, but to `delay` of the other topic. The
verdict on it says so (see `core.dead_letter_topic`), because its new body is made of the old one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from later.core.dead_letter_topic import move_back, move_dead
from later.core.errors import LaterError, NotFound, StoreDown
from later.core.follow_up import FIELD_OF_END
from later.core.policy_scopes import Policies
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task, encode_task, pack_id
from later.core.task_names import id_of
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import StoredTask
from later.store.due_notices import DueNotices
from later.store.expiry import Expiry
from later.store.fanout import MAX_READ_BYTES, split_by_weight
from later.store.follow_ups import LEAST_WEIGHT, Ending, Expiration, FollowUps, with_follow_ups
from later.store.keys import Bucket, Keys, Shard
from later.store.lookup import Lookup
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.types import Claim, ExpiredTask, Settlement, TaskRecord

_LEAST_WEIGHT = -(-MAX_READ_BYTES // MAX_TASKS)
"""The least weight of a task, so that no script call gets more than `MAX_TASKS`."""


class TopicChange(NamedTuple):
    """A task of `topic` that is to live on as `task`, in another topic, where it is due at `due_at` (ms).

    It is in flight, under the lease of `fence`; or it waits (None), and its body is `seen`. With a `follow_up`, that is
    made in the same step.
    """

    topic: str
    task: Task
    due_at: int
    fence: int | None = None
    seen: bytes = b""
    follow_up: Task | None = None

    @classmethod
    def by_verdict(cls, topic: str, fence: int, verdict: Verdict) -> TopicChange | None:
        """Return the change that a verdict on a task in flight asks for, if it does."""
        if verdict.moved is None:
            return None
        return cls(topic, verdict.moved, verdict.at, fence, follow_up=verdict.follow_up)


class DeadLetterTopics:
    """Moves dead tasks to dead-letter topics, and back. Claims that wait are told of them in the same round trip."""

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        lookup: Lookup,
        expiry: Expiry,
        due_notices: DueNotices,
        follow_ups: FollowUps,
    ) -> None:
        self._client = client
        self._keys = keys
        self._lookup = lookup
        self._expiry = expiry
        self._due_notices = due_notices
        self._follow_ups = follow_ups

    def plan(self, claim: Claim, verdict: Verdict, policies: Policies) -> Verdict:
        """Return the verdict on a claimed task, with the task as it moves, and with its follow-up, if it has them."""
        moving = move_dead(verdict, claim.task, policies) if isinstance(claim.task, Task) else verdict
        return self._follow_ups.plan_for_claim(claim, moving, policies)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        """Carry out verdicts as `FollowUps.settle` does; but a task that its verdict moves goes to the other topic.

        Raises:
            StoreDown: whether anything was settled is not known. Settling again is safe: only the first one counts.
        """
        if all(verdict.moved is None for _, verdict, _ in settlements):
            return await self._follow_ups.settle(settlements)
        changes = [TopicChange.by_verdict(claim.topic, claim.fence, verdict) for claim, verdict, _ in settlements]
        return await self.change_or_settle(
            changes, lambda some: self._follow_ups.settle([settlements[n] for n in some])
        )

    async def change_or_settle(
        self,
        changes: Sequence[TopicChange | None],
        settle: Callable[[Sequence[int]], Awaitable[Sequence[bool | LaterError]]],
    ) -> list[bool | LaterError]:
        """Make these changes as `change_topics` does; `settle` does what is to be done where there is none, by number.

        Raises: as `settle`.
        """
        results: list[bool | LaterError] = [False] * len(changes)
        others = [number for number, change in enumerate(changes) if change is None]
        for number, answer in zip(others, await settle(others) if others else (), strict=True):
            results[number] = answer
        moving = {number: change for number, change in enumerate(changes) if change is not None}
        for number, answer in zip(moving, await self.change_topics([*moving.values()]), strict=True):
            results[number] = answer
        return results

    async def change_topics(
        self, changes: Sequence[TopicChange], expired_by: int | None = None
    ) -> list[bool | LaterError]:
        """Move tasks to other topics; False for one whose lease was lost, or that is not as it was read any more.

        With `expired_by` (ms), a task that waits is moved only if its ttl has ended by then. A task whose move is not
        known to be done has `StoreDown` as its answer. Moving it again is safe: only the first move counts.
        """
        weighed = (
            (change, encode_task(change.task), b"" if change.follow_up is None else encode_task(change.follow_up))
            for change in changes
        )
        answers: list[bool | LaterError] = []
        for some in split_by_weight(weighed, MAX_READ_BYTES, _weight):
            try:
                answers += await self._change_some(some, "" if expired_by is None else expired_by)
            except StoreDown as error:
                answers += [error] * (len(changes) - len(answers))
                break
        return answers

    async def expire(
        self, deaths: Sequence[tuple[ExpiredTask, Failure]], now: int, policies: Policies
    ) -> list[bool | LaterError]:
        """Let waiting tasks die as `Expiry.expire` does, but move those whose topics have dead-letter topics.

        Their follow-up tasks are made.

        Raises:
            StoreDown: whether anything was moved is not known.
        """
        looked_up = {
            task.id: n
            for n, (task, _) in enumerate(deaths)
            if policies.dead_letter_topic(task.topic) or policies.follow_up_topic(task.topic, "on_dead")
        }
        results: dict[int, bool | LaterError] = {}
        left = list(looked_up)
        while left:
            found = await self._lookup.stored_tasks(left)
            numbers = {looked_up[name]: stored for name, stored in found.items()}
            results |= await self._expire_stored(deaths, numbers, now, policies)
            left = [name for name in left if name not in found]
        others = [number for number in range(len(deaths)) if number not in results]
        answers = await self._expiry.expire([deaths[number] for number in others], now)
        results.update(zip(others, answers, strict=True))
        return [results[number] for number in range(len(deaths))]

    async def _expire_stored(
        self,
        deaths: Sequence[tuple[ExpiredTask, Failure]],
        stored: Mapping[int, StoredTask | LaterError],
        now: int,
        policies: Policies,
    ) -> dict[int, bool | LaterError]:
        """Let those of the tasks die, by number, that move or have a follow-up, or cannot be read."""
        results: dict[int, bool | LaterError] = {}
        attempts: Sequence[int | LaterError] = [0] * len(stored)
        if policies.has_follow_ups:
            attempts = await self._expiry.attempts([deaths[number][0] for number in stored])
        changes: dict[int, TopicChange] = {}
        expirations: dict[int, Expiration] = {}
        for (number, found), begun in zip(stored.items(), attempts, strict=True):
            expired, failure = deaths[number]
            if isinstance(begun, LaterError):
                results[number] = begun
            elif isinstance(found, LaterError) and not isinstance(found, NotFound):
                results[number] = found
            if number in results or not isinstance(found, StoredTask) or found.topic != expired.topic.encode():
                continue
            verdict = Verdict(SettleTarget.DEAD, now, failure)
            if isinstance(found.task, Task):
                verdict = move_dead(verdict, found.task, policies)
            assert isinstance(begun, int)  # otherwise there is a result
            record = TaskRecord(expired.id, expired.topic, found.task, Bucket.DELAY, now, begun, failure)
            verdict = self._follow_ups.plan(record, verdict, policies)
            if verdict.moved is not None:
                changes[number] = TopicChange(
                    expired.topic, verdict.moved, now, seen=found.raw, follow_up=verdict.follow_up
                )
            elif verdict.follow_up is not None:
                expirations[number] = Expiration(expired, failure, verdict.follow_up, found.raw)
        results.update(zip(changes, await self.change_topics([*changes.values()], expired_by=now), strict=True))
        results.update(zip(expirations, await self._follow_ups.expire([*expirations.values()], now), strict=True))
        return results

    async def move_back(self, names: Sequence[str], now: int) -> Mapping[str, TaskRecord | LaterError]:
        """Return tasks that wait in a dead-letter topic to the topics in which they died, due at `now` (ms).

        Returns where each is then, or why that is not known. Tasks that do not wait there are left out.
        """
        left, moved = list(names), dict[str, TaskRecord | LaterError]()
        while left:
            try:
                looked_up = await self._lookup.stored_tasks(left)
            except StoreDown as error:
                return moved | dict.fromkeys(left, error)
            changes: dict[str, TopicChange] = {}
            for name, stored in looked_up.items():
                task = stored.task if isinstance(stored, StoredTask) else None
                if isinstance(stored, StoredTask) and isinstance(task, Task) and task.death is not None:
                    changes[name] = TopicChange(task.topic, move_back(task, task.death, now), now, seen=stored.raw)
            answers = await self.change_topics([*changes.values()])
            for (name, change), answer in zip(changes.items(), answers, strict=True):
                if isinstance(answer, LaterError):
                    moved[name] = answer
                elif answer:
                    task = change.task
                    moved[name] = TaskRecord(id_of(name), task.topic, task, Bucket.DELAY, now, 0, None)
            left = [name for name in left if name not in looked_up]
        return moved

    async def _change_some(self, some: Sequence[_EncodedChange], expired_by: Argument) -> list[bool | LaterError]:
        """Move tasks in one round trip, at most 500 with their follow-ups."""
        groups: dict[tuple[Shard, str, str, str], list[int]] = {}
        first_due: dict[str, tuple[int, Shard]] = {}
        for position, (change, _, _) in enumerate(some):
            target, follow_up = change.task.topic, change.follow_up
            shard = self._keys.shard_of(change.task.id)
            key = (shard, change.topic, target, follow_up.topic if follow_up else "")
            groups.setdefault(key, []).append(position)
            due_at, first_shard = first_due.get(target, (change.due_at, shard))
            first_due[target] = (min(change.due_at, due_at), first_shard)
        commands = [
            _change_command(shard, topic, target, expired_by, [some[position] for position in positions])
            for (shard, topic, target, _), positions in groups.items()
        ]
        notices = [self._due_notices.heard_command(topic, *notice) for topic, notice in first_due.items()]
        notices += self._follow_ups.notices([change.follow_up for change, _, _ in some if change.follow_up is not None])
        answers = await self._client.execute_each("change_topic", [*commands, *notices])
        results: list[bool | LaterError] = [False] * len(some)
        for positions, answer in zip(groups.values(), answers, strict=False):
            is_error = isinstance(answer, LaterError)
            for number, position in enumerate(positions):
                results[position] = answer if is_error else answer[number] == 1
        made = [r is True and change.follow_up is not None for r, (change, _, _) in zip(results, some, strict=True)]
        self._follow_ups.count(FIELD_OF_END[SettleTarget.DEAD], made.count(True))
        return results


_EncodedChange = tuple[TopicChange, bytes, bytes]
"""A change, the new body of its task, and the body of its follow-up, b"" for none."""


def _weight(encoded: _EncodedChange) -> int:
    change, body, follow_up = encoded
    return max(len(body) + len(follow_up), _LEAST_WEIGHT if change.follow_up is None else LEAST_WEIGHT)


def _change_command(
    shard: Shard, topic: str, target: str, expired_by: Argument, changes: Sequence[_EncodedChange]
) -> Command:
    """Return the command that moves tasks from one topic to another, and makes their follow-ups, if they have any."""
    delay, unack, error, _ = shard.buckets(topic.encode())
    keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry, shard.topics]
    keys += [shard.wakes[bucket] for bucket in (Bucket.DELAY, Bucket.UNACK, Bucket.ERROR)]
    keys += [delay, unack, error, shard.bucket(Bucket.DELAY, target.encode())]
    tasks: list[tuple[Argument, ...]] = []
    endings: list[Ending] = []
    for (_, task, due_at, fence, seen, follow_up), body, follow_up_body in changes:
        ttl_end: Argument = "" if task.expires_at is None else task.expires_at
        tasks.append((pack_id(task.id), "" if fence is None else fence, seen, body, due_at, ttl_end))
        if follow_up is not None:
            endings.append(Ending(follow_up, follow_up_body))
    command = scripts.CHANGE_TOPIC.call(keys, [topic, target, expired_by, *chain.from_iterable(tasks)])
    return with_follow_ups(command, shard, endings) if endings else command
