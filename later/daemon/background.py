"""What goes on beside requests and deliveries: errands on this process's own clock."""

from __future__ import annotations

import time

from later.metrics import Metrics
from later.worker.ticker import Ticker, TickFunction


def a_ticker(name: str, errand: TickFunction, every_ms: int, metrics: Metrics) -> Ticker:
    """On the monotonic clock: these errands are what brings the store's back."""
    return Ticker(name, errand, now=monotonic_ms, interval_ms=every_ms, count_error=metrics.count_tick_error)


async def monotonic_ms() -> int:
    return int(time.monotonic() * 1000)
