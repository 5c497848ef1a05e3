"""The pace of a census: that of very many topics is spread over a time in which the store hardly notices it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

AT_ONCE = 20_000
"""Buckets that are counted as fast as the store answers: those of as many topics, if each has tasks of one state."""
PER_S = 9_000
"""Buckets that are counted each second after these. One takes the store 4 to 5 µs, so all a twentieth of its time."""


class Pace:
    """Lets one census wait, so that it counts no more than `PER_S` after the first `AT_ONCE`."""

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._left_at_once = AT_ONCE
        self._next_s = monotonic()
        """When the next buckets may be counted. What was missed, because the store hung, is not made up for."""

    async def wait(self, buckets: int) -> None:
        """Wait after so many buckets until the next may be counted."""
        self._left_at_once -= buckets
        if self._left_at_once < 0:
            now_s = self._monotonic()
            self._next_s = max(self._next_s + buckets / PER_S, now_s)
            await self._sleep(self._next_s - now_s)
        else:
            self._next_s = self._monotonic()
