"""The store as a whole, or a large part of it, in pieces that any number of readers may read at once.

A piece lies in one topic's bucket in one shard, between two places of that bucket's order (by score, then by packed
id). That order is total, and a place in it means the same whatever comes and goes: a task that stays where it is,
stands in one piece and is read once. One that is moved while its bucket's pieces are read may be met where it was and
where it is, or, where its new place was read before it came there, not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from later.core.task import unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.codec import MAX_BODIES, decode_task, pairs, parse_failure
from later.store.fanout import split_by_weight
from later.store.keys import Bucket, Keys
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.stats import Stats
from later.store.types import TaskRecord

MAX_BYTES = 256 * 1024
"""Of bodies in one answer, about: the store is not to be held by large ones."""
MAX_SPLITS = 100
"""In one call."""
BUCKETS_AT_ONCE = 100
"""Buckets that are cut in one round trip."""


class Position(NamedTuple):
    """A place in a bucket's order: that of this entry, be it there or not."""

    score: int
    packed: bytes


class ScanRange(NamedTuple):
    """Tasks of one topic, or of all (None), in some buckets: scores (ms) from `since` on and below `before`, if any."""

    topic: str | None
    buckets: Sequence[Bucket]
    since: int | None = None
    before: int | None = None


class ScanSplit(NamedTuple):
    """Of a part: what comes after one mark and not after another, in one topic's bucket in one shard.

    `tasks` is about how many stood there when it was cut.
    """

    topic: str
    bucket: Bucket
    shard: int
    since: int | None
    before: int | None
    after: Position | None = None
    up_to: Position | None = None
    tasks: int = 0


class Scanner:
    """Cuts and reads. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def split(self, part: ScanRange, size: int) -> list[ScanSplit]:
        """The whole part in pieces of about `size` tasks at most, in order: by topic, bucket, shard and place."""
        wholes = await self._wholes(part)
        pieces: list[ScanSplit] = []
        for start in range(0, len(wholes), BUCKETS_AT_ONCE):
            pieces += await self._cut(wholes[start : start + BUCKETS_AT_ONCE], size)
        return sorted(pieces, key=_order)

    async def read(self, pieces: Iterable[ScanSplit]) -> AsyncIterator[list[TaskRecord]]:
        """The pieces' tasks, some at a time, each as it stood when it was read."""
        for some in batch_splits(pieces, MAX_BODIES):
            left = some
            while left:
                share = MAX_BODIES // len(left)
                answers = await self._client.execute_all("read", [self._read_call(piece, share) for piece in left])
                yield [found for piece, answer in zip(left, answers, strict=True) for found in _found(piece, answer)]
                left = [_rest(piece, answer[1]) for piece, answer in zip(left, answers, strict=True) if answer[0]]

    async def _wholes(self, part: ScanRange) -> list[ScanSplit]:
        """A piece for each bucket that has some of the part, uncut."""
        if part.topic is not None:
            places = [(part.topic, bucket, shard) for bucket in part.buckets for shard in self._keys.shards]
        else:
            named = Stats(self._client, self._keys).topics_by_bucket()
            places = [(topic.decode(), bucket, shard) async for shard, bucket, topics in named for topic in topics]
        buckets = {(topic, bucket, shard.index) for topic, bucket, shard in places if bucket in part.buckets}
        return [ScanSplit(*place, part.since, part.before) for place in buckets]

    async def _cut(self, wholes: list[ScanSplit], size: int) -> list[ScanSplit]:
        pieces: list[ScanSplit] = []
        left = wholes
        while left:
            answers = await self._client.execute_all("cut", [self._cut_call(whole, size) for whole in left])
            cuts = [_cut_off(whole, size, answer) for whole, answer in zip(left, answers, strict=True)]
            pieces += [piece for cut, _ in cuts for piece in cut]
            pieces += [rest for cut, rest in cuts if rest.tasks and len(cut) < MAX_SPLITS]
            left = [rest for cut, rest in cuts if len(cut) == MAX_SPLITS]
        return pieces

    def _cut_call(self, whole: ScanSplit, size: int) -> Command:
        arguments = [*_bounds(whole), *_mark(whole.after), size, MAX_SPLITS]
        return scripts.SPLIT.call([self._bucket(whole)], arguments)

    def _read_call(self, piece: ScanSplit, least: int) -> Command:
        """Reads all that was expected there, if that is not too much; `least` tasks where more have come since."""
        shard = self._keys.shards[piece.shard]
        most = max(min(piece.tasks, MAX_TASKS), least)
        arguments = [*_bounds(piece), *_mark(piece.after), *_mark(piece.up_to), most, MAX_BYTES]
        return scripts.READ.call([self._bucket(piece), shard.pool, shard.attempts, shard.outcome], arguments)

    def _bucket(self, piece: ScanSplit) -> bytes:
        return self._keys.shards[piece.shard].bucket(piece.bucket, piece.topic.encode())


def batch_splits(pieces: Iterable[ScanSplit], tasks: int) -> Iterator[list[ScanSplit]]:
    """The pieces in order, as many at once as hold no more than so many tasks together; one at least."""
    return split_by_weight(pieces, tasks, lambda piece: piece.tasks)


_ORDER = {bucket: place for place, bucket in enumerate(Bucket)}


def _order(piece: ScanSplit) -> tuple[str, int, int, tuple[()] | Position]:
    return piece.topic, _ORDER[piece.bucket], piece.shard, piece.after or ()


def _bounds(piece: ScanSplit) -> list[Argument]:
    return ["-inf" if piece.since is None else piece.since, "+inf" if piece.before is None else piece.before]


def _mark(mark: Position | None) -> list[Argument]:
    return ["", b""] if mark is None else [*mark]


def _cut_off(whole: ScanSplit, size: int, answer: Sequence[Any]) -> tuple[list[ScanSplit], ScanSplit]:
    """The pieces that one call cuts off, and the rest."""
    tasks, *marks = answer
    cut: list[ScanSplit] = []
    rest = whole._replace(tasks=tasks)
    for score, packed in pairs(marks):
        mark = Position(int(float(score)), packed)
        cut.append(rest._replace(up_to=mark, tasks=size))
        rest = rest._replace(after=mark, tasks=rest.tasks - size)
    return cut, rest


def _rest(piece: ScanSplit, entries: Sequence[bytes]) -> ScanSplit:
    """What is left of a piece once these were read of it."""
    packed, score = entries[-2:]
    read = len(entries) // 2
    return piece._replace(after=Position(int(float(score)), packed), tasks=max(piece.tasks - read, 0))


def _found(piece: ScanSplit, answer: Sequence[Any]) -> list[TaskRecord]:
    """The tasks that were read; an entry without a body is none."""
    _, entries, *rows = answer
    found: list[TaskRecord] = []
    for (packed, score), raw, attempts, failure in zip(pairs(entries), *rows, strict=True):
        if raw is not None:
            id = unpack_id(packed)
            begun = int(attempts.split()[0]) if attempts else 0
            task = decode_task(id, raw)
            found.append(
                TaskRecord(id, piece.topic, task, piece.bucket, int(float(score)), begun, parse_failure(failure))
            )
    return found
