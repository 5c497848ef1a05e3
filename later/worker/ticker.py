"""The one loop: everything that happens again and again is an errand of a Ticker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.ticker")


class Ticked(NamedTuple):
    """What a tick came to: how many tasks it moved, and when (ms) there is more to do (None: nothing is known)."""

    moved: int
    next_due: int | None


Errand = Callable[[int], Awaitable[Ticked]]


class Ticker:
    """Runs one errand: again at once after a batch that left due work behind, otherwise when the next is due, and at

    each interval at the latest. Whatever the errand raises is logged and counted, and the next tick comes an interval
    later, however often it is nudged: a store that is in trouble is not to be asked for each task that is created.
    """

    def __init__(
        self,
        name: str,
        errand: Errand,
        *,
        now: Callable[[], Awaitable[int]],
        interval_ms: int,
        count_error: Callable[[str], None],
    ) -> None:
        self.name = name
        self._errand = errand
        self._now = now
        self._interval_ms = interval_ms
        self._count_error = count_error
        self._nudged = asyncio.Event()
        self._sleeps_until: float = -math.inf
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        self._running = asyncio.create_task(self.run(), name=f"ticker-{self.name}")

    async def stop(self) -> None:
        """Let the tick under way end, and no other begin."""
        self._stopping = True
        self._nudged.set()
        if self._running is not None:
            await self._running

    async def cut(self) -> None:
        """End at once, in the middle of a tick: for errands that nothing depends on."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def nudge(self, due_at: int | None = None) -> None:
        """End the sleep: there is work now, or work that is due before the sleep would end."""
        if (-math.inf if due_at is None else due_at) < self._sleeps_until:
            self._nudged.set()

    async def run(self) -> None:
        while not self._stopping:
            pause_ms = await self.tick()
            await self._sleep(pause_ms)

    async def tick(self) -> int:
        """Run the errand once; the pause in ms until it should run again."""
        self._sleeps_until = math.inf  # until the next look is known, any nudge may concern it
        self._nudged.clear()
        try:
            started = await self._now()
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

    def _fail(self, error: BaseException) -> int:
        self._report(error)
        self._sleeps_until = -math.inf
        self._nudged.clear()
        return self._interval_ms

    def _pause(self, moved: int, next_due: int | None, started: int, ended: int) -> int:
        pause_ms = self._interval_ms
        if next_due is not None and (moved or next_due > started):
            pause_ms = max(0, min(next_due - ended, self._interval_ms))
        self._sleeps_until = ended + pause_ms
        return pause_ms

    async def _sleep(self, pause_ms: int) -> None:
        if self._stopping:
            return
        if pause_ms == 0:
            await asyncio.sleep(0)
            return
        alarm = asyncio.get_running_loop().call_later(pause_ms / 1000, self._nudged.set)
        try:
            await self._nudged.wait()
        finally:
            alarm.cancel()

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
