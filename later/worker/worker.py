"""The tickers, a table: delay claims, unack and error release; expiry and dead end what waited or lay too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import WorkerSnapshot
from later.worker.claimer import Claimer
from later.worker.deliveries import DeliveryPool, TaskSender
from later.worker.expiry import EXPIRY_EVERY_MS, SWEEP_EVERY_MS, DeadSweeper, ExpiryTicker
from later.worker.fair_share import FairShare
from later.worker.requeue import Requeuer, Trimmer
from later.worker.resume import RESUME_EVERY_MS, Resumer
from later.worker.throttle import Throttle
from later.worker.ticker import Ticker, TickResult

IDLE_POLL_MS = 1000
"""How often unack and error look for themselves: the delay ticker tells them, each tick, when there is something."""


class Worker:
    """A worker: hands, lanes and tickers, started and stopped together."""

    def __init__(
        self,
        *,
        store: Store,
        sender: TaskSender,
        metrics: Metrics,
        slots: int,
        tick_ms: int,
        lease_ms: int,
        remember_ms: int,
        random: Callable[[], float],
    ) -> None:
        self._lanes = lanes = FairShare(slots)
        metrics.delivery_slots.set(slots)
        metrics.delivery_slots_in_use.set_function(lambda: lanes.total_in_use)
        self._gate = gate = Throttle(store=store, fair_share=lanes, lease_ms=lease_ms, metrics=metrics)
        self._hands = DeliveryPool(
            store=store,
            sender=sender,
            fair_share=lanes,
            throttle=gate,
            remember_ms=remember_ms,
            metrics=metrics,
            random=random,
        )
        self._delay = Claimer(
            store=store,
            throttle=gate,
            fair_share=lanes,
            lease_ms=lease_ms,
            deliver=self._hands.start,
            on_snapshot=self._on_look,
            metrics=metrics,
        )
        self._unack = Requeuer(Bucket.UNACK, store=store, metrics=metrics, on_requeued=self.wake)
        self._error = Requeuer(Bucket.ERROR, store=store, metrics=metrics, on_requeued=self.wake)
        self._trim = Trimmer(store)
        expiry = ExpiryTicker(store=store, metrics=metrics)
        sweep = DeadSweeper(store=store, remember_ms=remember_ms, metrics=metrics)
        self._tick_ms = tick_ms

        async def now() -> float:
            await store.now()
            return store.clock.low_ms()

        self.tickers = [
            Ticker(
                name,
                errand,
                now=now,
                interval_ms=interval_ms,
                after_error_ms=tick_ms,
                count_error=metrics.count_tick_error,
            )
            for name, errand, interval_ms in (
                ("delay", self._delay.tick, tick_ms),
                ("unack", self._tick_unack, max(tick_ms, IDLE_POLL_MS)),
                ("error", self._error.tick, max(tick_ms, IDLE_POLL_MS)),
                ("expiry", expiry.tick, EXPIRY_EVERY_MS),
                ("dead", sweep.tick, SWEEP_EVERY_MS),
                ("resume", Resumer(store).tick, RESUME_EVERY_MS),
            )
        ]
        self._hands.on_slot_free = self._on_free_hand

    def start(self) -> None:
        for ticker in self.tickers:
            ticker.start()

    async def stop(self, timeout_s: float) -> None:
        """Stop claiming, let deliveries under way end, and give back the leases of those that take longer."""
        await asyncio.gather(*(ticker.stop() for ticker in self.tickers))
        await self._hands.drain(timeout_s)
        await self._gate.stop()

    def wake(self, due_at: int | None = None) -> None:
        """There is, or will be at `due_at`, something to claim."""
        self.tickers[0].wake(due_at)

    def _on_look(self, around: WorkerSnapshot) -> None:
        for ticker, due_at in zip(self.tickers[1:3], (around.unack_at, around.error_at), strict=True):
            if due_at is not None:
                ticker.wake(due_at)

    def _on_free_hand(self, may_go_on: bool) -> None:
        if may_go_on or self._delay.needs_slot:
            self.wake()

    async def _tick_unack(self, now: int) -> TickResult:
        """Leases first: nothing that is amiss with what is forgotten may hold them up."""
        ticked = await self._unack.tick(now)
        if not await self._trim.tick(now):
            return ticked
        again = now + self._tick_ms
        return TickResult(ticked.moved, again if ticked.next_due is None else min(ticked.next_due, again))
