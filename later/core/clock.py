"""What a clock is here: the store's time, known as an interval.

Every score in the store is a time of the store's own clock, so that any number of machines agree on what
is due. A process learns that time by asking, and the answer is as old as its way back: all that is known is
an interval. Whoever moves tasks uses its low end, whoever books them its high end; so nothing is ever early.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from later.core.errors import StoreDown

SLACK_MS = 1
"""Added to the high end: the answer is cut to whole units, and clocks tick unevenly."""

MAX_WALL_DRIFT_S = 0.05
"""Wall and monotonic time moving apart by more than this: a suspended machine or a clock that was set."""

MAX_DRIFT_MS_PER_S = 1
"""How far a monotonic clock and the store's may drift apart: twice the 500 ppm that NTP slews at most."""


def rfc3339(ms: int) -> str:
    """A time in ms since the Unix epoch as `2017-09-09T05:17:10.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{_format_second(seconds)}.{rest:03d}Z"


@lru_cache(maxsize=256)
def _format_second(seconds: int) -> str:
    """What is due in the same second is mostly said one after the other."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


class Interval(msgspec.Struct, frozen=True):
    """The store's time lies in [low, high], in ms since the Unix epoch."""

    low: int
    high: int


class Clock:
    """The store's time, measured now and then and moved on by the monotonic clock in between.

    `monotonic` and `wall` give seconds; they are parameters so that tests bring their own.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._wall = wall
        self._low_ms = 0.0
        self._width_ms = 0.0
        self._measured_at: float | None = None
        self._wall_ahead = 0.0

    def observe(self, store_time_us: int, sent_at: float, received_at: float) -> None:
        """Take in an answer of the store's TIME: µs since the epoch, and when (monotonic) it was asked and got."""
        low = store_time_us / 1000
        width = (received_at - sent_at) * 1000 + SLACK_MS
        if not self._knows_better(low, width, received_at):
            self._low_ms, self._width_ms, self._measured_at = low, width, received_at
        self._wall_ahead = self._wall() - self.monotonic()

    def _knows_better(self, low: float, width: float, received: float) -> bool:
        """Is what is known still narrower than this answer, and at one with it?

        Without this, one slow answer from a busy process would make every claim as late as it was slow.
        """
        if self._measured_at is None or not self.is_steady():
            return False
        elapsed = received - self._measured_at
        drift = elapsed * MAX_DRIFT_MS_PER_S
        known_low = self._low_ms + elapsed * 1000 - drift
        known_width = self._width_ms + 2 * drift
        overlaps = known_low <= low + width and low <= known_low + known_width
        return overlaps and known_width < width

    def is_steady(self) -> bool:
        """May `now` be trusted? Not before the first measurement, nor once this machine's clocks disagree."""
        if self._measured_at is None:
            return False
        return abs(self._wall() - self.monotonic() - self._wall_ahead) <= MAX_WALL_DRIFT_S

    def now(self) -> Interval:
        """The store's time now.

        Raises:
            StoreDown: it was never measured.
        """
        low, width = self._estimate()
        return Interval(int(low), int(low + width) + 1)

    def low_ms(self) -> float:
        """The low end of the store's time now, with its fraction. Raises StoreDown, as above."""
        return self._estimate()[0]

    def _estimate(self) -> tuple[float, float]:
        if self._measured_at is None:
            raise StoreDown("the store's clock could not be read yet")
        elapsed = self.monotonic() - self._measured_at
        drift = elapsed * MAX_DRIFT_MS_PER_S
        return self._low_ms + elapsed * 1000 - drift, self._width_ms + 2 * drift
