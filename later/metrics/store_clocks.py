"""How far the clocks of the store's servers differ, as this process has measured them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class StoreClockMetrics:
    """The difference of the clocks of several nodes, and that of a new primary's clock from the one before."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.spread = Gauge(
            "later_store_clock_spread_seconds",
            "How far the clocks of the store's nodes differ at most; 0 with one server.",
            registry=registry,
        )
        self.jump = Gauge(
            "later_store_clock_jump_seconds",
            "How far the store's clock was ahead after the last failover of that before it.",
            registry=registry,
        )
