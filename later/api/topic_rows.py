"""Topics as rows of an answer: counted now, or by the last census."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from later.core.held import Held, find_hold
from later.core.policy_scopes import Policies
from later.core.snapshot import CountedTopic, Snapshot
from later.core.topic_view import topic_view
from later.store.open import Store
from later.store.topic_counts import TopicCounts

ReadSnapshot = Callable[[], Awaitable[Snapshot | None]]
"""How the API gets the snapshot; None while it is made for the first time. Raises StoreDown."""


class Recounted(NamedTuple):
    """Topics of the snapshot: the first of them counted anew, with these counts, the others as the census did."""

    fresh: list[CountedTopic]
    counted: list[CountedTopic]
    counts: dict[str, TopicCounts]

    @property
    def all(self) -> list[CountedTopic]:
        return [*self.fresh, *self.counted]

    def rows(self, policies: Policies, now: int, counted_at: int) -> dict[str, dict[str, Any]]:
        """Return the rows of an answer by topic: those counted anew as of `now` (ms), the others of the census."""
        rows = {row.topic: {"topic": row.topic, **topic_view(row, policies, now)} for row in self.fresh}
        return rows | {row.topic: {"topic": row.topic, **topic_view(row, policies, counted_at)} for row in self.counted}


class PartialAnswer:
    """Says whether shards were away while an answer was read: what they hold is missing in it."""

    def __init__(self, store: Store) -> None:
        self._away_tags = store.client.away_tags
        self._misses = self._away_tags.misses

    def fields(self, *, counted_partly: bool = False) -> dict[str, bool]:
        """Return the field that the answer gets: none if nothing is missing, in it and in the census."""
        is_partial = counted_partly or self._away_tags.misses != self._misses
        return {"partial": True} if is_partial else {}


async def recount(store: Store, rows: Sequence[CountedTopic], policies: Policies, now: int) -> Recounted:
    """Count the first of these topics again, as many as one round trip may. Raises StoreDown."""
    number = store.stats.most_at_once()
    counts = await store.stats.counts_and_holds([row.topic for row in rows[:number]], now)
    fresh = [_recounted(row, counts[row.topic], policies, now) for row in rows[:number]]
    return Recounted(fresh, list(rows[number:]), counts)


def _recounted(row: CountedTopic, count: TopicCounts, policies: Policies, now: int) -> CountedTopic:
    """Return a topic as it is now.

    If nothing holds it at this moment, but something did when the census counted, it still counts as held by that: each
    permit of a rate lets it go for a moment.
    """
    fresh = count_row(row.topic, count, policies, now)
    if fresh.oldest_due_at is None or fresh.held is not Held.NO or row.held is Held.NO:
        return fresh
    return msgspec.structs.replace(fresh, held=row.held)


def count_row(topic: str, count: TopicCounts, policies: Policies, now: int) -> CountedTopic:
    """Return a topic with its counts at `now` (ms), which have its hold. Its permits are its tasks in flight."""
    hold = find_hold(policies.for_topic(topic), count.hold, count.unack, now)
    return count.of_topic(topic, held=hold if count.due else Held.NO, is_paused=hold is Held.PAUSE)
