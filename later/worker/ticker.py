"""The one loop: everything that happens again and again is an errand of a Ticker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.ticker")


class TickResult(NamedTuple):
    """What a tick came to: how many tasks it moved, and when (ms) there is more to do (None: nothing is known)."""

    moved: int
    next_due: int | None


TickFunction = Callable[[int], Awaitable[TickResult]]


class Ticker:
    """Runs one errand: again at once after a batch that left due work behind, otherwise when the next is due, and at

    each interval at the latest. Whatever the errand raises is logged and counted, and the next tick comes
    `after_error_ms` later (by default an interval), however often it is nudged: a store that is in trouble is not to be
    asked for each task that is created.

    `now` is the errand's time in ms, with its fraction: cut to whole ones, each wake would be half of one late.
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
        self._errand = tick
        self._now = now
        self._interval_ms = interval_ms
        self._after_error_ms = interval_ms if after_error_ms is None else after_error_ms
        self._count_error = count_error
        self._awake = asyncio.Event()
        self._wakes_at: float = -math.inf
        self._sleep: _Sleep | None = None
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        self._running = asyncio.create_task(self.run(), name=f"ticker-{self.name}")

    async def stop(self) -> None:
        """Let the tick under way end, and no other begin."""
        self._stopping = True
        self._awake.set()
        if self._running is not None:
            await self._running

    async def cancel(self) -> None:
        """End at once, in the middle of a tick: for errands that nothing depends on."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def wake(self, due_at: int | None = None) -> None:
        """There is work now, or at `due_at`: the sleep ends then, if it would not have ended before."""
        at = -math.inf if due_at is None else due_at
        if at >= self._wakes_at:
            return
        self._wakes_at = at
        if self._sleep is not None:
            self._sleep.until(at)

    async def run(self) -> None:
        while not self._stopping:
            pause_ms = await self.tick()
            await self._rest(pause_ms)

    async def tick(self) -> float:
        """Run the errand once; the pause in ms until it should run again."""
        self._wakes_at = math.inf  # a nudge during the tick may be about what it has passed already
        try:
            started = int(await self._now())
            moved, next_due = await self._errand(started)
            pause_ms = self._pause(moved, next_due, started, await self._now())
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return self._fail(error)
        except Exception as error:  # no errand may end the loop, whatever it raises
            return self._fail(error)
        self._failing = False
        return pause_ms

    def _fail(self, error: BaseException) -> float:
        self._report(error)
        self._wakes_at = -math.inf
        return self._after_error_ms

    def _pause(self, moved: int, next_due: int | None, started: int, ended: float) -> float:
        self._wakes_at = min(self._wakes_at, ended + self._interval_ms)
        if next_due is not None and (moved or next_due > started):
            self._wakes_at = min(self._wakes_at, next_due)
        return max(0, self._wakes_at - ended)

    async def _rest(self, pause_ms: float) -> None:
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
            self._sleep.end()
            self._sleep = None

    def _report(self, error: BaseException) -> None:
        """Log the first of a row of failures as a warning: a store that is away for an hour is one event."""
        self._count_error(self.name)
        if not isinstance(error, LaterError):
            log.error("tick failed", ticker=self.name, exc_info=error)
        elif self._failing:
            log.debug("tick failed again", ticker=self.name, reason=str(error))
        else:
            log.warning("tick failed", ticker=self.name, reason=str(error))
        self._failing = True


def _is_cancelled() -> bool:
    """Is it this loop that is to end? An errand may also come upon something that somebody else cancelled."""
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0


class _Sleep:
    """A sleep that can be shortened; `wakes_at` is when it ends by the errand's clock, `pause_ms` from now."""

    def __init__(self, wake: Callable[[], object], wakes_at: float, pause_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._ahead_s = wakes_at / 1000 - (self._loop.time() + pause_ms / 1000)
        """How far the errand's clock is ahead of the loop's."""
        self._alarm = self._loop.call_later(pause_ms / 1000, wake)

    def until(self, wakes_at: float) -> None:
        self.end()
        at = wakes_at / 1000 - self._ahead_s
        if at <= self._loop.time():
            self._wake()
        else:
            self._alarm = self._loop.call_at(at, self._wake)

    def end(self) -> None:
        self._alarm.cancel()
