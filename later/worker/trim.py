"""Tick function that forgets ids and bulk jobs that were remembered long enough, and checks the index of topics."""

from __future__ import annotations

from later.store.open import Store
from later.worker.shard_selector import ShardSelector

TRIM_LIMIT = 1000
"""Ids that one tick forgets in each shard, at most."""
TRIM_EVERY_MS = 1000


class Trimmer:
    """Forgets old ids and bulk jobs: once a second, or in each tick while there are more than a tick can forget.

    Each time it also checks a few names of the index of topics.
    """

    def __init__(self, store: Store, shard_selector: ShardSelector) -> None:
        self._store = store
        self._shard_selector = shard_selector
        self._next_at = 0

    async def tick(self, now: int) -> bool:
        """Return True if there is more to forget."""
        if self._next_at - TRIM_EVERY_MS <= now < self._next_at:
            return False  # the lower bound matters when the clock was set back
        shards = self._shard_selector.for_upkeep("trim", now)
        more = await self._store.maintenance.trim(now, TRIM_LIMIT, shards) >= TRIM_LIMIT
        self._next_at = now if more else now + TRIM_EVERY_MS
        return more
