"""The worker: its tickers, and the slots of its deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.worker.claimer import Claimer
from later.worker.deliveries import DeliveryPool, TaskSender
from later.worker.expiry import EXPIRY_EVERY_MS, SWEEP_EVERY_MS, DeadSweeper, Expirer
from later.worker.fair_share import FairShare
from later.worker.held_origins import HeldOrigins
from later.worker.origin_share import OriginShare
from later.worker.put_back import PutBackQueue
from later.worker.requeue import Requeuer
from later.worker.resume import RESUME_EVERY_MS, Resumer
from later.worker.throttle import Throttle
from later.worker.ticker import Ticker, TickFunction, TickResult, start_tickers
from later.worker.trim import Trimmer

FALLBACK_MS = 5000
"""How often unack and error are read at least: each tick of the delay ticker reads when one of them has due tasks, and
wakes its ticker."""


class Worker:
    """A worker: all of its parts, started and stopped together."""

    def __init__(
        self,
        *,
        store: Store,
        sender: TaskSender,
        metrics: Metrics,
        slots: int,
        tick_ms: int,
        lease_ms: int,
        random: Callable[[], float],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._tick_ms = tick_ms
        self.fair_share = FairShare(slots)
        metrics.delivery_slots.set(slots)
        metrics.delivery_slots_in_use.set_function(lambda: self.fair_share.total_in_use)
        self.origin_share = OriginShare()
        self.held_origins = HeldOrigins(store, slots)
        self.throttle = Throttle(store=store, fair_share=self.fair_share, lease_ms=lease_ms, metrics=metrics)
        put_backs = PutBackQueue(store)
        self.deliveries = DeliveryPool(
            store=store,
            sender=sender,
            fair_share=self.fair_share,
            origin_share=self.origin_share,
            held_origins=self.held_origins,
            throttle=self.throttle,
            put_backs=put_backs,
            metrics=metrics,
            random=random,
            wake=self.wake,
        )
        self.unack_requeuer = Requeuer(Bucket.UNACK, store=store, metrics=metrics, on_requeued=self.wake)
        self.error_requeuer = Requeuer(Bucket.ERROR, store=store, metrics=metrics, on_requeued=self.wake)
        self.trimmer = Trimmer(store)
        self.expirer = Expirer(store=store, metrics=metrics)
        self.sweeper = DeadSweeper(store=store, metrics=metrics)
        self.resumer = Resumer(store)
        unack_ticker = self._build_ticker("unack", self.unack_requeuer.tick, max(tick_ms, FALLBACK_MS))
        error_ticker = self._build_ticker("error", self.error_requeuer.tick, max(tick_ms, FALLBACK_MS))
        self.claimer = Claimer(
            store=store,
            throttle=self.throttle,
            fair_share=self.fair_share,
            origin_share=self.origin_share,
            held_origins=self.held_origins,
            put_backs=put_backs,
            lease_ms=lease_ms,
            start_all=self.deliveries.start_all,
            wake_unack=unack_ticker.wake,
            wake_error=error_ticker.wake,
            metrics=metrics,
        )
        self.delay_ticker = self._build_ticker("delay", self.claimer.tick, tick_ms)
        self._tickers = (
            self.delay_ticker,
            unack_ticker,
            error_ticker,
            self._build_ticker("expiry", self.expirer.tick, EXPIRY_EVERY_MS),
            self._build_ticker("dead", self.tick_dead, SWEEP_EVERY_MS),
            self._build_ticker("resume", self.resumer.tick, RESUME_EVERY_MS),
        )

    def _build_ticker(self, name: str, tick: TickFunction, interval_ms: int) -> Ticker:
        return Ticker(
            name,
            tick,
            now=self._store.time.low_ms,
            interval_ms=interval_ms,
            after_error_ms=self._tick_ms,
            count_error=self._metrics.count_tick_error,
        )

    def start(self) -> None:
        start_tickers(self._tickers, self._metrics)

    async def stop(self, timeout_s: float) -> None:
        """Stop claiming, let deliveries in flight finish, and give back the tasks of those that take longer."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.throttle.stop)
            stack.push_async_callback(self.deliveries.drain, timeout_s)
            await asyncio.gather(*(ticker.stop() for ticker in self._tickers))

    def wake(self, due_at: int | None = None) -> None:
        """Claim due tasks now, or at `due_at` (ms)."""
        self.delay_ticker.wake(due_at)

    async def tick_dead(self, now: int) -> TickResult:
        """Remove dead tasks, then forget what was remembered for long enough."""
        result = await self.sweeper.tick(now)
        if not await self.trimmer.tick(now):
            return result
        trim_at = now + self._tick_ms
        return TickResult(result.moved, trim_at if result.next_due is None else min(result.next_due, trim_at))
