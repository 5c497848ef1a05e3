"""A move of the clock of `later dev`, and what it came to."""

from __future__ import annotations

from typing import NamedTuple

from later.core.clock import rfc3339
from later.core.errors import Refused

LATEST_MS = 4_102_444_800_000
"""The year 2100, which a move does not reach: a task of then may still be ten years ahead, and be shown."""


class ClockMove(NamedTuple):
    """Where the clock is to be moved: on by `by_ms`, or, if that is None, to `to_ms`.

    With `settle_ms`, what is due then is tried first, for so long at most. With `is_stepwise`, the clock stops at each
    time on the way at which something is due, until that has been tried.
    """

    by_ms: int | None
    to_ms: int | None
    settle_ms: int | None = None
    is_stepwise: bool = False

    def target_ms(self, now: int) -> int:
        """Return the time (ms) to which a clock is moved that shows `now`.

        Raises:
            Refused: it is in the past, or too far ahead.
        """
        if self.by_ms is not None:
            field, target = "advance", now + self.by_ms
        else:
            assert self.to_ms is not None  # a move has one of both
            field, target = "to", self.to_ms
        if target < now:
            raise Refused(f"{field}: the clock moves only forward, and it is {rfc3339(now)} already", field)
        if target >= LATEST_MS:
            raise Refused(f"{field}: expected a time before 2100-01-01T00:00:00Z", field)
        return target


class ClockState(NamedTuple):
    """The time (ms) that the clock shows after a move to `target_ms`.

    `is_settled` is True if nothing that is due by then is left to be tried, False if that took too long, and None if
    the move did not wait for it.
    """

    now: int
    target_ms: int
    is_settled: bool | None = None
