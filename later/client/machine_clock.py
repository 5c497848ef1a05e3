"""The clocks of this machine. The clients of applications read them: no layer above could pass a time."""

from __future__ import annotations

import time

monotonic_s = time.monotonic
wall_s = time.time


def wall_ms() -> int:
    """Return this machine's time in ms since the Unix epoch."""
    return time.time_ns() // 1_000_000
