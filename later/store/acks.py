"""Acks of consumers: the tasks of leases are done, and removed.

A lease says enough of its task for that. Only where a topic has an `on_done` its tasks are read first, because their
follow-up tasks say what they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from later.core.errors import LaterError, NotFound, StoreDown
from later.core.lease import Lease
from later.core.policy_scopes import Policies
from later.core.retry import SettleTarget, Verdict
from later.core.task import Task, pack_id
from later.core.task_names import pack_remembered
from later.store.follow_ups import FollowUps
from later.store.keys import Bucket, Keys, Shard, TopicGroup
from later.store.lookup import Lookup
from later.store.policies import PolicyBook
from later.store.scripts import Command
from later.store.tasks import SettleArguments, Tasks, settle_arguments
from later.store.types import TaskRecord


class Acks:
    """Acks, which may go ahead of other commands in their round trip, unless their tasks have follow-ups."""

    def __init__(self, keys: Keys, tasks: Tasks, lookup: Lookup, follow_ups: FollowUps, policies: PolicyBook) -> None:
        self._keys = keys
        self._tasks = tasks
        self._lookup = lookup
        self._follow_ups = follow_ups
        self._policies = policies

    def need_reads(self, leases: Sequence[Lease]) -> bool:
        """Return True if a task of these leases may have a follow-up."""
        policies = self._policies.latest
        return policies.has_follow_ups and any(_has_follow_up(lease, policies) for lease in leases)

    def commands(self, leases: Sequence[Lease], now: int) -> tuple[list[TopicGroup], list[Command]]:
        """Return the commands that ack leases whose tasks have no follow-ups, and the groups that they are for."""
        return self._tasks.settle_commands(self.targets(leases), _ack_arguments(leases, self._policies.latest, now))

    async def ack(self, leases: Sequence[Lease], now: int) -> list[bool | LaterError]:
        """Remove tasks that are done at `now` (ms), and make their follow-ups. See `Pulls.ack`. Raises StoreDown.

        One round trip; for those that may have follow-ups, one more and two for each 4 MiB of them. If the store goes
        away between them, the leases that were not acked before have `StoreDown` as their answers.
        """
        items = _ack_arguments(leases, self._policies.latest, now)
        if not self.need_reads(leases):
            return await self._tasks.settle_leases(self.targets(leases), items)
        policies = self._policies.latest
        results: list[bool | LaterError | None] = [None] * len(leases)
        others, unread = list[tuple[int, Task | None]](), dict[str, list[int]]()
        for number, lease in enumerate(leases):
            if _has_follow_up(lease, policies):
                unread.setdefault(lease.name, []).append(number)
            else:
                others.append((number, None))
        try:
            if others:
                await self._settle(others, leases, items, results)
            async for records in self._lookup.query_in_slices(list(unread)):
                read = [(number, record) for name, record in records.items() for number in unread[name]]
                await self._settle(self._plan(read, leases, policies, now, results), leases, items, results)
        except StoreDown as error:
            if True not in results:
                raise
            return [error if result is None else result for result in results]
        return [False if result is None else result for result in results]

    def targets(self, leases: Sequence[Lease]) -> list[tuple[Shard, bytes, int]]:
        """Return the targets of settles, as `Tasks.settle_leases` takes them."""
        return [(self._keys.shard_of(lease.id), lease.topic.encode(), 1) for lease in leases]

    def _plan(
        self,
        read: Sequence[tuple[int, TaskRecord | LaterError]],
        leases: Sequence[Lease],
        policies: Policies,
        now: int,
        results: list[bool | LaterError | None],
    ) -> list[tuple[int, Task | None]]:
        """Return the leases that hold the tasks that were read, with their follow-ups; fill in the others' results."""
        ended: list[tuple[int, Task | None]] = []
        for number, record in read:
            if isinstance(record, LaterError):
                results[number] = False if isinstance(record, NotFound) else record
            elif _is_held(record, leases[number]):
                verdict = self._follow_ups.plan(record, Verdict(SettleTarget.DONE, now), policies)
                ended.append((number, verdict.follow_up))
            else:
                results[number] = False
        return ended

    async def _settle(
        self,
        ended: Sequence[tuple[int, Task | None]],
        leases: Sequence[Lease],
        items: Sequence[SettleArguments],
        results: list[bool | LaterError | None],
    ) -> None:
        """Ack those of the leases that these numbers name, with the follow-ups of their tasks; fill in the results."""
        targets = self.targets([leases[number] for number, _ in ended])
        follow_ups = [follow_up for _, follow_up in ended]
        answers = await self._follow_ups.settle_leases(targets, [items[number] for number, _ in ended], follow_ups)
        for (number, _), answer in zip(ended, answers, strict=True):
            results[number] = answer


def _has_follow_up(lease: Lease, policies: Policies) -> bool:
    return policies.follow_up_topic(lease.topic, "on_done") != ""


def _is_held(record: TaskRecord, lease: Lease) -> bool:
    return record.topic == lease.topic and record.state is Bucket.UNACK and record.fence == lease.fence


def _ack_arguments(leases: Sequence[Lease], policies: Policies, now: int) -> list[SettleArguments]:
    items: list[SettleArguments] = []
    for lease in leases:
        until: int | None = None
        if lease.own_id:
            until = policies.for_topic(lease.topic).remember_until(now, lease.remember_ms)
        remembered = pack_remembered(lease.name) if lease.is_namespaced_uuid else b""
        time = "" if until is None else until
        items.append(
            settle_arguments(pack_id(lease.id), lease.fence, SettleTarget.DONE, time, remembered, lease.has_ttl)
        )
    return items
