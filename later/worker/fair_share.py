"""Hands and lanes: which topic may take how many of a worker's deliveries under way.

A lane may hold at most three times the hands that are free. So a lone topic gets three quarters of the hands, one whose
receivers hang leaves a quarter to the others, two leave a sixteenth, and nothing has to be configured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from later.store.scripts import MAX_TASKS
from later.store.types import ClaimRequest, DueTopic


class FairShare:
    """How many hands each topic holds."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free = slots
        self._held: Counter[str] = Counter()

    @property
    def total_in_use(self) -> int:
        return self.slots - self.free

    @property
    def active_topics(self) -> int:
        """How many lanes hold a hand."""
        return len(self._held)

    def acquire(self, topic: str) -> None:
        self._held[topic] += 1
        self.free -= 1

    def release(self, topic: str) -> None:
        self._held[topic] -= 1
        self.free += 1
        if not self._held[topic]:
            del self._held[topic]

    def in_use(self, topic: str) -> int:
        """How many hands the topic's lane holds."""
        return self._held[topic]

    def share(self, topic: str) -> int:
        """How many more hands the topic's lane may take now."""
        return share(self.free, self._held[topic])

    def plan(
        self, wakes: Sequence[DueTopic], now: int, limit: Callable[[str], int | None] = lambda topic: None
    ) -> list[ClaimRequest]:
        """How many tasks to claim from each due topic, in the order of their turns; of a topic at `most` so many.

        A topic that is due in several shards takes an even part from each. A hand is kept for each topic behind it:
        nobody knows yet how many tasks are due, and with a thousand topics of one each, five would go at a time.
        """
        shards: dict[str, list[int]] = {}
        for wake in wakes:
            if wake.at <= now:
                shards.setdefault(wake.topic, []).append(wake.shard)
        limits = {topic: most for topic in shards if (most := limit(topic)) is not None}
        wants: list[ClaimRequest] = []
        free = self.free
        open_ = {topic: due for topic, due in shards.items() if limits.get(topic) != 0}
        behind = sum(1 for topic in open_ if self.share(topic))
        for topic, due in open_.items():
            if self.share(topic):
                behind -= 1
            part = min(share(free, self._held[topic]), max(free - behind, 1), MAX_TASKS * len(due))
            part = min(part, limits.get(topic, part))
            free -= part
            wants += _spread(topic, due, part)
        return wants


def share(free: int, in_use: int) -> int:
    """How many hands a lane that holds `held` may take of `free`: (3·free - held) / 4, rounded up.

    The last free hand goes only to a lane that holds none.
    """
    quarter = -((in_use - 3 * free) // 4)
    if quarter <= 0 or free <= 0:
        return 0
    return 1 if free == 1 and in_use == 0 else min(quarter, free - 1)


def _spread(topic: str, shards: list[int], hands: int) -> list[ClaimRequest]:
    each, more = divmod(hands, len(shards))
    counts = [each + 1] * more + [each] * (len(shards) - more)
    return [ClaimRequest(topic, shard, count) for shard, count in zip(shards, counts, strict=True) if count]
