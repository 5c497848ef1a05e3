"""Tick function that shows which shards are away, and asks them whether they are there again."""

from __future__ import annotations

import structlog

from later.metrics import Metrics
from later.store.open import Store
from later.worker.ticker import TickResult

log = structlog.get_logger("later.daemon")

WATCH_EVERY_MS = 1000


class ShardWatch:
    """Shows how many shards are away, and logs it once when there are more of them, and when all are back.

    A process that only answers calls may ask a shard for nothing else, once it draws ids of others.
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._logged = 0
        """How many were away when it was logged last."""

    async def tick(self, now: int) -> TickResult:
        away = self._store.away_shards
        if self._store.client.away_tags:
            await away.ask_again()
        count = len(away)
        self._metrics.store.shards_away.set(count)
        if count > self._logged:
            log.warning("shards away", count=count, of=len(self._store.keys.shards))
            self._logged = count
        elif not count and self._logged:
            log.info("shards back", count=self._logged)
            self._logged = 0
        return TickResult(0, None)
