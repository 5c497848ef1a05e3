"""The one loop: everything that happens again and again is a tick function of a Ticker."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog

from later.core.errors import LaterError
from later.metrics import Metrics

log = structlog.get_logger("later.ticker")


class TickResult(NamedTuple):
    """The number of tasks that a tick moved, and when (ms) there is more to do (None: not known)."""

    moved: int
    next_due: int | None


TickFunction = Callable[[int], Awaitable[TickResult]]

HANGS_AFTER_S = 60.0
"""How much longer than its interval a ticker may take until it counts as one that hangs."""


async def monotonic_ms() -> int:
    return int(time.monotonic() * 1000)


def start_tickers(tickers: Iterable[Ticker], metrics: Metrics) -> None:
    """Start tickers, and show in the metrics when each of them succeeded last, and to health checks which hang."""
    for ticker in tickers:
        ticker.start()
        metrics.add_ticker(ticker.name, ticker.last_success_at, ticker.hangs)


class Ticker:
    """A loop that calls one tick function.

    It calls again at once after a batch that left due work behind, otherwise when the next work is due, and after
    `interval_ms` at the latest. If the function raises, the error is logged and counted, and the next call comes
    `after_error_ms` later (by default `interval_ms`), however often the ticker is woken: otherwise a store in trouble
    would get a call for each task that is created.

    `now` returns the tick function's time in ms, with its fraction: with whole ms, a wake would be half a ms late.
    """

    def __init__(
        self,
        name: str,
        tick: TickFunction,
        *,
        now: Callable[[], Awaitable[float]],
        interval_ms: int,
        count_error: Callable[[str], None],
        after_error_ms: int | None = None,
    ) -> None:
        self.name = name
        self._tick = tick
        self._now = now
        self._interval_ms = interval_ms
        self._after_error_ms = interval_ms if after_error_ms is None else after_error_ms
        self._count_error = count_error
        self._awake = asyncio.Event()
        self._ticking = asyncio.Lock()
        self._wakes_at: float = -math.inf
        self._sleep: _Sleep | None = None
        self._stopping = False
        self._loop_task: asyncio.Task[None] | None = None
        self._failing = False
        self._last_success_s = 0.0
        self._last_end_s = 0.0
        """When (s, monotonic) the last tick ended, well or by an error that is not ours; at first, when it started."""
        self._pauses = 0

    @classmethod
    def on_local_clock(
        cls, name: str, tick: TickFunction, interval_ms: int, count_error: Callable[[str], None]
    ) -> Ticker:
        """Return a ticker on the monotonic clock of this process, for work that must go on without the store's time."""
        return cls(name, tick, now=monotonic_ms, interval_ms=interval_ms, count_error=count_error)

    def last_success_at(self) -> float:
        """Return the Unix time (s) at which the last tick succeeded; before the first, that of the start."""
        return self._last_success_s

    def hangs(self, now_s: float) -> bool:
        """Return True if the ticker has got nothing done for much longer than its interval, at `now_s` (monotonic).

        A tick that failed because of the store has got done what it could: a restart would not help. One that failed
        by a fault has not.
        """
        if self._loop_task is None or self._stopping or self._pauses:
            return False
        return now_s - self._last_end_s > HANGS_AFTER_S + self._interval_ms / 1000

    def start(self) -> None:
        self._last_success_s = time.time()
        self._last_end_s = time.monotonic()
        self._loop_task = asyncio.create_task(self.run(), name=f"ticker-{self.name}")

    async def stop(self) -> None:
        """Let the current tick finish, and start no other."""
        self._stopping = True
        self._awake.set()
        if self._loop_task is not None:
            await asyncio.wait({self._loop_task})

    async def cancel(self) -> None:
        """Stop at once, in the middle of a tick: for tick functions that nothing depends on."""
        self._stopping = True
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    def wake(self, due_at: int | None = None) -> None:
        """End the sleep now, or at `due_at` (ms) if it would last longer."""
        at = -math.inf if due_at is None else due_at
        if at >= self._wakes_at:
            return
        self._wakes_at = at
        if self._sleep is not None:
            self._sleep.end_at(at)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Run a block in which no tick runs: it begins when the current one has ended."""
        async with self._ticking:
            self._pauses += 1
            try:
                yield
            finally:
                self._pauses -= 1
                self._last_end_s = time.monotonic()

    async def run(self) -> None:
        while not self._stopping:
            await self._pause(await self.tick())

    async def tick(self) -> float:
        """Call the tick function once, alone; return the pause in ms until the next call."""
        async with self._ticking:
            return await self._tick_alone()

    async def _tick_alone(self) -> float:
        self._wakes_at = math.inf  # a wake during the tick may concern work that the tick has already passed
        try:
            started_at = int(await self._now())
            moved, next_due = await self._tick(started_at)
            ended_at = await self._now()
        except asyncio.CancelledError as error:
            this_task = asyncio.current_task()
            if this_task is not None and this_task.cancelling():
                raise
            return self._record_error(error)  # not this loop was cancelled, but a future that the function awaited
        except Exception as error:  # no tick function may end the loop, whatever it raises
            return self._record_error(error)
        self._failing = False
        self._last_success_s = time.time()
        self._last_end_s = time.monotonic()
        self._wakes_at = min(self._wakes_at, ended_at + self._interval_ms)
        if next_due is not None and (moved or next_due > started_at):
            self._wakes_at = min(self._wakes_at, next_due)
        return max(0, self._wakes_at - ended_at)

    def _record_error(self, error: BaseException) -> float:
        """Count and log an error; return the pause (ms) after it.

        Of errors in a row only the first is a warning: an hour without the store is one event.
        """
        self._count_error(self.name)
        if not isinstance(error, LaterError):
            log.error("tick failed", ticker=self.name, exc_info=error)
        elif self._failing:
            log.debug("tick failed again", ticker=self.name, reason=str(error))
        else:
            log.warning("tick failed", ticker=self.name, reason=str(error))
        if isinstance(error, LaterError):
            self._last_end_s = time.monotonic()
        self._failing = True
        self._wakes_at = -math.inf
        return self._after_error_ms

    async def _pause(self, pause_ms: float) -> None:
        if self._stopping:
            return
        if not pause_ms:
            await asyncio.sleep(0)
            return
        self._awake.clear()
        self._sleep = _Sleep(self._awake.set, self._wakes_at, pause_ms)
        try:
            await self._awake.wait()
        finally:
            self._sleep.cancel()
            self._sleep = None


class _Sleep:
    """A sleep that can be shortened. It ends in `pause_ms`, which is `wakes_at` (ms) on the tick function's clock."""

    def __init__(self, wake: Callable[[], object], wakes_at: float, pause_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._offset_s = wakes_at / 1000 - (self._loop.time() + pause_ms / 1000)
        """How far the tick function's clock is ahead of the event loop's."""
        self._timer = self._loop.call_later(pause_ms / 1000, wake)

    def end_at(self, wakes_at: float) -> None:
        self.cancel()
        at = wakes_at / 1000 - self._offset_s
        if at <= self._loop.time():
            self._wake()
        else:
            self._timer = self._loop.call_at(at, self._wake)

    def cancel(self) -> None:
        self._timer.cancel()
