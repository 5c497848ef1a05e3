"""The counts of waiting tasks by the times at which they are due, for forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from later.core.forecast import ForecastWindow, WaitingTasks, add_up
from later.store import scripts
from later.store.client import StoreClient
from later.store.fanout import split_by_weight
from later.store.keys import Bucket, Keys

WAITING = (Bucket.DELAY, Bucket.ERROR)
"""The buckets of tasks that wait for a time."""
MAX_COUNTS = 600
"""Counts in one script call at most, unless one topic needs more: a script blocks the store while it runs."""
MAX_TRIP_COUNTS = 2500
"""Counts in one round trip at most, unless one script call needs more."""


class Forecasts:
    """Reads forecasts. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read(self, topics: Sequence[str], window: ForecastWindow) -> dict[str, WaitingTasks]:
        """Return the waiting tasks of these topics, summed over the shards, by the steps of a window."""
        found: dict[str, list[WaitingTasks]] = {topic: [] for topic in topics}
        counts_of_topic = len(WAITING) * (window.steps + 1)
        size = max(MAX_COUNTS // counts_of_topic, 1)
        names = list(found)
        slices = [names[start : start + size] for start in range(0, len(names), size)]
        calls = [(shard, some) for some in slices for shard in self._keys.shards]
        times = [window.now, *window.ends]
        for trip in split_by_weight(calls, MAX_TRIP_COUNTS, lambda call: counts_of_topic * len(call[1])):
            commands = [
                scripts.FORECAST.call(
                    [shard.bucket(bucket, topic.encode()) for topic in some for bucket in WAITING], times
                )
                for shard, some in trip
            ]
            answers = await self._client.execute_all("forecast", commands)
            for (_, some), totals in zip(trip, answers, strict=True):
                for position, topic in enumerate(some):
                    found[topic].append(_parse(totals[position * len(times) : (position + 1) * len(times)]))
        return {topic: add_up(of_shards, window.steps) for topic, of_shards in found.items()}


def _parse(totals: Sequence[int]) -> WaitingTasks:
    """Parse the running totals of one topic in one shard."""
    return WaitingTasks(totals[0], [after - before for before, after in pairwise(totals)])
