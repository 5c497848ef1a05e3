"""The snapshot of all topics: the result of one census, which all daemons on a store read.

It is bounded, however many topics there are: it has the topics with a label of their own in metrics, and those that are
first when topics are sorted by a number. All others are only in sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest

import msgspec

from later.core.held import Held
from later.core.policy_scopes import namespace_from_topic

MAX_ROWS = 200
"""Topics of the snapshot by each order."""
MAX_NAMESPACES = 1000
"""Namespaces with sums of their own, those with most tasks."""
SORTED_AT_ONCE = 500
"""Rows that a builder compares with the first ones at a time."""
MAX_AHEAD_MS = 1000
"""How far a snapshot may be ahead of the store's time: after a failover, its clock may be that of another machine."""


class CountedTopic(msgspec.Struct, array_like=True, frozen=True):
    """One topic at the time of the census. `permits` are those of its concurrency in use, if it has that limit.

    `oldest_due_at` (ms) is None if none of its tasks is due; `held` says what holds those that are.
    """

    topic: str
    delay: int
    unack: int
    error: int
    dead: int
    due: int
    oldest_due_at: int | None
    held: Held
    is_paused: bool
    has_label: bool
    """True if the topic has a label of its own in metrics."""
    permits: int | None = None

    @property
    def tasks(self) -> int:
        return self.delay + self.unack + self.error + self.dead


class DueSum(msgspec.Struct, array_like=True):
    """Due tasks of several topics that are held alike. `oldest_due_at` (ms) is None if there is none."""

    due: int = 0
    oldest_due_at: int | None = None


class TopicSums(msgspec.Struct, omit_defaults=True):
    """The sums over several topics. `due` has the due tasks by what holds them."""

    topics: int = 0
    paused: int = 0
    delay: int = 0
    unack: int = 0
    error: int = 0
    dead: int = 0
    due: dict[Held, DueSum] = {}

    @property
    def tasks(self) -> int:
        return self.delay + self.unack + self.error + self.dead

    @property
    def all_due(self) -> int:
        return sum(some.due for some in self.due.values())

    def oldest_due_at(self, *, is_held: bool) -> int | None:
        """Return the due time (ms) of the oldest task that is held, or of the oldest one that is not."""
        times = [some.oldest_due_at for held, some in self.due.items() if (held is not Held.NO) == is_held]
        return min((at for at in times if at is not None), default=None)

    def add(self, row: CountedTopic) -> None:
        self.topics += 1
        self.paused += row.is_paused
        self.delay += row.delay
        self.unack += row.unack
        self.error += row.error
        self.dead += row.dead
        some = self.due.setdefault(row.held, DueSum())
        some.due += row.due
        oldest = (some.oldest_due_at, row.oldest_due_at)
        some.oldest_due_at = min((at for at in oldest if at is not None), default=None)


def sum_rows(rows: Iterable[CountedTopic]) -> TopicSums:
    """Return the sums over these topics."""
    sums = TopicSums()
    for row in rows:
        sums.add(row)
    return sums


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a census reads besides the topics. Memory is in bytes; a `max_memory` of 0 is no limit."""

    name: str
    version: str
    memory: int
    max_memory: int
    workers: int
    """Worker processes with a recent heartbeat."""
    remembered_ids: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a census that began at `at` (ms of the store's clock) and took `took_ms`.

    `others` are the sums over the topics without a label of their own, `namespaces` those of at most `MAX_NAMESPACES`
    namespaces.
    """

    at: int
    took_ms: int
    total: TopicSums
    others: TopicSums
    namespaces: dict[str, TopicSums]
    rows: list[CountedTopic]
    store: StoreFacts
    partial: bool = False
    """True if shards were away: what they hold is missing."""

    def sums_of(self, namespace: str | None) -> TopicSums:
        """Return the sums over a namespace, or over all of them.

        Those of a namespace beyond the `MAX_NAMESPACES` with most tasks are the sums over its topics among the rows.
        """
        if namespace is None:
            return self.total
        sums = self.namespaces.get(namespace)
        return sum_rows(self.rows_of(namespace)) if sums is None else sums

    def rows_of(self, namespace: str | None) -> list[CountedTopic]:
        """Return the rows of a namespace's topics, or all of them."""
        if namespace is None:
            return self.rows
        return [row for row in self.rows if namespace_from_topic(row.topic) == namespace]

    def is_usable(self, now: int) -> bool:
        """Return False if it was made by a clock that is ahead of the store's, which says `now` (ms)."""
        return self.at <= now + MAX_AHEAD_MS

    def is_older_than(self, period_ms: int, now: int) -> bool:
        """Return True if the next census is due at `now` (ms).

        The period doubles until the census takes less than that: otherwise a large store would be counted all the time.
        """
        return now - self.at >= self.period_ms(period_ms)

    def period_ms(self, period_ms: int) -> int:
        """Return how long after this census the next one is due, if `period_ms` is the usual time."""
        while self.took_ms > period_ms > 0:
            period_ms *= 2
        return period_ms


ORDERS: Mapping[str, Callable[[CountedTopic], int | None]] = {
    "lateness": lambda row: None if row.oldest_due_at is None else -row.oldest_due_at,
    "due": lambda row: row.due or None,
    "dead": lambda row: row.dead or None,
    "delay": lambda row: row.delay or None,
}
"""The orders in which topics are listed, the greatest first, by name. A topic without a value comes last."""


def sort_rows(rows: Iterable[CountedTopic], order: str) -> list[CountedTopic]:
    """Return the rows in one of `ORDERS`; equal ones by name."""
    value = ORDERS[order]

    def key(row: CountedTopic) -> tuple[bool, int, str]:
        number = value(row)
        return number is None, -(number or 0), row.topic

    return sorted(rows, key=key)


_KEPT_FIRST: tuple[Callable[[CountedTopic], int | None], ...] = (
    *ORDERS.values(),
    # The worst of those that nothing holds: otherwise many topics that are paused on purpose would hide them.
    lambda row: -row.oldest_due_at if row.held is Held.NO and row.oldest_due_at is not None else None,
)


class SnapshotBuilder:
    """The snapshot of a census while its topics are added, in slices: of many of them only the first are kept."""

    def __init__(self) -> None:
        self._total = TopicSums()
        self._others = TopicSums()
        self._namespaces: dict[str, TopicSums] = {}
        self._labelled: list[CountedTopic] = []
        self._first: list[list[CountedTopic]] = [[] for _ in _KEPT_FIRST]
        self._unsorted: list[CountedTopic] = []
        """Rows that are not yet compared with the first ones: that is done for many at a time."""

    def add(self, rows: Iterable[CountedTopic]) -> None:
        for row in rows:
            self._total.add(row)
            self._namespaces.setdefault(namespace_from_topic(row.topic), TopicSums()).add(row)
            if row.has_label:
                self._labelled.append(row)
            else:
                self._others.add(row)
            self._unsorted.append(row)
        if len(self._unsorted) >= SORTED_AT_ONCE:
            self._keep_first()

    def _keep_first(self) -> None:
        rows, self._unsorted = self._unsorted, []
        for position, value in enumerate(_KEPT_FIRST):
            found = [(number, row) for row in rows if (number := value(row)) is not None]
            if found:
                known = [(value(row) or 0, row) for row in self._first[position]]
                first = nlargest(MAX_ROWS, [*known, *found], key=lambda item: item[0])
                self._first[position] = [row for _, row in first]

    def finish(self, *, at: int, took_ms: int, store: StoreFacts, partial: bool = False) -> Snapshot:
        """Return the snapshot."""
        self._keep_first()
        rows = {row.topic: row for some in (self._labelled, *self._first) for row in some}
        namespaces = self._namespaces.items()
        if len(namespaces) > MAX_NAMESPACES:
            namespaces = dict(nlargest(MAX_NAMESPACES, namespaces, key=lambda item: item[1].tasks)).items()
        return Snapshot(
            at=at,
            took_ms=took_ms,
            total=self._total,
            others=self._others,
            namespaces=dict(namespaces),
            rows=list(rows.values()),
            store=store,
            partial=partial,
        )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot | None:
    """Return the snapshot, or None if another version, or another program, has written something else."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None
