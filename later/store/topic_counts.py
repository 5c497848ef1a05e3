"""A topic's tasks as the store counts them."""

from __future__ import annotations

from typing import NamedTuple

from later.core.held import Held, TopicHold
from later.core.snapshot import CountedTopic


class TopicCounts(NamedTuple):
    """One topic's tasks by bucket, how many of them are due and not claimed, and the due time of the oldest.

    `hold` is the topic's longest hold in any shard; `counts_for` does not read it.
    """

    delay: int
    unack: int
    error: int
    dead: int
    due: int
    oldest_due_at: int | None
    hold: TopicHold | None = None

    @property
    def tasks(self) -> int:
        return self.delay + self.unack + self.error + self.dead

    def of_topic(
        self, topic: str, *, held: Held, is_paused: bool, has_label: bool = False, permits: int | None = None
    ) -> CountedTopic:
        """Return these counts as those of a topic, whose due tasks are held so."""
        return CountedTopic(
            topic=topic,
            delay=self.delay,
            unack=self.unack,
            error=self.error,
            dead=self.dead,
            due=self.due,
            oldest_due_at=self.oldest_due_at,
            held=held,
            is_paused=is_paused,
            has_label=has_label,
            permits=permits,
        )

    def plus(self, other: TopicCounts) -> TopicCounts:
        oldest = [at for at in (self.oldest_due_at, other.oldest_due_at) if at is not None]
        return TopicCounts(
            self.delay + other.delay,
            self.unack + other.unack,
            self.error + other.error,
            self.dead + other.dead,
            self.due + other.due,
            min(oldest, default=None),
        )


NO_TASKS = TopicCounts(0, 0, 0, 0, 0, None)


class TopicState(NamedTuple):
    """A topic's counts, holds and next due time (ms) at one moment, and the last heartbeats (ms) of all workers.

    `paused` is true if it is held until it is resumed; `held_until` (ms) is None if it is not held until a time.
    """

    counts: TopicCounts
    paused: bool
    held_until: int | None
    next_due_at: int | None
    heartbeats: list[int]
