"""Tasks by their ids alone.

An id does not name its topic, and so not the buckets of its task: the body does. So the body is read first, or the
topic is guessed; if the guess is wrong, the read starts over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from later.core.errors import LaterError, NotFound, StoreDown, StoreFault
from later.core.task import Task, decode_task_or_error, pack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, StoredTask, TaskRow, build_record, in_no_bucket, parse_rows
from later.store.fanout import fan_out
from later.store.keys import Bucket, Keys, Shard, ShardTopic
from later.store.scripts import Command
from later.store.types import TaskRecord

MAX_STARTS = 20
"""How often a verb starts over if another task has got the id each time."""
MAX_SCORES = 2000
"""Scores read in one round trip."""

Result = TypeVar("Result")


class Lookup:
    """Reads tasks by id. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._topic = b""
        """The topic of the task that was found last. Tasks queried one after another are often of one topic; a query
        that guesses it right needs one round trip instead of two."""

    async def query(self, ids: Sequence[str]) -> list[TaskRecord | LaterError]:
        """Return the tasks' records; `NotFound` for one that does not exist."""
        return await apply_in_batches(ids, self._query)

    async def stored_tasks(self, ids: Sequence[str]) -> list[StoredTask | LaterError]:
        """Return the tasks as they are stored; `NotFound` for one that does not exist."""
        raws = await self._read("HMGET", lambda shard: shard.pool, ids)
        missing = [id for id, raw in zip(ids, raws, strict=True) if raw is None]
        ended = iter(await self._read("ZMSCORE", lambda shard: shard.done, missing))
        found: list[StoredTask | LaterError] = []
        for id, raw in zip(ids, raws, strict=True):
            if isinstance(raw, LaterError):
                found.append(raw)
            elif raw is None:
                until = next(ended)
                found.append(until if isinstance(until, LaterError) else NotFound(id, ended=until is not None))
            else:
                task = decode_task_or_error(id, raw)
                topic = task.topic.encode() if isinstance(task, Task) else await self._search_topic(id)
                found.append(StoredTask(id, self._keys.shard_of(id), topic, raw, task))
        return found

    async def _query(self, left: list[str]) -> dict[str, TaskRecord | LaterError]:
        results: dict[str, TaskRecord | LaterError] = {}
        topics = dict.fromkeys(left, self._topic)

        def build(target: ShardTopic, some: list[str]) -> Command:
            shard, topic = target
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return scripts.QUERY.call(keys, [pack_id(id) for id in some])

        def locate(id: str) -> ShardTopic:
            return ShardTopic(self._keys.shard_of(id), topics[id])

        for _ in range(MAX_STARTS):
            rows = await fan_out(self._client, "query", left, locate, build, parse_rows)
            for id, row in zip(left, rows, strict=True):
                result = _parse_result(id, topics[id], row)
                if result is None:
                    result = await self._search_topic(id) or in_no_bucket(id)
                if isinstance(result, bytes):
                    topics[id] = result
                else:
                    results[id] = result
            left = [id for id in left if id not in results]
            if not left:
                return results
            self._topic = topics[left[0]]
        return results | dict.fromkeys(left, changed_too_often())

    async def _read(self, command: str, key: Callable[[Shard], bytes], ids: Sequence[str]) -> list[Any]:
        """Read one key of each shard by a command that takes many ids; return a value, or a `LaterError`, for each."""

        def build(target: ShardTopic, some: list[str]) -> Command:
            return (command, key(target.shard), *(pack_id(id) for id in some))

        return await fan_out(self._client, "read", ids, lambda id: ShardTopic(self._keys.shard_of(id), b""), build)

    async def _search_topic(self, id: str) -> bytes:
        """Find the topic of a task with an unreadable body in all buckets; b"" if none has it. Slow, and rare."""
        shard, packed = self._keys.shard_of(id), pack_id(id)
        wakes = await self._client.execute_all("read", [("ZRANGE", wake, 0, -1) for wake in shard.wakes.values()])
        topics = sorted({topic for answer in wakes for topic in answer})
        commands: list[Command] = [("ZSCORE", key, packed) for topic in topics for key in shard.buckets(topic)]
        scores: list[Any] = []
        for start in range(0, len(commands), MAX_SCORES):
            scores += await self._client.execute_all("read", commands[start : start + MAX_SCORES])
        holding = (topics[i // len(Bucket)] for i, score in enumerate(scores) if score is not None)
        return next(holding, b"")


async def apply_in_batches(
    ids: Sequence[str], verb: Callable[[list[str]], Awaitable[dict[str, Result | LaterError]]]
) -> list[Result | LaterError]:
    """Apply a verb to the distinct ids, `MAX_BODIES` at a time; return the results in the order of `ids`."""
    distinct = list(dict.fromkeys(ids))
    results: dict[str, Result | LaterError] = {}
    for start in range(0, len(distinct), MAX_BODIES):
        try:
            results |= await verb(distinct[start : start + MAX_BODIES])
        except StoreDown as error:
            if not start:
                raise
            results |= dict.fromkeys(distinct[start:], error)  # the results of earlier batches are known
            break
    return [results[id] for id in ids]


def changed_too_often() -> StoreFault:
    return StoreFault("the task changed each time it was looked at")


def _parse_result(id: str, topic: bytes, row: TaskRow | LaterError) -> TaskRecord | LaterError | bytes | None:
    """Return the record of a task; its topic if it is not `topic`; None if its body is unreadable."""
    if isinstance(row, LaterError):
        return row
    if row.body is None:
        return NotFound(id, ended=row.ended is not None)
    task = decode_task_or_error(id, row.body)
    if not isinstance(task, Task):
        return build_record(id, topic, task, row)
    own = task.topic.encode()
    return own if own != topic else build_record(id, topic, task, row) or in_no_bucket(id)
