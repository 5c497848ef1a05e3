"""Fair sharing of a worker's delivery slots among topics.

A topic may hold at most three times the slots that are free. So a lone topic gets three quarters of the slots, one
whose receivers hang leaves a quarter to the others, two leave a sixteenth, and nothing has to be configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from later.store.scripts import MAX_TASKS
from later.store.types import ClaimRequest, DueTopic


class FairShare:
    """The slots of a worker, and how many of them each topic holds."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free = slots
        self.in_use_by_topic: dict[str, int] = {}
        """How many slots each topic holds; a topic that holds none is missing. A `Counter` takes twice as long."""
        self.tasks_wait = False
        """True if a lack of slots left due tasks behind: then a slot that becomes free must end the ticker's sleep."""

    @property
    def total_in_use(self) -> int:
        return self.slots - self.free

    def acquire(self, topic: str, count: int = 1) -> None:
        self.in_use_by_topic[topic] = self.in_use(topic) + count
        self.free -= count

    def release(self, topic: str, count: int = 1) -> None:
        left = self.in_use_by_topic[topic] - count
        self.free += count
        if left:
            self.in_use_by_topic[topic] = left
        else:
            del self.in_use_by_topic[topic]

    def in_use(self, topic: str) -> int:
        """Return how many slots the topic holds."""
        return self.in_use_by_topic.get(topic, 0)

    def share(self, topic: str) -> int:
        """Return how many more slots the topic may take now."""
        return share(self.free, self.in_use(topic))

    def plan(
        self,
        due: Sequence[DueTopic],
        now: int,
        limit: Callable[[str], int | None] | None = None,
        limit_by_origin: Callable[[str, int], int] = lambda topic, open_slots: open_slots,
    ) -> list[ClaimRequest]:
        """Return how many tasks to claim from each due topic, in the order of turns; at most `limit(topic)` from one.

        `limit_by_origin` makes of a topic and the slots that it may take how many tasks to claim. It may be more.
        A topic that is due in several shards takes an even part from each. One slot is kept for each topic that is
        still to come, because the number of its due tasks is unknown: otherwise, of a thousand topics with one task
        each, only five would be claimed at a time.
        """
        shards = _shards_by_topic(due, now)
        limits = {} if limit is None else {topic: most for topic in shards if (most := limit(topic)) is not None}
        free, in_use = self.free, self.in_use_by_topic
        claimable = [(topic, in_use.get(topic, 0)) for topic in shards if limits.get(topic) != 0]
        shares = {count: share(free, count) for count in {count for _, count in claimable}}
        topics_to_come = sum(shares[count] > 0 for _, count in claimable)
        requests: list[ClaimRequest] = []
        for topic, count in claimable:
            topics_to_come -= shares[count] > 0
            open_slots = share(free, count)
            if not open_slots:
                continue
            open_slots = min(open_slots, max(free - topics_to_come, 1))
            topic_shards = shards[topic]
            wanted = limit_by_origin(topic, open_slots)
            wanted = min(wanted, limits.get(topic, wanted))
            free -= min(wanted, open_slots)
            if len(topic_shards) == 1 and 0 < wanted <= MAX_TASKS:  # mostly: hundreds of topics have a task each
                requests.append(ClaimRequest(topic, topic_shards[0], wanted))
                continue
            even, rest = divmod(wanted, len(topic_shards))
            for position, shard in enumerate(topic_shards):
                part = even + (position < rest)
                requests += [
                    ClaimRequest(topic, shard, min(part - start, MAX_TASKS)) for start in range(0, part, MAX_TASKS)
                ]
        return requests


def _shards_by_topic(due: Sequence[DueTopic], now: int) -> dict[str, list[int]]:
    """Return the shards in which each topic is due now, in the order of turns."""
    shards: dict[str, list[int]] = {}
    for at, topic, shard in due:
        if at > now:
            continue
        if topic not in shards:
            shards[topic] = [shard]
        elif shard not in shards[topic]:  # an entry that changes meanwhile may be read twice
            shards[topic].append(shard)
    return shards


def share(free: int, in_use: int) -> int:
    """Return how many of `free` slots a topic that holds `in_use` may take: (3·free - in_use) / 4, rounded up.

    The last free slot goes only to a topic that holds none.
    """
    quarter = -((in_use - 3 * free) // 4)
    if quarter <= 0 or free <= 0:
        return 0
    return 1 if free == 1 and in_use == 0 else min(quarter, free - 1)
