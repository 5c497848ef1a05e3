"""The store's time, known as an interval.

Every score in the store is a time of the store's own clock, so that all machines agree on which tasks are due. A
process learns that time by asking, and the answer is as old as the round trip: all that is known is an interval. Claims
use its low end, creates its high end, so no task is ever early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from later.core.errors import StoreDown

SLACK_MS = 0.1
"""Added to the high end, because the store cuts its answer to whole microseconds and clocks tick unevenly.

A task that is due at once waits for the whole interval, so it is worth keeping this small: it is a hundred times what
the store cuts off.
"""

MAX_WALL_DRIFT_S = 0.05
"""If wall and monotonic time move apart by more than this, the machine was suspended or its clock was set."""

MAX_DRIFT_MS_PER_S = 1
"""Drift of a monotonic clock against the store's: twice the 500 ppm that NTP slews at most."""


MAX_MEASUREMENTS = 3
"""How often the time is measured in a row if the machine's clocks move apart each time. After that it is taken as it is
known: within an interval that is as wide as they have moved."""

MAX_CLOCKS_APART_S = 60
"""Beyond it the store's clock or this machine's is wrong. Receivers accept five minutes."""


def rfc3339(ms: int) -> str:
    """Return a time in ms since the Unix epoch as `2017-09-09T05:17:10.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return _format_second(seconds) + _MILLISECONDS[rest]


_MILLISECONDS = [f".{rest:03d}Z" for rest in range(1000)]
"""Each create formats a time: this takes half as long as formatting the number."""


_SECONDS = [f"{second:02d}" for second in range(60)]
_MINUTES = [f"T{minute // 60:02d}:{minute % 60:02d}:" for minute in range(24 * 60)]


@lru_cache(maxsize=256)
def _format_second(seconds: int) -> str:
    """Return a time in whole seconds as text, cached because tasks due in the same second mostly follow one another.

    Those of a batch may all be due in seconds of their own: by tables this takes a quarter of the time of `datetime`.
    """
    minutes, second = divmod(seconds, 60)
    days, minute = divmod(minutes, 24 * 60)
    return _format_day(days) + _MINUTES[minute] + _SECONDS[second]


@lru_cache(maxsize=256)
def _format_day(days: int) -> str:
    return datetime.fromtimestamp(days * 86_400, UTC).isoformat()[:10]


class Interval(msgspec.Struct, frozen=True):
    """An interval [low, high], in ms since the Unix epoch, in which the store's time lies."""

    low: int
    high: int


class Clock:
    """The store's time, measured from time to time and advanced by the monotonic clock in between.

    `monotonic` and `wall` return seconds; they are parameters so that tests can pass their own.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._wall = wall
        self._low_ms = 0.0
        self._width_ms = 0.0
        self._measured_at: float | None = None
        self._wall_ahead = 0.0
        self._is_certain = True
        """False if the last answer may be wrong: this machine's clocks moved apart while it came, so that nobody knows
        how old it was, or another server gave it."""
        self.moved_ms = 0
        """How far this clock is ahead of the store's own: 0, but on a store of `later dev`."""

    def wall_ahead(self) -> float:
        """Return by how many seconds this machine's wall clock is ahead of its monotonic one."""
        return self._wall() - self.monotonic()

    def observe(
        self, store_time_us: int, sent_at: float, received_at: float, wall_ahead_then: float | None = None
    ) -> None:
        """Record an answer of the store's TIME (µs since the epoch), and when (monotonic) it was sent and received.

        `wall_ahead_then` is `wall_ahead` from when it was sent. While the machine is suspended, only the wall clock
        goes on: an answer that waited for it to wake up is older than the monotonic clock says.
        """
        wall_ahead = self.wall_ahead()
        asleep_s = 0.0 if wall_ahead_then is None else wall_ahead - wall_ahead_then
        low, took_s = store_time_us / 1000 + self.moved_ms, received_at - sent_at + max(asleep_s, 0.0)
        width = took_s * (1000 + MAX_DRIFT_MS_PER_S) + SLACK_MS
        if not self._is_more_precise(low, width, received_at):
            self._low_ms, self._width_ms, self._measured_at = low, width, received_at
            self._is_certain = abs(asleep_s) <= MAX_WALL_DRIFT_S
        self._wall_ahead = wall_ahead

    def _is_more_precise(self, low: float, width: float, received: float) -> bool:
        """Return True if the known interval is narrower than this answer's and overlaps it.

        Without this, one slow answer from a busy process would delay every claim by as much.
        """
        if self._measured_at is None or not self.is_steady():
            return False
        elapsed = received - self._measured_at
        drift = elapsed * MAX_DRIFT_MS_PER_S
        known_low = self._low_ms + elapsed * 1000 - drift
        known_width = self._width_ms + 2 * drift
        overlaps = known_low <= low + width and low <= known_low + known_width
        return overlaps and known_width < width

    def set_moved(self, moved_ms: int) -> None:
        """Be ahead of the store's own clock by this much from now on."""
        self._low_ms += moved_ms - self.moved_ms
        self.moved_ms = moved_ms

    def distrust(self) -> None:
        """Forget how precisely the time is known: the store is another server now, whose clock may differ."""
        self._is_certain = False

    def is_steady(self) -> bool:
        """Return True if `now` can be trusted: it was measured, and this machine's clocks have agreed since."""
        if self._measured_at is None or not self._is_certain:
            return False
        return abs(self._wall() - self.monotonic() - self._wall_ahead) <= MAX_WALL_DRIFT_S

    def now(self) -> Interval:
        """Return the store's time now.

        Raises:
            StoreDown: it was never measured.
        """
        low, width = self.estimate()
        return Interval(int(low), int(low + width) + 1)

    def estimate(self) -> tuple[float, float]:
        """Return the low end and the width of the interval now, in ms with their fractions. Raises StoreDown."""
        if self._measured_at is None:
            raise StoreDown("the store's clock could not be read yet")
        elapsed = self.monotonic() - self._measured_at
        drift = elapsed * MAX_DRIFT_MS_PER_S
        return self._low_ms + elapsed * 1000 - drift, self._width_ms + 2 * drift

    def ahead_of_wall_s(self) -> float:
        """Return by how many seconds the store's own clock is ahead of this machine's. Raises StoreDown."""
        low, width = self.estimate()
        return (low - self.moved_ms + width / 2) / 1000 - self._wall()


def warn_of_clock(clock: Clock) -> str | None:
    """Return a warning if the store's clock and this machine's disagree so much that signatures may be refused."""
    try:
        ahead_s = clock.ahead_of_wall_s()
    except StoreDown:
        return None
    if abs(ahead_s) <= MAX_CLOCKS_APART_S:
        return None
    direction = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"the store's clock is {abs(ahead_s):.0f} s {direction} this machine's: correct the one that is wrong; "
        "receivers refuse deliveries whose time is five minutes from their own"
    )


class StoreTime:
    """The store's time, measured again if this machine's clocks disagree.

    `measure` asks the store, and has the clock observe its answer. It raises StoreDown.
    """

    def __init__(self, clock: Clock, measure: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self.measure = measure

    async def now(self) -> Interval:
        """Return the store's time.

        Raises:
            StoreDown: the time had to be measured, and the store cannot be reached.
        """
        await self._make_steady()
        return self._clock.now()

    async def low_ms(self) -> float:
        """Return the low end of the store's time in ms, with its fraction. Raises StoreDown, as `now` does."""
        await self._make_steady()
        low, _ = self._clock.estimate()
        return low

    async def _make_steady(self) -> None:
        """Measure the time if it cannot be trusted, and again if the machine was suspended meanwhile."""
        for _ in range(MAX_MEASUREMENTS):
            if self._clock.is_steady():
                return
            await self.measure()
