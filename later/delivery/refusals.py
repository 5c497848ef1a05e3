"""The report of the calls that the address guard refused: a metric, and a line in the log."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from later.core.address_guard import Refusal

log = structlog.get_logger("later.deliveries")

LOG_EVERY_MS = 60_000
"""How often a host is logged: a task that is refused is tried again and again."""
MAX_HOSTS = 1000
"""How many hosts are logged in that time. Any caller may make up any number of names."""


class RefusalReport:
    """Counts refusals with `count`, which takes the cause, and logs each host once in `LOG_EVERY_MS`."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._logged_at: dict[str, int] = {}
        """The hosts that were logged in the last `LOG_EVERY_MS`, and when (ms), the earliest first."""

    def add(self, host: str, refusal: Refusal, now: int) -> None:
        """Report a call to `host` that was refused at `now` (ms)."""
        self._count(refusal.why)
        while self._logged_at and now - next(iter(self._logged_at.values())) >= LOG_EVERY_MS:
            del self._logged_at[next(iter(self._logged_at))]
        if host in self._logged_at or len(self._logged_at) >= MAX_HOSTS:
            return
        self._logged_at[host] = now
        fields = {"address": refusal.address, "why": refusal.why, "allow": refusal.allow_option}
        log.warning("callback refused", host=host, **{name: text for name, text in fields.items() if text})
