"""The moves of the clock of `later dev`, all parts of a process together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

from later.core.clock_move import ClockMove, ClockState
from later.store.moved_clock import DueWork
from later.store.open import Store
from later.worker.ticker import Ticker
from later.worker.worker import Worker

LOOK_AGAIN_S = 0.01
"""The pause between two looks at whether everything that is due has been tried."""
MAX_DELIVERY_S = 600.0
"""How long a move waits at most for deliveries under way: each ends by its own timeout, long before that."""


class ClockMover:
    """Moves the clock, one move after the other.

    A move waits for the deliveries under way, and no tick runs meanwhile. So a lease ends only if its holder was late
    by the time that has really passed, and nothing is decided by a time from before the move. `others` are tickers
    that write the time, besides those of the worker.
    """

    def __init__(self, store: Store, worker: Worker, others: Sequence[Ticker]) -> None:
        self._store = store
        self._worker = worker
        self._others = others
        self._moving = asyncio.Lock()

    async def move(self, move: ClockMove) -> ClockState:
        """Carry out a move; return when all parts have the new time.

        Raises:
            Refused: it is a move backwards, or too far.
            StoreDown: the clock could not be moved, or not all the way.
        """
        async with self._moving:
            target = move.target_ms(await self._now())
            settled: bool | None = None
            if move.settle_ms is None:
                await self._move_to(target)
            else:
                ends_at = monotonic() + move.settle_ms / 1000
                settled = not move.is_stepwise or await self._step_to(target, ends_at)
                if settled:
                    await self._move_to(target)
                    settled = await self._settle(ends_at, waits_for_holds=True) is not None
            return ClockState(await self._now(), target, settled)

    async def _step_to(self, target: int, ends_at: float) -> bool:
        """Move to each time before `target` at which something is due, and let it be tried; False: it took too long."""
        while (work := await self._settle(ends_at, waits_for_holds=False)) is not None:
            if work.next_at is None or work.next_at >= target:
                return True
            await self._move_to(work.next_at)
        return False

    async def _settle(self, ends_at: float, *, waits_for_holds: bool) -> DueWork | None:
        """Wait until nothing that is due is left to be tried; return what comes next, or None if it took too long.

        A topic that a rate holds for a moment has nothing due meanwhile, unless the clock `waits_for_holds`.
        """
        while True:
            await self._worker.deliveries.wait_until_idle(max(ends_at - monotonic(), 0))
            async with self._paused():
                if self._worker.deliveries.is_idle:
                    work = await self._store.moved_clock.look(await self._now())
                    if not work.is_due and not (waits_for_holds and work.held_until is not None):
                        return work
            if monotonic() >= ends_at:
                return None
            await self._tick()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _move_to(self, at: int) -> None:
        """Let the clock show a time (ms), unless it does so by itself by now."""
        async with self._paused():
            await self._worker.deliveries.wait_until_idle(MAX_DELIVERY_S)
            by_ms = at - await self._now()
            if by_ms > 0:
                await self._store.moved_clock.move(by_ms)
        await self._tick()

    async def _tick(self) -> None:
        """Let each ticker run once, and again when its time has come by the clock as it is now."""
        tickers = [*self._worker.tickers, *self._others]
        await asyncio.gather(*(ticker.tick() for ticker in tickers))
        for ticker in tickers:
            ticker.wake()

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Run a block in which no ticker of the worker does anything."""
        async with AsyncExitStack() as stack:
            for ticker in self._worker.tickers:
                await stack.enter_async_context(ticker.paused())
            yield

    async def _now(self) -> int:
        return (await self._store.time.now()).low
