"""Follow-up tasks: planned together with the verdicts that end tasks, and made by the scripts that end these.

So there is neither an end without its follow-up task nor the other way round, whatever is killed. The id of a follow-up
gets last digits with which it falls into the shard of the task that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from later.core.errors import LaterError, StoreDown
from later.core.follow_up import FIELD_OF_END, build_follow_up, follow_up_topic
from later.core.ordered_ids import order_id
from later.core.policy import PULL
from later.core.policy_scopes import Policies
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task, encode_task, new_id, pack_id
from later.core.task_view import ended_view
from later.store.client import StoreClient
from later.store.due_notices import DueNotices
from later.store.expiry import Expiry
from later.store.fanout import MAX_READ_BYTES, split_by_weight
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.scripts import MAX_TASKS, WITH_FOLLOW_UPS, Argument, Command
from later.store.tasks import SettleArguments, Tasks, settle_answers, settlement_arguments
from later.store.types import Claim, ExpiredTask, Settlement, TaskRecord

LEAST_WEIGHT = -(-2 * MAX_READ_BYTES // MAX_TASKS)
"""The least weight of a task with a follow-up, so that a script call gets no more than `MAX_TASKS` of both together."""

_encode_json = msgspec.json.Encoder().encode


class Ending(NamedTuple):
    """The end of a task: its follow-up, with the body of that.

    Of a task that is not in flight, where its lease would guard it, also its id and its body as it was read.
    """

    follow_up: Task
    body: bytes
    id: str = ""
    seen: bytes = b""


class Expiration(NamedTuple):
    """The death of a task whose ttl ended while it waited: its failure, its follow-up, and its body as it was read."""

    expired: ExpiredTask
    failure: Failure
    follow_up: Task
    seen: bytes


class FollowUps:
    """Plans follow-up tasks, and ends tasks together with making them.

    `count` is called with a policy field, on_dead or on_done, and the number of tasks that were made by it.
    """

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        tasks: Tasks,
        expiry: Expiry,
        due_notices: DueNotices,
        count: Callable[[str, int], None],
    ) -> None:
        self._client = client
        self._keys = keys
        self._tasks = tasks
        self._expiry = expiry
        self._due_notices = due_notices
        self.count = count

    def plan(self, record: TaskRecord, verdict: Verdict, policies: Policies) -> Verdict:
        """Return the verdict on a task; if its end makes a follow-up task, with that."""
        topic = follow_up_topic(record.topic, record.task, verdict.target, policies)
        if not topic:
            return verdict
        policy, shard = policies.for_topic(topic), self._keys.shard_of(record.id)
        id = order_id(new_id(), verdict.at) if policy.deliver is PULL else new_id()
        id = self._keys.fit_id(id, shard)
        content = _encode_json(ended_view(record, verdict)).decode()
        follow_up = build_follow_up(topic, id, content, policy, verdict.at, record.task)
        return msgspec.structs.replace(verdict, follow_up=follow_up)

    def plan_for_claim(self, claim: Claim, verdict: Verdict, policies: Policies) -> Verdict:
        """Return the verdict on a claimed task as `plan` does."""
        task, topic = claim.task, claim.topic
        record = TaskRecord(claim.id, topic, task, Bucket.UNACK, claim.lease_end, claim.attempt, claim.failure)
        return self.plan(record, verdict, policies)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        """Carry out verdicts as `Tasks.settle` does, and make the follow-up tasks that they have.

        Raises:
            StoreDown: whether anything was settled is not known. Settling again is safe: only the first one counts.
        """
        shards = self._keys.shards
        return await self.settle_leases(
            [(shards[claim.shard], claim.topic.encode(), 1) for claim, _, _ in settlements],
            list(map(settlement_arguments, settlements)),
            [verdict.follow_up for _, verdict, _ in settlements],
        )

    async def settle_leases(
        self,
        targets: Sequence[tuple[Shard, bytes, int]],
        items: Sequence[SettleArguments],
        follow_ups: Sequence[Task | None],
    ) -> list[bool | LaterError]:
        """Carry out verdicts as `Tasks.settle_leases` does, and make their follow-up tasks. Raises as `settle`.

        One round trip, or more if the follow-ups are large. What has no follow-up is settled in the first one.
        """
        others: Sequence[int] = [number for number, follow_up in enumerate(follow_ups) if follow_up is None]
        if len(others) == len(items):
            return await self._tasks.settle_leases(targets, items)
        endings = (
            (number, Ending(follow_up, encode_task(follow_up)))
            for number, follow_up in enumerate(follow_ups)
            if follow_up is not None
        )
        results: list[Any] = [None] * len(items)
        for some in split_by_weight(endings, MAX_READ_BYTES, lambda item: max(len(item[1].body), LEAST_WEIGHT)):
            try:
                answers = await self._settle_some(targets, items, others, dict(some))
            except StoreDown as error:
                if results.count(None) == len(results):
                    raise
                return [error if result is None else result for result in results]
            for number, answer in answers.items():
                results[number] = answer
            others = ()
        return results

    async def expire(self, expirations: Sequence[Expiration], now: int) -> list[bool | LaterError]:
        """Let waiting tasks die as `Expiry.expire` does, and make their follow-up tasks.

        False also if the body of a task of the same call has changed since it was read. A task whose death is not known
        has `StoreDown` as its answer. Doing it again is safe.
        """
        endings = (
            (item, Ending(item.follow_up, encode_task(item.follow_up), item.expired.id, item.seen))
            for item in expirations
        )
        answers: list[bool | LaterError] = []
        for some in split_by_weight(
            endings, MAX_READ_BYTES, lambda item: max(len(item[1].body) + len(item[1].seen), LEAST_WEIGHT)
        ):
            try:
                answers += await self._expire_some(some, now)
            except StoreDown as error:
                answers += [error] * (len(expirations) - len(answers))
                break
        return answers

    def notices(self, follow_ups: Sequence[Task]) -> list[Command]:
        """Return the commands that tell claims which wait of new follow-up tasks."""
        due = {task.topic: (task.execute_at, self._keys.shard_of(task.id)) for task in follow_ups}
        return [self._due_notices.heard_command(topic, *notice) for topic, notice in due.items()]

    async def _settle_some(
        self,
        targets: Sequence[tuple[Shard, bytes, int]],
        items: Sequence[SettleArguments],
        others: Sequence[int],
        endings: Mapping[int, Ending],
    ) -> dict[int, bool | LaterError]:
        """Settle some tasks, by number, in one round trip: `others`, which have no follow-up, and the endings."""
        parts: list[Sequence[int]] = [others] if others else []
        by_topics: dict[tuple[Shard, bytes, str], list[int]] = {}
        for number, ending in endings.items():
            by_topics.setdefault((*targets[number][:2], ending.follow_up.topic), []).append(number)
        calls = [
            self._tasks.settle_commands([targets[number] for number in part], [items[number] for number in part])
            for part in [*parts, *by_topics.values()]
        ]
        commands = [*calls[0][1]] if others else []
        for numbers, (groups, [command]) in zip(by_topics.values(), calls[len(parts) :], strict=True):
            commands.append(with_follow_ups(command, groups[0].shard, [endings[number] for number in numbers]))
        notices = self.notices([ending.follow_up for ending in endings.values()])
        answers = iter(await self._client.execute_each("settle", [*commands, *notices]))
        results: dict[int, bool | LaterError] = {}
        for part, (groups, _) in zip([*parts, *by_topics.values()], calls, strict=True):
            settled = settle_answers(groups, [next(answers) for _ in groups], len(part))
            results.update(zip(part, settled, strict=True))
        for number in endings:
            if results[number] is True:
                self.count("on_dead" if items[number][2] is SettleTarget.DEAD else "on_done", 1)
        return results

    async def _expire_some(self, some: Sequence[tuple[Expiration, Ending]], now: int) -> list[bool | LaterError]:
        """Let tasks die in one round trip, at most 250."""
        by_topic: dict[tuple[int, str], list[int]] = {}
        for number, (expiration, _) in enumerate(some):
            by_topic.setdefault((expiration.expired.shard, expiration.expired.topic), []).append(number)
        commands: list[Command] = []
        for (index, topic), numbers in by_topic.items():
            shard = self._keys.shards[index]
            deaths = [(some[number][0].expired, some[number][0].failure) for number in numbers]
            command = self._expiry.expire_command(ShardTopic(shard, topic.encode()), deaths, now)
            commands.append(with_follow_ups(command, shard, [some[number][1] for number in numbers]))
        notices = self.notices([ending.follow_up for _, ending in some])
        answers = await self._client.execute_each("expire", [*commands, *notices])
        results: list[bool | LaterError] = [False] * len(some)
        for numbers, answer in zip(by_topic.values(), answers, strict=False):
            is_error = isinstance(answer, LaterError)
            for position, number in enumerate(numbers):
                results[number] = answer if is_error else answer[position] == 1
        self.count(FIELD_OF_END[SettleTarget.DEAD], results.count(True))
        return results


def with_follow_ups(command: Command, shard: Shard, endings: Sequence[Ending]) -> Command:
    """Return the command that does as `command`, and makes the follow-ups, which are of one topic.

    `command` calls a script that ends tasks of one topic: one for each of the endings, in the same order.
    """
    _, sha, count, *rest = command
    keys: list[Any] = rest[: int(count)]
    topic = endings[0].follow_up.topic.encode()
    own_keys = [shard.pool, shard.expiry, shard.topics, shard.wakes[Bucket.DELAY], shard.bucket(Bucket.DELAY, topic)]
    own: list[Argument] = [topic, len(endings)]
    for task, body, id, seen in endings:
        ttl_end: Argument = "" if task.expires_at is None else task.expires_at
        own += (pack_id(id), seen, pack_id(task.id), body, task.execute_at, ttl_end)
    return WITH_FOLLOW_UPS[str(sha)].call([*own_keys, *keys], [*own, *rest[int(count) :]])
