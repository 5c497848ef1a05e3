"""The metrics of schedules: their firings, and how late these were."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from later.metrics.instruments import DurationHistogram
from later.metrics.labels import FIRING_RESULTS

_LATENESS_S = (0.1, 0.5, 1, 5, 60, 600, 3600)


class FiringMetrics:
    """The metrics of the firings of schedules."""

    def __init__(self, own: CollectorRegistry) -> None:
        self._firings = Counter(
            "later_firings",
            "Firings of schedules, by result: a task was created, or it was refused.",
            ["result"],
            registry=own,
        )
        self._lateness = DurationHistogram(
            "later_firing_lateness_seconds",
            "Time from a schedule's time to the creation of its task.",
            _LATENESS_S,
            registry=own,
        ).labels()
        for result in FIRING_RESULTS:
            self._firings.labels(result)

    def count_created(self, late_ms: int) -> None:
        """Count a firing whose task was created so many ms after its time."""
        self._firings.labels("created").inc()
        self._lateness.observe(late_ms / 1000)

    def count_refused(self, count: int) -> None:
        self._firings.labels("refused").inc(count)
