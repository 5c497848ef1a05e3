"""How soon a process that died is started again."""

from __future__ import annotations

STEADY_MS = 60_000
"""A process that lived this long starts over: its death is a first one."""
LONGEST_S = 60


class RestartBackoff:
    """For one process: no pause at first, then 1, 2, 4 … 60 s while it dies soon after each start."""

    def __init__(self) -> None:
        self._deaths = 0  # in a row

    def delay_after(self, lived_ms: int) -> int:
        """The pause in ms after a death at this age."""
        if lived_ms >= STEADY_MS:
            self._deaths = 0
        pause_s = min(1 << min(self._deaths, 7) >> 1, LONGEST_S)  # 0, 1, 2, 4 …
        self._deaths += 1
        return pause_s * 1000
