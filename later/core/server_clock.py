"""The clock of one server of the store, as it was measured last."""

from __future__ import annotations

from copy import copy

SLACK_MS = 0.1
"""Added to the high end, because the store cuts its answer to whole microseconds and clocks tick unevenly.

A task that is due at once waits for the whole interval, so it is worth keeping this small: it is a hundred times what
the store cuts off.
"""

MAX_WALL_DRIFT_S = 0.05
"""If wall and monotonic time move apart by more than this, the machine was suspended or its clock was set."""

MAX_DRIFT_MS_PER_S = 1
"""Drift of a monotonic clock against the store's: twice the 500 ppm that NTP slews at most."""


class ServerClock:
    """The time of one server, known as an interval that is advanced by this machine's monotonic clock.

    Times of this machine are in s, those of the server in ms since the Unix epoch.
    """

    def __init__(self) -> None:
        self._low_ms = 0.0
        self._width_ms = 0.0
        self._measured_at: float | None = None
        self._wall_ahead = 0.0
        self.is_certain = True
        """False if the last answer may be wrong: this machine's clocks moved apart while it came, so that nobody knows
        how old it was, or another server gave it."""

    def observe(
        self, low: float, sent_at: float, received_at: float, wall_ahead: float, wall_ahead_then: float | None
    ) -> None:
        """Record the time of an answer, and by how much the wall clock is ahead now, and was when it was asked for.

        `wall_ahead_then` is None if that is not known.
        """
        asleep_s = 0.0 if wall_ahead_then is None else wall_ahead - wall_ahead_then
        took_s = received_at - sent_at + max(asleep_s, 0.0)
        width = took_s * (1000 + MAX_DRIFT_MS_PER_S) + SLACK_MS
        if not self._is_more_precise(low, width, received_at, wall_ahead):
            self._low_ms, self._width_ms, self._measured_at = low, width, received_at
            self.is_certain = abs(asleep_s) <= MAX_WALL_DRIFT_S
        self._wall_ahead = wall_ahead

    def _is_more_precise(self, low: float, width: float, received_at: float, wall_ahead: float) -> bool:
        """Return True if the known interval is narrower than this answer's and overlaps it.

        Without this, one slow answer from a busy process would delay every claim by as much.
        """
        if not self.is_steady(wall_ahead):
            return False
        known_low, known_width = self.estimate(received_at)
        overlaps = known_low <= low + width and low <= known_low + known_width
        return overlaps and known_width < width

    def is_steady(self, wall_ahead: float) -> bool:
        """Return True if the estimate can be trusted, now that the wall clock is ahead by so much."""
        if self._measured_at is None or not self.is_certain:
            return False
        return abs(wall_ahead - self._wall_ahead) <= MAX_WALL_DRIFT_S

    def estimate(self, at: float) -> tuple[float, float]:
        """Return the low end and the width of the interval at a monotonic time. It must have been measured."""
        assert self._measured_at is not None
        elapsed = at - self._measured_at
        drift = elapsed * MAX_DRIFT_MS_PER_S
        return self._low_ms + elapsed * 1000 - drift, self._width_ms + 2 * drift

    def middle(self, at: float) -> float:
        """Return the middle of the interval at a monotonic time. It must have been measured."""
        low, width = self.estimate(at)
        return low + width / 2

    def move(self, by_ms: int) -> None:
        """Let the time be later by this much."""
        self._low_ms += by_ms

    def copy(self) -> ServerClock:
        return copy(self)
