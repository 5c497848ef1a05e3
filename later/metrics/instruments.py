"""Counters and histograms for what happens often.

They hold plain numbers: those of prometheus_client take a lock or two each time, at ten times the cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

TRACE_ID = "trace_id"
"""The label of exemplars."""


class PlainCounter(Collector):
    """A counter without labels."""

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self.count = 0
        registry.register(self)

    def inc(self, count: int = 1) -> None:
        self.count += count

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._documentation, value=self.count)


class Durations:
    """One series of a histogram."""

    __slots__ = ("bounds_s", "by_bucket", "exemplars", "total_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.by_bucket = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The last traced observation of each bucket that has one."""

    def observe(self, seconds: float) -> None:
        self.total_s += seconds
        self.by_bucket[bisect_left(self.bounds_s, seconds)] += 1

    def add_exemplar(self, seconds: float, trace_id: str, at_s: float) -> None:
        """Name the trace of what was observed at `at_s` (Unix time) as the example of its bucket."""
        bucket = bisect_left(self.bounds_s, seconds)
        self.exemplars[bucket] = Exemplar({TRACE_ID: trace_id}, seconds, at_s)


class DurationHistogram(Collector):
    """A histogram of durations, with a series for each value of `label`, or with one series without labels."""

    def __init__(
        self, name: str, documentation: str, bounds_s: Sequence[float], *, registry: CollectorRegistry, label: str = ""
    ) -> None:
        self._name = name
        self._documentation = documentation
        self.bounds_s = bounds_s
        self._labels = [label] if label else []
        self._series: dict[str, Durations] = {}
        registry.register(self)

    def labels(self, value: str = "") -> Durations:
        """Return the series with this value of the label. It is shown from now on."""
        return self._series.setdefault(value, Durations(self.bounds_s))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        bounds = [*(str(float(bound_s)) for bound_s in self.bounds_s), "+Inf"]
        for value, durations in self._series.items():
            counts, exemplars = accumulate(durations.by_bucket), durations.exemplars
            buckets = [
                (bound, count, exemplars[bucket]) if bucket in exemplars else (bound, count)
                for bucket, (bound, count) in enumerate(zip(bounds, counts, strict=True))
            ]
            family.add_metric([value] if self._labels else [], buckets, durations.total_s)
        yield family
