"""The tickers, a table: delay claims, unack and error release; expiry and dead end what waited or lay too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from later.core.clock import Clock
from later.metrics import Metrics
from later.store.bulk_jobs import Jobs
from later.store.expiry import Ends
from later.store.keys import Bucket
from later.store.permits import Flow
from later.store.policies import PolicyBook
from later.store.tasks import Store
from later.store.types import Around
from later.worker.claimer import Delay
from later.worker.deliveries import Hands, Sends
from later.worker.expiry import EXPIRY_EVERY_MS, SWEEP_EVERY_MS, Expiry, Sweep
from later.worker.fair_share import Lanes
from later.worker.requeue import Release, Trim
from later.worker.resume import HOLDS_EVERY_MS, Holds
from later.worker.throttle import Gate
from later.worker.ticker import Ticked, Ticker

UNNUDGED_MS = 1000
"""How often unack and error look for themselves: the delay ticker tells them, each tick, when there is something."""


class Crew:
    """A worker: hands, lanes and tickers, started and stopped together."""

    def __init__(
        self,
        *,
        store: Store,
        jobs: Jobs,
        ends: Ends,
        policies: PolicyBook,
        flow: Flow,
        clock: Clock,
        sender: Sends,
        metrics: Metrics,
        hands: int,
        tick_ms: int,
        lease_ms: int,
        remember_ms: int,
        chance: Callable[[], float],
    ) -> None:
        self._lanes = lanes = Lanes(hands)
        metrics.hands.set(hands)
        metrics.hands_busy.set_function(lambda: lanes.busy)
        self._gate = gate = Gate(
            flow=flow, policies=policies, lanes=lanes, clock=clock, lease_ms=lease_ms, metrics=metrics
        )
        self._hands = Hands(
            store=store,
            clock=clock,
            sender=sender,
            lanes=lanes,
            policies=policies,
            gate=gate,
            remember_ms=remember_ms,
            metrics=metrics,
            chance=chance,
        )
        self._delay = Delay(
            store=store,
            policies=policies,
            gate=gate,
            lanes=lanes,
            lease_ms=lease_ms,
            take=self._hands.take,
            on_look=self._on_look,
            metrics=metrics,
        )
        self._unack = Release(Bucket.UNACK, store=store, metrics=metrics, on_moved=self.nudge)
        self._error = Release(Bucket.ERROR, store=store, metrics=metrics, on_moved=self.nudge)
        self._trim = Trim(store, jobs)
        expiry = Expiry(ends=ends, metrics=metrics)
        sweep = Sweep(ends=ends, policies=policies, remember_ms=remember_ms, metrics=metrics)
        self._tick_ms = tick_ms

        async def now() -> float:
            await store.now()
            return clock.low_ms()

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
                ("unack", self._tick_unack, max(tick_ms, UNNUDGED_MS)),
                ("error", self._error.tick, max(tick_ms, UNNUDGED_MS)),
                ("expiry", expiry.tick, EXPIRY_EVERY_MS),
                ("dead", sweep.tick, SWEEP_EVERY_MS),
                ("holds", Holds(flow=flow, policies=policies).tick, HOLDS_EVERY_MS),
            )
        ]
        self._hands.on_free = self._on_free_hand

    def start(self) -> None:
        for ticker in self.tickers:
            ticker.start()

    async def stop(self, patience_s: float) -> None:
        """Stop claiming, let deliveries under way end, and give back the leases of those that take longer."""
        await asyncio.gather(*(ticker.stop() for ticker in self.tickers))
        await self._hands.drain(patience_s)
        await self._gate.stop()

    def nudge(self, due_at: int | None = None) -> None:
        """There is, or will be at `due_at`, something to claim."""
        self.tickers[0].nudge(due_at)

    def _on_look(self, around: Around) -> None:
        for ticker, due_at in zip(self.tickers[1:3], (around.unack_at, around.error_at), strict=True):
            if due_at is not None:
                ticker.nudge(due_at)

    def _on_free_hand(self, may_go_on: bool) -> None:
        if may_go_on or self._delay.wants_hands:
            self.nudge()

    async def _tick_unack(self, now: int) -> Ticked:
        """Leases first: nothing that is amiss with what is forgotten may hold them up."""
        ticked = await self._unack.tick(now)
        if not await self._trim.tick(now):
            return ticked
        again = now + self._tick_ms
        return Ticked(ticked.moved, again if ticked.next_due is None else min(ticked.next_due, again))
