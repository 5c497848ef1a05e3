"""The verbs that know only an id: what topic its task is of, and so where it is, they must find out.

A body says its topic, so it is read first; then the verb's script is called with what was read, and where that is not
so any more, the verb starts over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from later.core.errors import Conflict, LaterError, NotFound, StoreDown, StoreFault
from later.core.task import Task, pack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, StoredTask, TaskRow, build_record, decode_task, in_no_bucket, parse_rows
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Argument, Command
from later.store.types import TaskRecord

MAX_STARTS = 20
"""How often a verb starts over when an id changes hands under it."""

MAX_SCORES = 2000
"""How many scores are read in one round trip."""

Result = TypeVar("Result")
Deletes = Callable[[Shard, bytes, list[StoredTask]], Command]


class Lookup:
    """Finds tasks, and removes them."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._topic = b""
        """Of the task that was found last. Tasks asked for one after the other are often of one topic, and a query
        that guesses it needs one round trip instead of two."""

    async def query(self, ids: Sequence[str]) -> list[TaskRecord | LaterError]:
        """Where tasks are; `NotFound` for one that is not there. Raises StoreDown."""
        return await _in_parts(ids, self._find)

    async def delete(self, ids: Sequence[str]) -> list[str | LaterError]:
        """Remove tasks and what is known of them; their ids. Raises StoreDown: nobody can know."""
        return await _in_parts(ids, partial(self._remove, deletes=_delete))

    async def delete_pending(self, ids: Sequence[str]) -> list[str | LaterError]:
        """The same of those that are not dead; `Conflict` for one that is. Raises StoreDown: nobody can know."""
        return await _in_parts(ids, partial(self._remove, deletes=_delete_pending))

    async def _find(self, left: list[str]) -> dict[str, TaskRecord | LaterError]:
        results: dict[str, TaskRecord | LaterError] = {}
        topics = dict.fromkeys(left, self._topic)
        for _ in range(MAX_STARTS):
            for id, row in zip(left, await self._rows(left, topics), strict=True):
                read = _read(id, topics[id], row)
                if read is None:
                    read = await self._topic_holding(id) or in_no_bucket(id)
                if isinstance(read, bytes):
                    topics[id] = read
                else:
                    results[id] = read
            left = [id for id in left if id not in results]
            if not left:
                return results
            self._topic = topics[left[0]]
        return results | dict.fromkeys(left, changed_too_often())

    async def _rows(self, ids: list[str], topics: Mapping[str, bytes]) -> list[TaskRow | LaterError]:
        """What the store says of each, if it is of this topic."""

        def call(shard: Shard, topic: bytes, some: list[str]) -> Command:
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return scripts.QUERY.call(keys, [pack_id(id) for id in some])

        shard_of = self._keys.shard_of
        return await fan_out(self._client, "query", ids, lambda id: (shard_of(id), topics[id]), call, read=parse_rows)

    async def _remove(self, left: list[str], deletes: Deletes) -> dict[str, str | LaterError]:
        results: dict[str, str | LaterError] = {}
        for _ in range(MAX_STARTS):
            bodies = await self.bodies(left)
            results |= {id: body for id, body in zip(left, bodies, strict=True) if isinstance(body, LaterError)}
            found = [body for body in bodies if isinstance(body, StoredTask)]
            answers = await fan_out(self._client, "delete", found, lambda body: (body.shard, body.topic), deletes)
            for body, answer in zip(found, answers, strict=True):
                if answer:
                    results[body.id] = _deleted(body.id, answer)
            left = [id for id in left if id not in results]
            if not left:
                return results
        return results | dict.fromkeys(left, changed_too_often())

    async def bodies(self, ids: Sequence[str]) -> list[StoredTask | LaterError]:
        """What the pool holds of tasks, and where they belong; `NotFound` for one that is not there."""
        raws = await self._values("HMGET", lambda shard: shard.pool, ids)
        missing = [id for id, raw in zip(ids, raws, strict=True) if raw is None]
        ended = iter(await self._values("ZMSCORE", lambda shard: shard.done, missing))
        return [
            raw if isinstance(raw, LaterError)
            else _not_found(id, next(ended)) if raw is None
            else await self._body(id, raw)
            for id, raw in zip(ids, raws, strict=True)
        ]  # fmt: skip

    async def _values(self, command: str, key: Callable[[Shard], bytes], ids: Sequence[str]) -> list[Any]:
        """What one key of each shard holds of the ids, by a command that takes many; a `LaterError` where it failed."""

        def call(shard: Shard, _: bytes, some: list[str]) -> Command:
            return (command, key(shard), *(pack_id(id) for id in some))

        return await fan_out(self._client, "read", ids, lambda id: (self._keys.shard_of(id), b""), call)

    async def _body(self, id: str, raw: bytes) -> StoredTask:
        task = decode_task(id, raw)
        topic = task.topic.encode() if isinstance(task, Task) else await self._topic_holding(id)
        return StoredTask(id, self._keys.shard_of(id), topic, raw, task)

    async def _topic_holding(self, id: str) -> bytes:
        """The topic of a task whose body does not say it, found in the buckets. Slow, and rarely needed."""
        shard, packed = self._keys.shard_of(id), pack_id(id)
        wakes = await self._client.execute_all("read", [("ZRANGE", wake, 0, -1) for wake in shard.wakes.values()])
        topics = sorted({topic for answer in wakes for topic in answer})
        commands: list[Command] = [("ZSCORE", key, packed) for topic in topics for key in shard.buckets(topic)]
        scores: list[Any] = []
        for start in range(0, len(commands), MAX_SCORES):
            scores += await self._client.execute_all("read", commands[start : start + MAX_SCORES])
        holding = [topics[i // len(Bucket)] for i, score in enumerate(scores) if score is not None]
        return holding[0] if holding else b""


async def _in_parts(
    ids: Sequence[str], verb: Callable[[list[str]], Awaitable[dict[str, Result | LaterError]]]
) -> list[Result | LaterError]:
    """The verb's results for the ids, in their order, so many at a time."""
    once = list(dict.fromkeys(ids))
    results: dict[str, Result | LaterError] = {}
    for start in range(0, len(once), MAX_BODIES):
        some = once[start : start + MAX_BODIES]
        try:
            results |= await verb(some)
        except StoreDown as error:
            if not start:
                raise
            results |= dict.fromkeys(once[start:], error)  # what came before is known
            break
    return [results[id] for id in ids]


def _read(id: str, topic: bytes, row: TaskRow | LaterError) -> TaskRecord | LaterError | bytes | None:
    """What is told of the task; or its topic, where another was looked in. None: its body cannot tell."""
    if isinstance(row, LaterError):
        return row
    if row.body is None:
        return NotFound(id, ended=row.ended is not None)
    task = decode_task(id, row.body)
    if not isinstance(task, Task):
        return build_record(id, topic, task, row)
    own = task.topic.encode()
    return own if own != topic else build_record(id, topic, task, row) or in_no_bucket(id)


def _deleted(id: str, answer: Any) -> str | LaterError:
    if isinstance(answer, LaterError):
        return answer
    return id if answer == 1 else Conflict(f"the task {id!r} is dead: it is not pending")


def _delete(shard: Shard, topic: bytes, bodies: list[StoredTask]) -> Command:
    return _deletion(shard, topic, bodies, leave_dead=False)


def _delete_pending(shard: Shard, topic: bytes, bodies: list[StoredTask]) -> Command:
    return _deletion(shard, topic, bodies, leave_dead=True)


def _deletion(shard: Shard, topic: bytes, bodies: list[StoredTask], *, leave_dead: bool) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, *shard.buckets(topic), *shard.wakes.values(), shard.expiry]
    arguments: list[Argument] = [topic, int(leave_dead)]
    for body in bodies:
        arguments += [pack_id(body.id), body.raw, int(body.has_ttl)]
    return scripts.DELETE.call(keys, arguments)


def _not_found(id: str, remembered: Any) -> LaterError:
    return remembered if isinstance(remembered, LaterError) else NotFound(id, ended=remembered is not None)


def changed_too_often() -> StoreFault:
    return StoreFault("the task changed each time it was looked at")
