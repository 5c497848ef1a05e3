"""The verbs that change a task that its caller knows by its id: edited, due now, or brought back from the dead.

As with the other verbs that know only an id, its body is read first and the verb's script called with what was read;
where that is not so any more, the verb starts over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from later.core.edit import edit, renew_ttl
from later.core.errors import Conflict, LaterError, NotFound, StoreDown, UnreadableBody
from later.core.task import Task, encode, pack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import (
    MAX_BODIES,
    StoredTask,
    TaskRow,
    answers_by_first_occurrence,
    build_record,
    in_no_bucket,
    unwrap,
)
from later.store.dead_letters import Redrive, redrive_command
from later.store.fanout import Lane, fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.lookup import MAX_STARTS, Lookup, changed_too_often
from later.store.scripts import Argument, Command
from later.store.types import TaskEdit, TaskRecord

CHANGED, ANOTHER_BODY = 1, 0
"""What scripts answer of a task; else it was not where it would have to be."""

Result = TaskRecord | LaterError
Results = dict[str, Result]
Item = TypeVar("Item", TaskEdit, str)


class _Wish(NamedTuple):
    """A task as it was read, what it is to become, and when it is to be due (None: as it is)."""

    seen: StoredTask
    task: Task | UnreadableBody
    due_at: int | None


Call = Callable[[Shard, bytes, list[_Wish]], Command]


class Edits:
    """Every method answers for each of its items, where the task is then. Each raises StoreDown: nobody can know."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._by_id = Lookup(client, keys)

    async def update(self, edits: Sequence[TaskEdit]) -> list[Result]:
        """Edit tasks that wait, in delay or error."""
        return await _in_parts(edits, self._update)

    async def run_now(self, ids: Sequence[str], now: int) -> list[Result]:
        """Make tasks due now, from delay, error or dead."""
        return await _in_parts(ids, lambda some: self._run_now(some, now))

    async def redrive(self, ids: Sequence[str], now: int) -> list[Result]:
        """Bring dead tasks back, due now."""
        return await _in_parts(ids, lambda some: self._redrive(some, now))

    async def delete(self, ids: Sequence[str]) -> list[str | LaterError]:
        """Remove tasks from whatever bucket and forget their ids; `NotFound` for one that is not there.

        An id that had ended is forgotten too.
        """
        answers = await self._by_id.delete(ids)
        ended = [error.task_id for error in answers if isinstance(error, NotFound) and error.ended]
        await self._client.execute_all("forget", [("ZREM", self._keys.shard_of(id).done, pack_id(id)) for id in ended])
        return answers_by_first_occurrence(ids, answers)

    async def delete_pending(self, ids: Sequence[str]) -> list[str | LaterError]:
        """Remove tasks that are not dead; `Conflict` for one that is, `NotFound` for one that is not there.

        An id that had ended is still remembered.
        """
        return answers_by_first_occurrence(ids, await self._by_id.delete_pending(ids))

    async def _update(self, edits: list[TaskEdit]) -> Results:
        return await self._carry_out("update", edits, _edited, _update_call, _told_of_edit)

    async def _run_now(self, ids: list[str], now: int) -> Results:
        results = await self._carry_out(
            "run_now", ids, lambda _, body: _Wish(body, body.task, now), _run_now_call(now), _told_of_run
        )
        dead = [id for id, result in results.items() if isinstance(result, TaskRecord) and result.state is Bucket.DEAD]
        for id in dead:
            del results[id]
        back = await self._redrive(dead, now)
        return results | {id: result for id, result in back.items() if not isinstance(result, Conflict)}

    async def _redrive(self, ids: list[str], now: int) -> Results:
        return await self._carry_out(
            "redrive", ids, lambda _, body: _Wish(body, _renewed(body.task, now), now), _redrive_call, _told_of_redrive
        )

    async def _carry_out(
        self,
        verb: str,
        items: list[Item],
        decide: Callable[[Item, StoredTask], _Wish],
        call: Call,
        tell: Callable[[bool, TaskRecord], Result],
    ) -> Results:
        """What came of the items, without those of whose ids the pool holds another body by now.

        `tell` is told whether the task was changed, and where it is.
        """
        results: Results = {}
        wishes: list[_Wish] = []
        for item, body in zip(items, await self._by_id.bodies([_id(item) for item in items]), strict=True):
            try:
                wishes.append(decide(item, unwrap(body)))
            except LaterError as error:
                results[_id(item)] = error
        answers = await fan_out(self._client, verb, wishes, _lane, call, read=_codes_and_rows)
        for wish, answer in zip(wishes, answers, strict=True):
            result = _result(wish, answer, tell)
            if result is not None:
                results[wish.seen.id] = result
        return results


async def _in_parts(items: Sequence[Item], verb: Callable[[list[Item]], Awaitable[Results]]) -> list[Result]:
    """The verb's results for the items, in their order: so many at a time, and one of an id after the other."""
    answers: list[Result] = []
    for part in _parts(items):
        try:
            results = await _until_done(part, verb)
        except StoreDown as error:
            if not answers:
                raise
            left: list[Result] = [error] * (len(items) - len(answers))
            return answers + left  # what came before is known
        answers += [results[_id(item)] for item in part]
    return answers


def _parts(items: Sequence[Item]) -> Iterator[list[Item]]:
    part: dict[str, Item] = {}
    for item in items:
        if _id(item) in part or len(part) == MAX_BODIES:
            yield list(part.values())
            part = {}
        part[_id(item)] = item
    if part:
        yield list(part.values())


async def _until_done(items: list[Item], verb: Callable[[list[Item]], Awaitable[Results]]) -> Results:
    results: Results = {}
    for _ in range(MAX_STARTS):
        left = [item for item in items if _id(item) not in results]
        if not left:
            return results
        results |= await verb(left)
    return {_id(item): changed_too_often() for item in items} | results


def _id(item: TaskEdit | str) -> str:
    return item if isinstance(item, str) else item.id


def _lane(wish: _Wish) -> Lane:
    return wish.seen.shard, wish.seen.topic


# What is to become of a task


def _edited(wanted: TaskEdit, body: StoredTask) -> _Wish:
    """Raises LaterError: it cannot be edited like this."""
    if not isinstance(body.task, Task):
        raise Conflict(f"{body.task}: it can be deleted, not edited")
    task = edit(body.task, wanted.changes, wanted.policies, wanted.now)
    return _Wish(body, task, task.execute_at if wanted.changes.sets_due_time else None)


def _renewed(task: Task | UnreadableBody, now: int) -> Task | UnreadableBody:
    return renew_ttl(task, now) if isinstance(task, Task) else task


# Calls


def _update_call(shard: Shard, topic: bytes, wishes: list[_Wish]) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, shard.expiry, *shard.buckets(topic)]
    keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.ERROR]]
    arguments: list[Argument] = [topic]
    for seen, task, due_at in wishes:
        assert isinstance(task, Task)
        arguments += [pack_id(seen.id), seen.raw, encode(task), "" if due_at is None else due_at]
        arguments.append("" if task.expires_at is None else task.expires_at)
    return scripts.UPDATE.call(keys, arguments)


def _run_now_call(now: int) -> Call:
    def call(shard: Shard, topic: bytes, wishes: list[_Wish]) -> Command:
        keys = [shard.pool, shard.attempts, shard.outcome, *shard.buckets(topic)]
        keys += [shard.wakes[Bucket.DELAY], shard.wakes[Bucket.ERROR]]
        arguments: list[Argument] = [topic, now]
        for wish in wishes:
            arguments += [pack_id(wish.seen.id), wish.seen.raw]
        return scripts.RUN_NOW.call(keys, arguments)

    return call


def _redrive_call(shard: Shard, topic: bytes, wishes: list[_Wish]) -> Command:
    return redrive_command(shard, topic, [_redrive(wish) for wish in wishes])


def _redrive(wish: _Wish) -> Redrive:
    assert wish.due_at is not None
    new = wish.task if isinstance(wish.task, Task) and wish.task is not wish.seen.task else None
    return Redrive(pack_id(wish.seen.id), None, wish.due_at, wish.seen.raw, new)


# Answers


def _codes_and_rows(answer: Sequence[Any]) -> list[tuple[int, TaskRow]]:
    """Scripts that edit answer a code for each task, and then what a query does, but bodies and ends."""
    codes, *columns = answer
    return [(code, TaskRow(None, None, *parts)) for code, *parts in zip(codes, *columns, strict=True)]


def _result(
    wish: _Wish, answer: tuple[int, TaskRow] | LaterError, tell: Callable[[bool, TaskRecord], Result]
) -> Result | None:
    """None: the verb must start over."""
    if isinstance(answer, LaterError):
        return answer
    code, row = answer
    if code == ANOTHER_BODY:
        return None
    seen, changed = wish.seen, code == CHANGED
    found = build_record(seen.id, seen.topic, wish.task if changed else seen.task, row)
    return in_no_bucket(seen.id) if found is None else tell(changed, found)


def _told_of_edit(changed: bool, found: TaskRecord) -> Result:
    if changed:
        return found
    if found.state is Bucket.DEAD:
        return Conflict(f"task {found.id!r} is dead: /redrive or /run-now bring it back, then it can be edited")
    return Conflict(f"task {found.id!r} is in flight: it can be edited if its delivery fails, or deleted now")


def _told_of_run(changed: bool, found: TaskRecord) -> Result:
    if changed or found.state is Bucket.DEAD:
        return found
    return Conflict(f"task {found.id!r} is in flight: it runs already")


def _told_of_redrive(changed: bool, found: TaskRecord) -> Result:
    if changed:
        return found
    where = "in flight" if found.state is Bucket.UNACK else f"in {found.state}"
    advice = "wait for what its delivery comes to" if found.state is Bucket.UNACK else "/run-now makes it due now"
    return Conflict(f"task {found.id!r} is {where}, not dead: {advice}")
