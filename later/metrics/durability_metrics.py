"""The metrics of writes that wait for a replica or a disk."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from later.metrics.instruments import DurationHistogram
from later.metrics.labels import DURABILITY_LEVELS

_WAIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1, 2.5)


class DurabilityMetrics:
    """The metrics of writes above the level `primary`. A histogram is shown from the first write of its level on."""

    def __init__(self, own: CollectorRegistry) -> None:
        self._missed = Counter(
            "later_durability_missed",
            "Writes that were made, but have not reached the durability that was asked for in time.",
            ["level"],
            registry=own,
        )
        self._duration = DurationHistogram(
            "later_durability_wait_duration_seconds",
            "Time from the store's answer until a write has reached its durability, or was given up.",
            _WAIT_S,
            registry=own,
            label="level",
        )
        for level in DURABILITY_LEVELS:
            self._missed.labels(level)

    def observe(self, level: str, seconds: float, *, is_missed: bool) -> None:
        """Count a wait for a level."""
        self._duration.labels(level).observe(seconds)
        if is_missed:
            self._missed.labels(level).inc()
