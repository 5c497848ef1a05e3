"""The counts of waiting tasks by the times at which they are due, for forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from later.core.forecast import ForecastWindow, WaitingTasks, add_up
from later.store import scripts
from later.store.client import StoreClient
from later.store.fanout import split_by_weight
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Command

WAITING = (Bucket.DELAY, Bucket.ERROR)
"""The buckets of tasks that wait for a time."""
MAX_COUNTS = 300
"""Counts in one script call at most: a script blocks the store while it runs."""
MAX_TRIP_COUNTS = 2500
"""Counts in one round trip at most."""


class Forecasts:
    """Reads forecasts. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read(self, topics: Sequence[str], window: ForecastWindow) -> dict[str, WaitingTasks]:
        """Return the waiting tasks of these topics, summed over the shards, by the steps of a window."""
        names = list(dict.fromkeys(topics))
        limits = [str(window.now), *(f"({end}" for end in window.ends)]
        most = MAX_COUNTS // len(WAITING)
        parts = [limits[start : start + most] for start in range(0, len(limits), most)]
        size = max(most // len(limits), 1)
        slices = [names[start : start + size] for start in range(0, len(names), size)]
        calls = [_Call(shard, some, part) for some in slices for shard in self._keys.shards for part in parts]
        totals: dict[str, dict[Shard, list[int]]] = {topic: {} for topic in names}
        for trip in split_by_weight(calls, MAX_TRIP_COUNTS, lambda call: call.weight):
            answers = await self._client.execute_all("forecast", [call.command() for call in trip])
            for (shard, some, part), answer in zip(trip, answers, strict=True):
                for position, topic in enumerate(some):
                    found = answer[position * len(part) : (position + 1) * len(part)]
                    totals[topic].setdefault(shard, []).extend(found)
        return {
            topic: add_up([_parse(of_shard) for of_shard in of_topic.values()], window.steps)
            for topic, of_topic in totals.items()
        }


class _Call(NamedTuple):
    """A call of the script: topics of a shard, and some of the times up to which their tasks are counted."""

    shard: Shard
    topics: Sequence[str]
    limits: Sequence[str]

    @property
    def weight(self) -> int:
        return len(WAITING) * len(self.topics) * len(self.limits)

    def command(self) -> Command:
        buckets = [self.shard.bucket(bucket, topic.encode()) for topic in self.topics for bucket in WAITING]
        return scripts.FORECAST.call(buckets, self.limits)


def _parse(totals: Sequence[int]) -> WaitingTasks:
    """Parse the running totals of one topic in one shard."""
    return WaitingTasks(totals[0], [after - before for before, after in pairwise(totals)])
