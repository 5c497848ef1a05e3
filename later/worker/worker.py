"""The worker: its tickers, and the slots of its deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from later.metrics import Metrics
from later.store.open import Store
from later.worker.claimer import Claimer
from later.worker.deliveries import DeliveryPool, TaskSender
from later.worker.fair_share import FairShare
from later.worker.firing import ScheduleFirer
from later.worker.held_origins import HeldOrigins
from later.worker.origin_share import OriginShare
from later.worker.put_back import PutBackQueue
from later.worker.shard_selector import ShardSelector
from later.worker.throttle import Throttle
from later.worker.ticker import Ticker, start_tickers
from later.worker.upkeep import Upkeep

if TYPE_CHECKING:
    from later.tracing.spans import SpanRecorder

FALLBACK_MS = 5000
"""How often unack, error and schedules are read at least: each tick of the delay ticker reads when one of them has
something due, and wakes its ticker."""


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
        check_callback: Callable[[str], None],
        instance: str,
        span_recorder: SpanRecorder | None = None,
        confirm_settles: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._metrics = metrics
        self.fair_share = FairShare(slots)
        metrics.delivery_slots.set(slots)
        metrics.delivery_slots_in_use.set_function(lambda: self.fair_share.total_in_use)
        self.origin_share = OriginShare()
        self.held_origins = HeldOrigins(store, slots)
        self.throttle = Throttle(store=store, fair_share=self.fair_share, lease_ms=lease_ms, metrics=metrics)
        put_backs = PutBackQueue(store)
        self._keys = store.keys
        self.shard_selector = ShardSelector(len(store.keys.shards), tick_ms=tick_ms, name=instance)
        metrics.shards_owned.set_function(lambda: self.shard_selector.owned)
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
            span_recorder=span_recorder,
            confirm_settles=confirm_settles,
        )
        self.upkeep = Upkeep(
            store=store,
            metrics=metrics,
            tick_ms=tick_ms,
            requeue_every_ms=max(tick_ms, FALLBACK_MS),
            on_requeued=self.wake,
            shard_selector=self.shard_selector,
        )
        self.firer = ScheduleFirer(
            store=store,
            metrics=metrics,
            check_callback=check_callback,
            on_created=self.note_due,
            shard_selector=self.shard_selector,
        )
        self.schedule_ticker = self.upkeep.build_ticker("schedules", self.firer.tick, FALLBACK_MS)
        self.claimer = Claimer(
            store=store,
            throttle=self.throttle,
            fair_share=self.fair_share,
            origin_share=self.origin_share,
            held_origins=self.held_origins,
            put_backs=put_backs,
            shard_selector=self.shard_selector,
            lease_ms=lease_ms,
            start_all=self.deliveries.start_all,
            wake_unack=self.upkeep.unack_ticker.wake,
            wake_error=self.upkeep.error_ticker.wake,
            wake_schedules=self.schedule_ticker.wake,
            metrics=metrics,
        )
        self.delay_ticker = self.upkeep.build_ticker("delay", self.claimer.tick, tick_ms)

    def start(self) -> None:
        start_tickers([self.delay_ticker, self.schedule_ticker], self._metrics)
        self.upkeep.start()

    async def stop(self, timeout_s: float) -> None:
        """Stop claiming, let deliveries in flight finish, and give back the tasks of those that take longer."""
        self.shard_selector.stop()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.throttle.stop)
            stack.push_async_callback(self.deliveries.drain, timeout_s)
            await asyncio.gather(self.delay_ticker.stop(), self.schedule_ticker.stop(), self.upkeep.stop())

    @property
    def tickers(self) -> tuple[Ticker, ...]:
        return (self.delay_ticker, self.schedule_ticker, *self.upkeep.tickers)

    def wake(self, due_at: int | None = None) -> None:
        """Claim due tasks now, or at `due_at` (ms)."""
        self.delay_ticker.wake(due_at)

    def note_due(self, due_at: int, ids: Sequence[str] = ()) -> None:
        """Claim the tasks with these ids at `due_at` (ms), in whichever shards; no ids: those are not known."""
        if self.shard_selector.needs_note(due_at):
            shards = {self._keys.shard_of(id).index for id in ids}
            self.shard_selector.note_created(due_at, shards or None)
        self.delay_ticker.wake(due_at)
