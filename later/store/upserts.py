"""The verb upsert: create a task, or edit the one that waits under its id; a task that is dead gives its place.

The body that is there is read first, because an edit keeps what it does not name. One script then decides by the state
of the task, and changes nothing if the pool holds another body by then: the verb starts over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from later.core.edit import edit
from later.core.errors import Conflict, LaterError, Refused, StoreDown
from later.core.if_exists import Upsert
from later.core.state_conflicts import edit_conflict, other_topic_conflict
from later.core.task import Task, encode_task, pack_id
from later.core.task_names import name_of, pack_remembered
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import StoredTask, in_no_bucket
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, ShardTopic
from later.store.lookup import Lookup, apply_in_order
from later.store.scripts import Argument, Command
from later.store.types import CreateResult, UpdatedTask

CREATED, EDITED, OTHER_BODY, IN_FLIGHT, REFUSED = 1, 2, 0, -1, -2
"""Codes that the script returns for a task. Any other one means that the task is in no bucket."""

Results = dict[str, CreateResult | LaterError]


class _Plan(NamedTuple):
    """An upsert, the task that is there (None: none), and what becomes of that if it waits.

    It is edited as `edited`; without that, the new task takes its place, unless it is `refused`.
    """

    upsert: Upsert
    seen: StoredTask | None
    edited: Task | None = None
    refused: LaterError | None = None


class Upserts:
    """Creates or edits tasks, with a result for each. If StoreDown is raised, some may have been made."""

    def __init__(self, client: StoreClient, keys: Keys, lookup: Lookup) -> None:
        self._client = client
        self._keys = keys
        self._lookup = lookup

    async def upsert(self, upserts: Sequence[Upsert]) -> list[CreateResult | LaterError]:
        """Create tasks, or edit those of their ids: `InFlight` for one in flight, `Refused` if no edit may be so.

        `Conflict` for a task that waits in another topic, unless it moved there when it died in this one.
        """
        return await apply_in_order(upserts, _name, self._upsert)

    async def _upsert(self, upserts: list[Upsert]) -> Results:
        """Return the results, except for tasks whose body has changed since it was read, or was not read."""
        results: Results = {}
        there = await self._lookup.stored_or_free([_name(upsert) for upsert in upserts])
        plans: dict[bytes | None, list[_Plan]] = {}
        for upsert, seen in [(upsert, there[_name(upsert)]) for upsert in upserts if _name(upsert) in there]:
            if isinstance(seen, LaterError):
                results[_name(upsert)] = seen
                continue
            other = None if seen is None or seen.topic == upsert.task.topic.encode() else seen.topic
            plans.setdefault(other, []).append(_plan(upsert, seen))
        for other, some in plans.items():  # those of one topic in one round trip; that of a task seldom changes
            try:
                results |= await self._carry_out(some, other)
            except StoreDown as error:
                if not results:
                    raise
                return {_name(plan.upsert): error for left in plans.values() for plan in left} | results
        return results

    async def _carry_out(self, plans: list[_Plan], other: bytes | None) -> Results:
        """Carry out plans for tasks that are in the topic `other`, or (None) in that of their upserts, or nowhere."""

        def locate(plan: _Plan) -> ShardTopic:
            return ShardTopic(self._keys.shard_of(plan.upsert.task.id), plan.upsert.task.topic.encode())

        def build(target: ShardTopic, some: list[_Plan]) -> Command:
            return _command(target, target.topic if other is None else other, some)

        results: Results = {}
        answers = await fan_out(
            self._client, "upsert", plans, locate, build, lambda rows: list(zip(*rows, strict=True))
        )
        for plan, answer in zip(plans, answers, strict=True):
            result = answer if isinstance(answer, LaterError) else _result(plan, *answer)
            if result is not None:
                results[_name(plan.upsert)] = result
        return results


def _name(upsert: Upsert) -> str:
    return name_of(upsert.task)


def _plan(upsert: Upsert, seen: StoredTask | None) -> _Plan:
    """Return what an upsert does, by the task that is there."""
    if seen is None:
        return _Plan(upsert, None)
    new, old = upsert.task, seen.task
    if not isinstance(old, Task):
        return _Plan(upsert, seen, refused=Conflict(f"{old}: it can be deleted, not edited"))
    if old.topic != new.topic:
        if old.death is not None and old.death.topic == new.topic:
            return _Plan(upsert, seen)
        return _Plan(upsert, seen, refused=other_topic_conflict(new.id, old.topic, new.topic))
    try:
        edited = edit(old, upsert.changes, upsert.policies, new.created_at)
    except Refused as error:
        return _Plan(upsert, seen, refused=error)
    if new.remember_ms is not None:
        edited = msgspec.structs.replace(edited, remember_ms=new.remember_ms)
    return _Plan(upsert, seen, edited)


def _command(target: ShardTopic, there: bytes, plans: Sequence[_Plan]) -> Command:
    shard, topic = target
    keys = [shard.pool, shard.attempts, shard.outcome, shard.done, shard.expiry, shard.topics]
    keys += [shard.wakes[bucket] for bucket in (Bucket.DELAY, Bucket.ERROR, Bucket.DEAD)]
    keys += [*shard.buckets(there), shard.bucket(Bucket.DELAY, topic)]
    arguments: list[Argument] = [topic, there]
    for (new, changes, _), seen, edited, refused in plans:
        arguments += [pack_id(new.id), pack_remembered(name_of(new)), b"" if seen is None else seen.raw]
        arguments += [encode_task(new), new.execute_at, _end_of(new)]
        if edited is None:
            arguments += ["replace" if refused is None else "refuse", "", "", ""]
        else:
            due_at: Argument = edited.execute_at if changes.sets_due_time else ""
            keeps_end = seen is not None and isinstance(seen.task, Task) and seen.task.expires_at == edited.expires_at
            arguments += ["edit", encode_task(edited), due_at, "same" if keeps_end else _end_of(edited)]
    return scripts.UPSERT.call(keys, arguments)


def _end_of(task: Task) -> Argument:
    return "" if task.expires_at is None else task.expires_at


def _result(plan: _Plan, code: int, due_at: bytes) -> CreateResult | LaterError | None:
    """Return the result of a plan; None if the task has another body by now."""
    id = plan.upsert.task.id
    if code == OTHER_BODY:
        return None
    if code == CREATED:
        return True
    if code == EDITED:
        return UpdatedTask(int(float(due_at)))
    if code == IN_FLIGHT:
        return edit_conflict(id, Bucket.UNACK)
    return plan.refused if code == REFUSED and plan.refused is not None else in_no_bucket(id)
