"""The upkeep of a store: what must happen to its tasks besides their deliveries, whoever delivers or claims them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.worker.expiry import EXPIRY_EVERY_MS, SWEEP_EVERY_MS, DeadSweeper, Expirer
from later.worker.requeue import Requeuer
from later.worker.resume import RESUME_EVERY_MS, Resumer
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import Ticker, TickFunction, TickResult, start_tickers
from later.worker.trim import Trimmer


class Upkeep:
    """The tickers that requeue tasks, end ttls, remove what was kept for long enough, and resume topics.

    Any number of processes may run them on one store. unack and error are read every `requeue_every_ms`, at least.
    `on_requeued` is called when tasks are due again.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        tick_ms: int,
        requeue_every_ms: int,
        on_requeued: Callable[[], None],
        shard_selector: ShardSelector,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._tick_ms = tick_ms
        build_requeuer = partial(
            Requeuer, store=store, metrics=metrics, on_requeued=on_requeued, shard_selector=shard_selector
        )
        self.unack_requeuer, self.error_requeuer = build_requeuer(Bucket.UNACK), build_requeuer(Bucket.ERROR)
        self.trimmer = Trimmer(store, shard_selector)
        self.expirer = Expirer(store=store, metrics=metrics, shard_selector=shard_selector)
        self.sweeper = DeadSweeper(store=store, metrics=metrics, shard_selector=shard_selector)
        self.resumer = Resumer(store, shard_selector)
        self.unack_ticker = self.build_ticker("unack", self.unack_requeuer.tick, requeue_every_ms)
        self.error_ticker = self.build_ticker("error", self.error_requeuer.tick, requeue_every_ms)
        self.tickers = (
            self.unack_ticker,
            self.error_ticker,
            self.build_ticker("expiry", self.expirer.tick, EXPIRY_EVERY_MS),
            self.build_ticker("dead", self.tick_dead, SWEEP_EVERY_MS),
            self.build_ticker("resume", self.resumer.tick, RESUME_EVERY_MS),
        )

    def build_ticker(self, name: str, tick: TickFunction, interval_ms: int) -> Ticker:
        """Return a ticker on the store's clock."""
        return Ticker(
            name,
            tick,
            now=self._store.time.low_ms,
            interval_ms=interval_ms,
            after_error_ms=self._tick_ms,
            count_error=self._metrics.count_tick_error,
        )

    def start(self) -> None:
        start_tickers(self.tickers, self._metrics)

    async def stop(self) -> None:
        """Let the current ticks finish, and start no others."""
        await asyncio.gather(*(ticker.stop() for ticker in self.tickers))

    async def tick_dead(self, now: int) -> TickResult:
        """Remove dead tasks, then forget what was remembered for long enough."""
        result = await self.sweeper.tick(now)
        if not await self.trimmer.tick(now):
            return result
        trim_at = now + self._tick_ms
        return TickResult(result.moved, trim_at if result.next_due is None else min(result.next_due, trim_at))
