"""Delays between restarts of a process that keeps exiting."""

from __future__ import annotations

from collections.abc import Sequence

RESTART_DELAYS_S = (1, 2, 4, 8, 16, 32, 60)
"""Delay before the first, second … restart in a row; the last one repeats."""
STABLE_MS = 60_000
"""A process that ran this long starts over with the first delay."""


class RestartBackoff:
    """The delay before the next restart of one process, which grows with each exit in a row."""

    def __init__(self, delays_s: Sequence[int] = RESTART_DELAYS_S) -> None:
        self._delays_s = delays_s
        self._exits = 0

    def next_delay_ms(self, uptime_ms: int) -> int:
        """Return the delay after an exit of a process that ran for `uptime_ms`, and count that exit."""
        if uptime_ms >= STABLE_MS:
            self._exits = 0
        delay_s = self._delays_s[min(self._exits, len(self._delays_s) - 1)]
        self._exits += 1
        return delay_s * 1000
