"""The counts of all topics while they are summed up: of a million topics, too, without a long pause or much memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from later.core.held import TopicHold
from later.store.holds import held_until, is_for_rate, is_held
from later.store.keys import Bucket
from later.store.topic_counts import TopicCounts

PARTS = 256
"""Dicts that share the topics: a dict that grows, or ends, stops the process for a time that depends on its size."""


class BucketCount(NamedTuple):
    """The result of the script `count` for one bucket; `first_due_at` is 0 if nothing is due."""

    size: int
    due: int
    first_due_at: int


class _Tally(msgspec.Struct, gc=False):
    """One topic's counts; an `oldest_due_at` of 0 is none, and so is a `hold` (an entry of a wake set)."""

    delay: int = 0
    unack: int = 0
    error: int = 0
    dead: int = 0
    due: int = 0
    oldest_due_at: int = 0
    hold: float = 0.0

    def counts(self, topic: str) -> TopicCounts:
        return TopicCounts(
            self.delay,
            self.unack,
            self.error,
            self.dead,
            self.due,
            self.oldest_due_at or None,
            parse_hold(topic, self.hold) if self.hold else None,
        )


class TopicTallies(Collection[str]):
    """The topics that were counted, and their counts."""

    def __init__(self) -> None:
        self._parts: list[dict[bytes, _Tally]] = [{} for _ in range(PARTS)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[str]:
        return (topic.decode() for part in self._parts for topic in part)

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and (name := topic.encode()) in self._part(name)

    def items(self) -> Iterator[tuple[str, TopicCounts]]:
        """Yield the topics and their counts."""
        for part in self._parts:
            for raw, tally in part.items():
                topic = raw.decode()
                yield topic, tally.counts(topic)

    def drain(self) -> Iterator[tuple[str, TopicCounts]]:
        """Yield the topics and their counts, and forget them meanwhile: not all at once, which would take long."""
        while self._parts:
            part = self._parts.pop()
            for raw, tally in part.items():
                topic = raw.decode()
                yield topic, tally.counts(topic)

    def add(self, topics: Sequence[bytes], bucket: Bucket, counts: Iterable[BucketCount]) -> None:
        """Add what was counted of these topics in one bucket of one shard."""
        for topic, count in zip(topics, counts, strict=True):
            tally = self._tally(topic)
            setattr(tally, bucket.value, getattr(tally, bucket.value) + count.size)
            if count.due and bucket is Bucket.DELAY:
                tally.due += count.due
                tally.oldest_due_at = min(tally.oldest_due_at or count.first_due_at, count.first_due_at)

    def add_holds(self, entries: Iterable[tuple[bytes, float]]) -> None:
        """Add the entries of a wake set of delay that are holds, of each topic the longest."""
        for topic, entry in entries:
            if is_held(entry):
                tally = self._tally(topic)
                tally.hold = min(tally.hold, entry)

    def _tally(self, topic: bytes) -> _Tally:
        part = self._part(topic)
        tally = part.get(topic)
        if tally is None:
            tally = part[topic] = _Tally()
        return tally

    def _part(self, topic: bytes) -> dict[bytes, _Tally]:
        return self._parts[hash(topic) % PARTS]


def parse_hold(topic: str, entry: float) -> TopicHold:
    """Return the hold that an entry of a wake set says."""
    return TopicHold(topic, held_until(entry), is_for_rate(entry))
