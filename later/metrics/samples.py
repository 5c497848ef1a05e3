"""Samples: the values of series as processes exchange them, their sums, and the text that Prometheus reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

from later.metrics.instruments import TRACE_ID

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text"

TIMESTAMPS = frozenset({"later_tick_last_success_timestamp_seconds", "process_start_time_seconds"})
"""Metrics that are times: of several processes the earliest counts, where others are summed."""

FURTHEST_FROM_0 = frozenset({"later_store_clock_spread_seconds", "later_store_clock_jump_seconds"})
"""Metrics that every process measures for itself: of several processes the one that is furthest from 0 counts."""


class SampleExemplar(NamedTuple):
    """An observation that stands for others of its bucket: its trace, its value, and its time (Unix, s)."""

    trace_id: str
    value: float
    at_s: float


class MetricSample(NamedTuple):
    """The value of one series: a line of an exposition, in a form that another process can decode."""

    metric: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    value: float
    exemplar: SampleExemplar | None = None


MetricSamples = list[MetricSample]


class Exposition(NamedTuple):
    """All metrics as text, and its content type."""

    text: str
    content_type: str


def sum_samples(*processes: MetricSamples) -> MetricSamples:
    """Sum the samples of several processes, as if one had counted it all. Of exemplars, the latest remains."""
    total: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    exemplars: dict[tuple[str, str, tuple[tuple[str, str], ...]], SampleExemplar] = {}
    for metric, sample, labels, value, exemplar in chain.from_iterable(processes):
        key = (metric, sample, labels)
        if exemplar is not None and (key not in exemplars or exemplars[key].at_s < exemplar.at_s):
            exemplars[key] = exemplar
        before = total.get(key)
        if before is None:
            total[key] = value
        elif metric in FURTHEST_FROM_0:
            total[key] = max(before, value, key=abs)
        else:
            total[key] = min(before, value) if metric in TIMESTAMPS else before + value
    return [MetricSample(*key, value, exemplars.get(key)) for key, value in total.items()]


def encode(collector: Collector, accept: str) -> Exposition:
    """Return all metrics in OpenMetrics if the header `Accept` names it, otherwise in Prometheus' text format."""
    if any(part.split(";")[0].strip().lower() == OPENMETRICS_TYPE for part in accept.split(",")):
        text: bytes = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]  # prometheus_client's
        return Exposition(text.decode(), openmetrics.CONTENT_TYPE_LATEST)
    return Exposition(generate_latest(collector).decode(), TEXT_CONTENT_TYPE)


def samples_of(collector: Collector) -> Iterator[MetricSample]:
    """Yield the samples of all metrics of a collector."""
    for metric in collector.collect():
        for sample in metric.samples:
            labels = tuple(sorted(sample.labels.items()))
            yield MetricSample(metric.name, sample.name, labels, sample.value, _sample_exemplar(sample.exemplar))


class CollectorChain(Collector):
    """The metrics of several collectors, one after the other."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            yield from collector.collect()


class SampleCollector(Collector):
    """Samples as prometheus_client collects them, with the help texts and the order of a registry."""

    def __init__(self, registry: CollectorRegistry, samples: MetricSamples) -> None:
        self._registry = registry
        self._by_metric: dict[str, MetricSamples] = defaultdict(list)
        for sample in samples:
            self._by_metric[sample.metric].append(sample)

    def collect(self) -> Iterator[Metric]:
        for known in self._registry.collect():
            metric = Metric(known.name, known.documentation, known.type)
            for sample in self._by_metric[known.name]:
                metric.add_sample(
                    sample.sample, dict(sample.labels), sample.value, exemplar=_exposed_exemplar(sample.exemplar)
                )
            yield metric


def _exposed_exemplar(exemplar: SampleExemplar | None) -> Exemplar | None:
    """Return an exemplar as prometheus_client has it."""
    return None if exemplar is None else Exemplar({TRACE_ID: exemplar.trace_id}, exemplar.value, exemplar.at_s)


def _sample_exemplar(exemplar: Exemplar | None) -> SampleExemplar | None:
    """Return an exemplar of prometheus_client in the form that another process can decode."""
    if exemplar is None:
        return None
    return SampleExemplar(exemplar.labels[TRACE_ID], exemplar.value, float(exemplar.timestamp or 0))
