"""The rate of one key's calls: a token bucket that holds a second's worth."""

from __future__ import annotations

import math


class CallRate:
    """The rest of a rate, in tasks a second, at a time in seconds. A rate below 1 lets one task through at once."""

    __slots__ = ("_at_s", "_left", "_most", "rate")

    def __init__(self, rate: float, at_s: float) -> None:
        self.rate = rate
        self._most = self._left = max(rate, 1.0)
        self._at_s = at_s

    def take(self, tasks: int, at_s: float) -> int:
        """Take tasks and return 0; or, if not so many are left, take none and return in how many seconds there may be.

        More than a second's worth is never there; what is returned is then the time that so many take.
        """
        left = min(self._most, self._left + (at_s - self._at_s) * self.rate)
        self._at_s = at_s
        if tasks <= left:
            self._left = left - tasks
            return 0
        self._left = left
        return max(1, math.ceil((tasks - left) / self.rate))

    def spend(self, tasks: int) -> None:
        """Take tasks that were handed out already, be so many left or not: the next calls wait for them."""
        self._left -= tasks
