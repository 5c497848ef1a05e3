"""Warnings in the log where the clocks of the store's nodes differ."""

from __future__ import annotations

import structlog

log = structlog.get_logger("later.daemon")

WARN_S = 0.1
"""Tasks are late by as much as the clocks differ, so beyond this they should be set right."""
REPEAT_S = 5.0
"""Beyond this it is said again each minute. Creates and claims go on: they are late, but never early."""
REPEAT_EVERY_S = 60.0


class ClockWatch:
    """Logs when the clocks begin to differ, when they agree again, and each minute while they differ by seconds."""

    def __init__(self) -> None:
        self._warned_at: float | None = None
        """When (s, monotonic) it was said that they differ; None while they do not."""

    def check(self, spread_s: float, now_s: float) -> None:
        """Log what is to be said of clocks that differ by `spread_s`, at a monotonic time."""
        if spread_s <= WARN_S:
            if self._warned_at is not None:
                log.info("clocks of the store agree", spread_s=round(spread_s, 3))
            self._warned_at = None
        elif self._warned_at is None or (spread_s > REPEAT_S and now_s - self._warned_at >= REPEAT_EVERY_S):
            log.warning("clocks of the store differ", spread_s=round(spread_s, 3))
            self._warned_at = now_s
