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
from later.store.census import Census
from later.store.client import Client
from later.store.keys import Bucket, Keys, Shard
from later.store.reading import decoded, failure_of, pairs
from later.store.records import Found
from later.store.scripts import MAX_TASKS, Argument, Command

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
        """The whole part in pieces of about `size` tasks at most, ordered by topic, bucket and shard."""
        order = {bucket: place for place, bucket in enumerate(Bucket)}
        wholes = sorted(await self._wholes(part), key=lambda whole: (whole.topic, order[whole.bucket], whole.shard))
        pieces: list[Piece] = []
        for start in range(0, len(wholes), CUT_AT_ONCE):
            pieces += await self._cut(wholes[start : start + CUT_AT_ONCE], size)
        return pieces

    async def read(self, pieces: Iterable[Piece]) -> AsyncIterator[list[Found]]:
        """The pieces' tasks, some at a time, each as it stood when it was read."""
        for some in packs(pieces, MAX_TASKS):
            left = some
            while left:
                answers = await self._client.all("read", [self._read_call(piece) for piece in left])
                yield [found for piece, answer in zip(left, answers, strict=True) for found in _found(piece, answer)]
                left = [_rest(piece, answer) for piece, answer in zip(left, answers, strict=True) if answer[0]]

    async def _wholes(self, part: Part) -> list[Piece]:
        """A piece for each bucket that has some of the part, uncut."""
        if part.topic is not None:
            places = [(part.topic, bucket, shard) for bucket in part.buckets for shard in self._keys.shards]
        else:
            named = Census(self._client, self._keys).places()
            places = [(topic.decode(), bucket, shard) async for shard, bucket, topics in named for topic in topics]
        buckets = {(topic, bucket, shard.index) for topic, bucket, shard in places if bucket in part.buckets}
        return [Piece(*place, part.since, part.before) for place in buckets]

    async def _cut(self, wholes: Sequence[Piece], size: int) -> list[Piece]:
        """Cut off what one call cuts off each, again and again."""
        pieces: dict[Piece, list[Piece]] = {whole: [] for whole in wholes}
        left = {whole: whole for whole in wholes}
        while left:
            answers = await self._client.all("cut", [self._cut_call(rest, size) for rest in left.values()])
            for (whole, rest), (tasks, *marks) in zip(list(left.items()), answers, strict=True):
                for score, packed in pairs(marks):
                    mark = Mark(int(float(score)), packed)
                    pieces[whole].append(rest._replace(up_to=mark, tasks=size))
                    rest = rest._replace(after=mark)
        return []
