"""The verbs that change or remove a task by its id: update, run now, redrive, delete.

The body is read first, because it says the topic; the verb's script gets the body that was read, and if the task has
another body by then, the verb starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from later.core.edit import edit, renew_ttl
from later.core.errors import Conflict, InFlight, LaterError, NotFound, StoreDown, UnreadableBody
from later.core.state_conflicts import edit_conflict, not_pending, redrive_conflict, run_now_conflict
from later.core.task import Task, encode_task, pack_id
from later.core.task_names import id_of, pack_remembered
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import StoredTask, TaskRow, build_record, in_no_bucket
from later.store.dead_letter_topics import DeadLetterTopics
from later.store.dead_letters import Redrive, redrive_command
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.lookup import MAX_STARTS, Lookup, apply_in_batches, apply_in_order, changed_too_often
from later.store.scripts import Argument, Command
from later.store.types import Deletion, TaskEdit, TaskRecord

CHANGED, OTHER_BODY = 1, 0
"""Codes that a script returns for a task. Any other code means that the task is in a bucket that the verb refuses."""

LEFT, IN_FLIGHT, LEASED = 2, 3, 4
"""More codes of the script `delete`: the task is dead and was left, it was deleted while it was in flight, or it is in
flight and was left."""

Result = TaskRecord | LaterError
Results = dict[str, Result]
Item = TypeVar("Item", TaskEdit, str)


class _Change(NamedTuple):
    """A change of a task: the task as it was read, its new form, and its new due time (None: that stays)."""

    seen: StoredTask
    task: Task | UnreadableBody
    due_at: int | None


class _Verb(NamedTuple, Generic[Item]):
    """A verb. `decide` returns an item's change or raises LaterError; `build` returns the command that makes changes.

    `explain` returns the result for a task that the verb did not change.
    """

    name: str
    decide: Callable[[Item, StoredTask], _Change]
    build: Callable[[ShardTopic, list[_Change]], Command]
    explain: Callable[[TaskRecord], Result]


class Edits:
    """Changes and removes tasks by id, with a result for each item. If StoreDown is raised, some may have changed."""

    def __init__(self, client: StoreClient, keys: Keys, dead_letter_topics: DeadLetterTopics) -> None:
        self._client = client
        self._keys = keys
        self._dead_letter_topics = dead_letter_topics
        self._lookup = Lookup(client, keys)

    async def update(self, edits: Sequence[TaskEdit]) -> list[Result]:
        """Edit tasks in delay or error; return where each is then. `Conflict` for one that is in flight or dead."""
        return await apply_in_order(edits, _id, partial(self._apply, _update_verb()))

    async def run_now(self, ids: Sequence[str], now: int) -> list[Result]:
        """Make tasks in delay, error or dead due now; return where each is then. `Conflict` for one in flight."""
        run_now, redrive = _run_now_verb(now), _redrive_verb(now)

        async def apply(some: list[str]) -> Results:
            results = await self._apply(run_now, some)
            dead = [id for id, found in results.items() if isinstance(found, TaskRecord) and found.state is Bucket.DEAD]
            for id in dead:
                del results[id]
            try:
                back = await self._apply(redrive, dead)
            except StoreDown as error:
                return results | dict.fromkeys(dead, error)  # the others are done
            return results | {id: result for id, result in back.items() if not isinstance(result, Conflict)}

        return await apply_in_order(ids, str, apply)

    async def redrive(self, ids: Sequence[str], now: int) -> list[Result]:
        """Bring tasks back, dead → delay, due now; return where each is then. `Conflict` for one that is not dead.

        A task that waits in a dead-letter topic goes back to the topic in which it died.
        """
        redrive = _redrive_verb(now)

        async def apply(some: list[str]) -> Results:
            results = await self._apply(redrive, some)
            waiting = [name for name, result in results.items() if type(result) is Conflict]
            return {**results, **await self._dead_letter_topics.move_back(waiting, now)} if waiting else results

        return await apply_in_order(ids, str, apply)

    async def delete(self, ids: Sequence[str]) -> list[Deletion | LaterError]:
        """Remove tasks from any bucket and forget their ids; `NotFound` if there is no such task.

        The ids of ended tasks are forgotten too.
        """
        return _first_occurrences(ids, await apply_in_batches(ids, self._delete_or_forget))

    async def delete_pending(self, ids: Sequence[str]) -> list[Deletion | LaterError]:
        """Remove tasks that are not dead; `Conflict` for one that is, `NotFound` if there is no such task.

        The ids of ended tasks stay remembered.
        """
        return _first_occurrences(ids, await apply_in_batches(ids, partial(self._delete, leave_dead=True)))

    async def delete_of_topic(
        self, topic: str, ids: Sequence[str], unleased_at: int | None = None
    ) -> list[Deletion | LaterError]:
        """Remove tasks of one topic as `delete_pending` does; `NotFound` for one of another topic.

        With `unleased_at` (ms), `InFlight` for one whose lease ends later, and it stays.
        """
        delete = partial(self._delete, leave_dead=True, topic=topic.encode(), unleased_at=unleased_at)
        return _first_occurrences(ids, await apply_in_batches(ids, delete))

    async def preview_delete(self, ids: Sequence[str]) -> list[Deletion | LaterError]:
        """Return what `delete` would answer now, and change nothing."""
        return await self._preview(ids, leave_ended=False)

    async def preview_delete_pending(self, ids: Sequence[str]) -> list[Deletion | LaterError]:
        """Return what `delete_pending` would answer now, and change nothing."""
        return await self._preview(ids, leave_ended=True)

    async def _preview(self, ids: Sequence[str], *, leave_ended: bool) -> list[Deletion | LaterError]:
        results: dict[str, Deletion | LaterError] = {}
        async for records in self._lookup.query_in_slices(ids):
            for name, found in records.items():
                if isinstance(found, TaskRecord) and not (leave_ended and found.state is Bucket.DEAD):
                    results[name] = Deletion(found.id, in_flight=found.state is Bucket.UNACK, topic=found.topic)
                elif isinstance(found, TaskRecord):
                    results[name] = not_pending(found.id)
                elif isinstance(found, NotFound) and found.ended and not leave_ended:
                    results[name] = Deletion(found.task_id, ended=True)
                else:
                    results[name] = found
        return _first_occurrences(ids, [results[id] for id in ids])

    async def _apply(self, verb: _Verb[Item], items: list[Item]) -> Results:
        """Return the results of the items, except for tasks whose body has changed since it was read, or was not read.

        Not all are read if their bodies do not fit in one round trip.
        """
        results: Results = {}
        changes: list[_Change] = []
        looked_up = await self._lookup.stored_tasks([_id(item) for item in items])
        for item, stored in [(item, looked_up[_id(item)]) for item in items if _id(item) in looked_up]:
            try:
                if isinstance(stored, LaterError):
                    raise stored
                changes.append(verb.decide(item, stored))
            except LaterError as error:
                results[_id(item)] = error
        return results | await self._change(verb, changes)

    async def _change(self, verb: _Verb[Item], changes: list[_Change]) -> Results:
        """Make the changes; return the results, except for tasks whose body has changed since it was read."""

        def locate(change: _Change) -> ShardTopic:
            return ShardTopic(change.seen.shard, change.seen.topic)

        def parse(answer: Sequence[Any]) -> list[tuple[int, TaskRow]]:
            codes, *columns = answer  # the rows are those of the script `query`, without bodies and ends
            return [(code, TaskRow(None, None, *parts)) for code, *parts in zip(codes, *columns, strict=True)]

        results: Results = {}
        answers = await fan_out(self._client, verb.name, changes, locate, verb.build, parse)
        for change, answer in zip(changes, answers, strict=True):
            name, id = change.seen.name, id_of(change.seen.name)
            if isinstance(answer, LaterError):
                results[name] = answer
                continue
            code, row = answer
            if code != OTHER_BODY:
                task = change.task if code == CHANGED else change.seen.task
                record = build_record(id, change.seen.topic, task, row)
                if record is None:
                    results[name] = in_no_bucket(id)
                else:
                    results[name] = record if code == CHANGED else verb.explain(record)
        return results

    async def _delete_or_forget(self, ids: list[str]) -> dict[str, Deletion | LaterError]:
        results = await self._delete(ids, leave_dead=False)
        ended = [id for id, result in results.items() if isinstance(result, NotFound) and result.ended]
        forget: list[Command] = [("ZREM", self._keys.shard_of(id).done, pack_remembered(id)) for id in ended]
        try:
            answers = await self._client.execute_each("forget", forget)
        except StoreDown as error:
            return results | dict.fromkeys(ended, error)  # the other tasks are deleted, and their results are known
        for id, answer in zip(ended, answers, strict=True):
            if isinstance(answer, LaterError):
                results[id] = answer
            else:  # of two deletes at once, only one has forgotten the id
                results[id] = Deletion(id_of(id), ended=True) if answer else NotFound(id_of(id))
        return results

    async def _delete(
        self, left: list[str], *, leave_dead: bool, topic: bytes | None = None, unleased_at: int | None = None
    ) -> dict[str, Deletion | LaterError]:
        """Return the results for those tasks whose bodies fit in one round trip: for one at least.

        With a `topic`, no task of another one is found.
        """
        results: dict[str, Deletion | LaterError] = {}
        for _ in range(MAX_STARTS):
            try:
                looked_up = await self._lookup.stored_tasks(left)
                looked_up = {name: _only_of(topic, stored) for name, stored in looked_up.items()}
                found = [stored for stored in looked_up.values() if isinstance(stored, StoredTask)]
                answers = await fan_out(
                    self._client,
                    "delete",
                    found,
                    lambda stored: ShardTopic(stored.shard, stored.topic),
                    lambda target, some: _delete_command(*target, some, leave_dead, unleased_at),
                )
            except StoreDown as error:
                if not results:
                    raise
                return results | dict.fromkeys(left, error)  # what came before the failure is known
            results |= {id: error for id, error in looked_up.items() if isinstance(error, LaterError)}
            for stored, answer in zip(found, answers, strict=True):
                result = answer if isinstance(answer, LaterError) else _parse_deletion(stored, answer)
                if result is not None:
                    results[stored.name] = result
            left = [id for id in looked_up if id not in results]
            if not left:
                return results
        return results | dict.fromkeys(left, changed_too_often())


def _only_of(topic: bytes | None, stored: StoredTask | LaterError) -> StoredTask | LaterError:
    """Return a task that was read, or `NotFound` if it is not of this topic."""
    if topic is not None and isinstance(stored, StoredTask) and stored.topic != topic:
        return NotFound(id_of(stored.name))
    return stored


def _parse_deletion(stored: StoredTask, code: int) -> Deletion | Conflict | None:
    """Return the result of a delete of a task; None if it has another body by now."""
    id = id_of(stored.name)
    if code == OTHER_BODY:
        return None
    if code == LEFT:
        return not_pending(id)
    if code == LEASED:
        return InFlight(f"the task {id!r} is in flight")
    return Deletion(id, in_flight=code == IN_FLIGHT, topic=stored.topic.decode())


def _delete_command(
    shard: Shard, topic: bytes, stored_tasks: Sequence[StoredTask], leave_dead: bool, unleased_at: int | None
) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, *shard.buckets(topic), *shard.wakes.values(), shard.expiry]
    arguments: list[Argument] = [topic, int(leave_dead), "" if unleased_at is None else unleased_at]
    for stored in stored_tasks:
        arguments += [pack_id(stored.name), stored.raw, int(stored.has_ttl)]
    return scripts.DELETE.call(keys, arguments)


def _first_occurrences(ids: Sequence[str], answers: Sequence[Deletion | LaterError]) -> list[Deletion | LaterError]:
    """Return the answers to a delete; `NotFound` for an id that was deleted earlier in the list."""
    first = {id: position for position, id in reversed(list(enumerate(ids)))}
    return [
        answer if first[name] == n else NotFound(id_of(name))
        for n, (name, answer) in enumerate(zip(ids, answers, strict=True))
    ]


def _id(item: TaskEdit | str) -> str:
    return item if isinstance(item, str) else item.id


def _update_verb() -> _Verb[TaskEdit]:
    def decide(task_edit: TaskEdit, stored: StoredTask) -> _Change:
        if not isinstance(stored.task, Task):
            raise Conflict(f"{stored.task}: it can be deleted, not edited")
        task = edit(stored.task, task_edit.changes, task_edit.policies, task_edit.now)
        return _Change(stored, task, task.execute_at if task_edit.changes.sets_due_time else None)

    def build(target: ShardTopic, changes: list[_Change]) -> Command:
        shard, topic = target
        keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry, *shard.buckets(topic)]
        keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.ERROR]]
        arguments: list[Argument] = [topic]
        for seen, task, due_at in changes:
            assert isinstance(task, Task)
            arguments += [pack_id(seen.name), seen.raw, encode_task(task), "" if due_at is None else due_at]
            if isinstance(seen.task, Task) and seen.task.expires_at == task.expires_at:
                arguments.append("same")
            else:
                arguments.append("" if task.expires_at is None else task.expires_at)
        return scripts.UPDATE.call(keys, arguments)

    return _Verb("update", decide, build, lambda found: edit_conflict(found.id, found.state))


def _run_now_verb(now: int) -> _Verb[str]:
    def build(target: ShardTopic, changes: list[_Change]) -> Command:
        shard, topic = target
        keys = [shard.pool, shard.attempts, shard.outcome, *shard.buckets(topic)]
        keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.ERROR]]
        arguments: list[Argument] = [topic, now]
        for change in changes:
            arguments += [pack_id(change.seen.name), change.seen.raw]
        return scripts.RUN_NOW.call(keys, arguments)

    def explain(found: TaskRecord) -> Result:
        if found.state is Bucket.DEAD:
            return found  # to be redriven
        return run_now_conflict(found.id)

    return _Verb("run_now", lambda _, stored: _Change(stored, stored.task, now), build, explain)


def _redrive_verb(now: int) -> _Verb[str]:
    def decide(_: str, stored: StoredTask) -> _Change:
        return _Change(stored, renew_ttl(stored.task, now) if isinstance(stored.task, Task) else stored.task, now)

    def build(target: ShardTopic, changes: list[_Change]) -> Command:
        redrives: list[Redrive] = []
        for seen, task, _ in changes:
            new = task if isinstance(task, Task) and task is not seen.task else None
            redrives.append(Redrive(pack_id(seen.name), None, now, seen.raw, new))
        return redrive_command(*target, redrives)

    return _Verb("redrive", decide, build, lambda found: redrive_conflict(found.id, found.state))
