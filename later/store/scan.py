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
from later.store.codec import MAX_BODIES, decoded, failure_of, pairs
from later.store.fanout import by_weight
from later.store.keys import Bucket, Keys
from later.store.scripts import MAX_TASKS, Argument, Command
from later.store.stats import Census
from later.store.types import Found

MAX_BYTES = 256 * 1024
"""Of bodies in one answer, about: the store is not to be held by large ones."""
MAX_CUTS = 100
"""In one call."""
CUT_AT_ONCE = 100
"""Buckets that are cut in one round trip."""


class Mark(NamedTuple):
    """A place in a bucket's order: that of this entry, be it there or not."""

    score: int
    packed: bytes


class Part(NamedTuple):
    """Tasks of one topic, or of all (None), in some buckets: scores (ms) from `since` on and below `before`, if any."""

    topic: str | None
    buckets: Sequence[Bucket]
    since: int | None = None
    before: int | None = None


class Piece(NamedTuple):
    """Of a part: what comes after one mark and not after another, in one topic's bucket in one shard.

    `tasks` is about how many stood there when it was cut.
    """

    topic: str
    bucket: Bucket
    shard: int
    since: int | None
    before: int | None
    after: Mark | None = None
    up_to: Mark | None = None
    tasks: int = 0


class Pieces:
    """Cuts and reads. Every method raises StoreDown."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def cut(self, part: Part, size: int) -> list[Piece]:
        """The whole part in pieces of about `size` tasks at most, in order: by topic, bucket, shard and place."""
        wholes = await self._wholes(part)
        pieces: list[Piece] = []
        for start in range(0, len(wholes), CUT_AT_ONCE):
            pieces += await self._cut(wholes[start : start + CUT_AT_ONCE], size)
        return sorted(pieces, key=_order)

    async def read(self, pieces: Iterable[Piece]) -> AsyncIterator[list[Found]]:
        """The pieces' tasks, some at a time, each as it stood when it was read."""
        for some in packs(pieces, MAX_BODIES):
            left = some
            while left:
                share = MAX_BODIES // len(left)
                answers = await self._client.all("read", [self._read_call(piece, share) for piece in left])
                yield [found for piece, answer in zip(left, answers, strict=True) for found in _found(piece, answer)]
                left = [_rest(piece, answer[1]) for piece, answer in zip(left, answers, strict=True) if answer[0]]

    async def _wholes(self, part: Part) -> list[Piece]:
        """A piece for each bucket that has some of the part, uncut."""
        if part.topic is not None:
            places = [(part.topic, bucket, shard) for bucket in part.buckets for shard in self._keys.shards]
        else:
            named = Census(self._client, self._keys).places()
            places = [(topic.decode(), bucket, shard) async for shard, bucket, topics in named for topic in topics]
        buckets = {(topic, bucket, shard.index) for topic, bucket, shard in places if bucket in part.buckets}
        return [Piece(*place, part.since, part.before) for place in buckets]

    async def _cut(self, wholes: list[Piece], size: int) -> list[Piece]:
        pieces: list[Piece] = []
        left = wholes
        while left:
            answers = await self._client.all("cut", [self._cut_call(whole, size) for whole in left])
            cuts = [_cut_off(whole, size, answer) for whole, answer in zip(left, answers, strict=True)]
            pieces += [piece for cut, _ in cuts for piece in cut]
            pieces += [rest for cut, rest in cuts if rest.tasks and len(cut) < MAX_CUTS]
            left = [rest for cut, rest in cuts if len(cut) == MAX_CUTS]
        return pieces

    def _cut_call(self, whole: Piece, size: int) -> Command:
        arguments = [*_bounds(whole), *_mark(whole.after), size, MAX_CUTS]
        return scripts.CUT.call([self._bucket(whole)], arguments)

    def _read_call(self, piece: Piece, least: int) -> Command:
        """Reads all that was expected there, if that is not too much; `least` tasks where more have come since."""
        shard = self._keys.shards[piece.shard]
        most = max(min(piece.tasks, MAX_TASKS), least)
        arguments = [*_bounds(piece), *_mark(piece.after), *_mark(piece.up_to), most, MAX_BYTES]
        return scripts.READ.call([self._bucket(piece), shard.pool, shard.attempts, shard.outcome], arguments)

    def _bucket(self, piece: Piece) -> bytes:
        return self._keys.shards[piece.shard].bucket(piece.bucket, piece.topic.encode())


def packs(pieces: Iterable[Piece], tasks: int) -> Iterator[list[Piece]]:
    """The pieces in order, as many at once as hold no more than so many tasks together; one at least."""
    return by_weight(pieces, tasks, lambda piece: piece.tasks)


_ORDER = {bucket: place for place, bucket in enumerate(Bucket)}


def _order(piece: Piece) -> tuple[str, int, int, tuple[()] | Mark]:
    return piece.topic, _ORDER[piece.bucket], piece.shard, piece.after or ()


def _bounds(piece: Piece) -> list[Argument]:
    return ["-inf" if piece.since is None else piece.since, "+inf" if piece.before is None else piece.before]


def _mark(mark: Mark | None) -> list[Argument]:
    return ["", b""] if mark is None else [*mark]


def _cut_off(whole: Piece, size: int, answer: Sequence[Any]) -> tuple[list[Piece], Piece]:
    """The pieces that one call cuts off, and the rest."""
    tasks, *marks = answer
    cut: list[Piece] = []
    rest = whole._replace(tasks=tasks)
    for score, packed in pairs(marks):
        mark = Mark(int(float(score)), packed)
        cut.append(rest._replace(up_to=mark, tasks=size))
        rest = rest._replace(after=mark, tasks=rest.tasks - size)
    return cut, rest


def _rest(piece: Piece, entries: Sequence[bytes]) -> Piece:
    """What is left of a piece once these were read of it."""
    packed, score = entries[-2:]
    read = len(entries) // 2
    return piece._replace(after=Mark(int(float(score)), packed), tasks=max(piece.tasks - read, 0))


def _found(piece: Piece, answer: Sequence[Any]) -> list[Found]:
    """The tasks that were read; an entry without a body is none."""
    _, entries, *rows = answer
    found: list[Found] = []
    for (packed, score), raw, attempts, failure in zip(pairs(entries), *rows, strict=True):
        if raw is not None:
            id = unpack_id(packed)
            begun = int(attempts.split()[0]) if attempts else 0
            task = decoded(id, raw)
            found.append(Found(id, piece.topic, task, piece.bucket, int(float(score)), begun, failure_of(failure)))
    return found
