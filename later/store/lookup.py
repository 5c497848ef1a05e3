"""Tasks by their ids alone, or by their names (`task_names`), which find no task of another namespace.

An id does not name its topic, and so not the buckets of its task: the body does. So the body is read first, or the
topic is guessed; if the guess is wrong, the read starts over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from later.core.errors import IdTaken, LaterError, NotFound, StoreDown, StoreFault
from later.core.task import Task, decode_task_or_error, pack_id
from later.core.task_names import can_be_in, id_of, pack_remembered
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import MAX_BODIES, UNREAD, StoredTask, TaskRow, build_record, in_no_bucket, parse_rows
from later.store.fanout import fan_out, fan_out_reads
from later.store.keys import Bucket, Keys, ShardTopic
from later.store.scripts import Command
from later.store.types import TaskRecord

MAX_STARTS = 20
"""How often a verb starts over if another task has got the id each time."""
MAX_SCORES = 2000
"""Scores read in one round trip."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lookup:
    """Reads tasks by id. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._topic = b""
        """The topic of the task that was found last. Tasks queried one after another are often of one topic; a query
        that guesses it right needs one round trip instead of two."""

    async def query(self, ids: Sequence[str]) -> list[TaskRecord | LaterError]:
        """Return the tasks' records; `NotFound` for one that does not exist."""
        if len(ids) > MAX_BODIES:
            return await apply_in_batches(ids, partial(self._query, _whole_query))
        results = await self._query(_whole_query, list(dict.fromkeys(ids)))
        return [results[id] for id in ids]

    def query_in_slices(self, ids: Sequence[str]) -> AsyncGenerator[dict[str, TaskRecord | LaterError]]:
        """Yield the tasks' records by id, some at a time, so that the bodies of all need not be held at once."""
        return apply_in_slices(ids, partial(self._query, _query_slice))

    async def stored_tasks(self, ids: Sequence[str]) -> dict[str, StoredTask | LaterError]:
        """Return tasks as they are stored; `NotFound` for one that does not exist.

        They are those whose bodies fit in one round trip: one at least, and not always all.
        """
        found, missing = await self._read_stored(ids)
        return found | await self._find_ended([*missing])

    async def stored_or_free(self, ids: Sequence[str]) -> dict[str, StoredTask | LaterError | None]:
        """Return tasks as `stored_tasks` does; None for an id that no task has, `IdTaken` for another namespace's."""
        found, missing = await self._read_stored(ids)
        return {**found, **missing}

    async def _read_stored(
        self, ids: Sequence[str]
    ) -> tuple[dict[str, StoredTask | LaterError], dict[str, IdTaken | None]]:
        """Return tasks as they are stored, and apart those that do not exist, or are another namespace's."""

        def build(target: ShardTopic, some: list[str], max_bytes: int) -> Command:
            return scripts.READ_BODIES.call([target.shard.pool], [max_bytes, *map(pack_id, some)])

        raws = dict(zip(ids, await fan_out_reads(self._client, "read", ids, self._locate, build), strict=True))
        found: dict[str, StoredTask | LaterError] = {}
        missing: dict[str, IdTaken | None] = {}
        for id, raw in raws.items():
            if isinstance(raw, LaterError):
                found[id] = raw
            elif isinstance(raw, bytes):
                task = decode_task_or_error(id_of(id), raw)
                topic = task.topic.encode() if isinstance(task, Task) else await self._search_topic(id)
                if "/" not in id or can_be_in(id, topic.decode()):
                    found[id] = StoredTask(id, self._keys.shard_of(id), topic, raw, task)
                else:
                    missing[id] = IdTaken()
            elif raw is None:
                missing[id] = None
        return found, missing

    async def _query(
        self, call: Callable[[list[bytes], list[bytes], int], Command], left: list[str]
    ) -> dict[str, TaskRecord | LaterError]:
        """Return the records of the tasks that `call`, a command for keys and packed ids, reads: of one at least."""
        results = await self._read_records(call, left)
        if missing := [name for name, result in results.items() if isinstance(result, NotFound) and "/" in name]:
            results.update(await self._find_ended(missing))
        return results

    async def _read_records(
        self, call: Callable[[list[bytes], list[bytes], int], Command], left: list[str]
    ) -> dict[str, TaskRecord | LaterError]:
        """Return the records as `_query` does. Of a namespace's task that is not found it is not known if it ended."""
        results: dict[str, TaskRecord | LaterError] = {}
        topics = dict.fromkeys(left, self._topic)

        def build(target: ShardTopic, some: list[str], max_bytes: int) -> Command:
            shard, topic = target
            keys = [shard.pool, shard.done, shard.attempts, shard.outcome, *shard.buckets(topic)]
            return call(keys, [pack_id(id) for id in some], max_bytes)

        def locate(id: str) -> ShardTopic:
            return ShardTopic(self._keys.shard_of(id), topics[id])

        for _ in range(MAX_STARTS):
            rows = await fan_out_reads(self._client, "query", left, locate, build, parse_rows)
            of_another_topic: list[str] = []
            for id, row in zip(left, rows, strict=True):
                if not isinstance(row, LaterError) and row.body == UNREAD:
                    continue
                result = (_parse_named if "/" in id else _parse_result)(id, topics[id], row)
                if result is None:
                    result = await self._search_topic(id) or in_no_bucket(id)
                if isinstance(result, bytes):
                    topics[id] = result
                    of_another_topic.append(id)
                else:
                    results[id] = result
            left = of_another_topic
            if not left:
                return results
            self._topic = topics[left[0]]
        return results | dict.fromkeys(left, changed_too_often())

    async def _find_ended(self, names: Sequence[str]) -> dict[str, NotFound | LaterError]:
        """Return whether tasks that were not found under the names of a namespace's callers have ended."""

        def build(target: ShardTopic, some: list[str]) -> Command:
            return ("ZMSCORE", target.shard.done, *map(pack_remembered, some))

        ends = await fan_out(self._client, "read", names, self._locate, build)
        return {
            name: until if isinstance(until, LaterError) else NotFound(id_of(name), ended=until is not None)
            for name, until in zip(names, ends, strict=True)
        }

    def _locate(self, id: str) -> ShardTopic:
        return ShardTopic(self._keys.shard_of(id), b"")

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
    """Apply a verb to the distinct ids, as `apply_in_slices` does; return the results in the order of `ids`."""
    results: dict[str, Result | LaterError] = {}
    async for some in apply_in_slices(ids, verb):
        results |= some
    return [results[id] for id in ids]


async def apply_in_order(
    items: Sequence[Item], name: Callable[[Item], str], apply: Callable[[list[Item]], Awaitable[dict[str, Result]]]
) -> list[Result | LaterError]:
    """Apply a verb to batches of items; return the results in order. Items of the same id go one after the other.

    The verb returns the results of some of the items by `name`, and is called again with the others.
    """
    answers: list[Result | LaterError] = []
    for batch in _split_batches(items, name):
        results: dict[str, Result] = {}
        starts = 0
        try:
            while starts < MAX_STARTS and len(results) < len(batch):
                done = await apply([item for item in batch if name(item) not in results])
                results |= done
                if not done:
                    starts += 1
        except StoreDown as error:
            if not answers and not results:
                raise
            answers += [results.get(name(item), error) for item in batch]  # earlier results are known
            return answers + [error] * (len(items) - len(answers))
        answers += [results.get(name(item), changed_too_often()) for item in batch]
    return answers


def _split_batches(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[list[Item]]:
    batch: dict[str, Item] = {}
    for item in items:
        id = id_of(name(item))  # a UUID may be named by its namespace's callers and by others
        if id in batch or len(batch) == MAX_BODIES:
            yield list(batch.values())
            batch = {}
        batch[id] = item
    if batch:
        yield list(batch.values())


async def apply_in_slices(
    ids: Sequence[str], verb: Callable[[list[str]], Awaitable[dict[str, Result | LaterError]]]
) -> AsyncGenerator[dict[str, Result | LaterError]]:
    """Apply a verb to the distinct ids, at most `MAX_BODIES` at a time; yield the results.

    The verb returns results for some of the ids that it gets, one at least, and is called again with the others.
    """
    left = list(dict.fromkeys(ids))
    size, is_first = MAX_BODIES, True
    while left:
        batch, left = left[:size], left[size:]
        try:
            results = await verb(batch)
        except StoreDown as error:
            if is_first:
                raise
            yield dict.fromkeys([*batch, *left], error)  # the results of earlier batches are known
            return
        unread = [id for id in batch if id not in results]
        left = unread + left
        size = max(len(batch) - len(unread), 1) if unread else min(size * 2, MAX_BODIES)
        is_first = False
        yield results


def _whole_query(keys: list[bytes], packed: list[bytes], max_bytes: int) -> Command:
    """Return a command that reads all tasks. Each is asked for by a request of its own, or few at once."""
    return scripts.QUERY.call(keys, packed)


def _query_slice(keys: list[bytes], packed: list[bytes], max_bytes: int) -> Command:
    return scripts.QUERY_SLICE.call(keys, [max_bytes, *packed])


def changed_too_often() -> StoreFault:
    return StoreFault("the task changed each time it was looked at")


def _parse_result(id: str, topic: bytes, row: TaskRow | LaterError) -> TaskRecord | LaterError | bytes | None:
    """Return the record of a task; its topic if it is not `topic`; None if its body is unreadable."""
    if isinstance(row, LaterError):
        return row
    if not isinstance(row.body, bytes):
        return NotFound(id, ended=row.ended is not None)
    task = decode_task_or_error(id, row.body)
    if not isinstance(task, Task):
        return build_record(id, topic, task, row)
    own = task.topic.encode()
    return own if own != topic else build_record(id, topic, task, row) or in_no_bucket(id)


def _parse_named(name: str, topic: bytes, row: TaskRow | LaterError) -> TaskRecord | LaterError | bytes | None:
    """Return what `_parse_result` does for the name of a namespace's task. One of another namespace is not found."""
    result = _parse_result(id_of(name), topic, row)
    if result is None or isinstance(result, NotFound) or isinstance(row, LaterError):
        return result
    own = result if isinstance(result, bytes) else topic
    return result if can_be_in(name, own.decode()) else NotFound(id_of(name))
