"""Every metric that is exported, in one table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

MAX_TOPICS = 200
"""Topics with a label of their own. The rest share the label `other`: a million topics would be a million series."""
OTHER = "other"

STORE_METRICS = frozenset({
    "later_tasks", "later_tasks_due", "later_oldest_due_age_seconds", "later_remembered_ids",
    "later_topic_permits", "later_store_memory_bytes", "later_store_memory_max_bytes", "later_store_up",
})  # fmt: skip
"""Gauges of the whole store: every process reads the same, so they are taken from one process and never summed."""

_LATENESS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DELIVERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)
_STORE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)


class MetricSample(NamedTuple):
    """The value of one series: a line of an exposition, in a form that another process can decode."""

    metric: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    value: float


MetricSamples = list[MetricSample]


class Metrics:
    """The metrics of one process: its own counters, and gauges of the whole store."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        # fmt: off
        # The table, in the order of the exposition: metric, help, labels, buckets.
        self.tasks_created = counter("later_tasks_created", "Tasks created.")
        self.tasks_duplicate = counter("later_tasks_duplicate", "Creates whose id was known already.")
        self.tasks_refused = counter("later_tasks_refused", "Creates that were refused.")
        self.deliveries = counter("later_deliveries", "Deliveries by outcome: done, busy, failed, gone.", ["outcome"])
        self.claims_throttled = counter(
            "later_claims_throttled",
            "Claims that got fewer permits of their topic's rate or concurrency than they wanted.",
            ["topic"],
        )
        self.topic_dead = counter("later_topic_dead", "Tasks that died, by topic and reason.", ["topic", "reason"])
        self.delivery_failures = counter(
            "later_delivery_failures",
            "Deliveries that were not done, by topic and code: the receiver's status, or another cause.",
            ["topic", "code"],
        )
        self.topic_permits = gauge(
            "later_topic_permits", "Permits of a topic's concurrency in use, over all instances.", ["topic"]
        )
        self.delivery_faults = counter(
            "later_delivery_faults", "Deliveries that failed by a fault of later's own, and cost no retry."
        )
        self.retries = counter("later_retries", "Tasks scheduled for another attempt.")
        self.dead = counter("later_dead", "Tasks that died, by reason.", ["reason"])
        self.dead_removed = counter("later_dead_removed", "Dead tasks removed after their dead_keep.")
        self.tasks_requeued = counter(
            "later_tasks_requeued",
            "Tasks moved back to delay, by bucket: from unack when a lease was lost.",
            ["bucket"],
        )
        self.orphan_entries = counter("later_orphan_entries", "Bucket entries without a task that were removed.")
        self.settles_lost = counter("later_settles_lost", "Deliveries whose settle found another lease, or no store.")
        self.lateness = histogram(
            "later_lateness_seconds",
            "Time from when a task is due to the start of its first delivery.",
            buckets=_LATENESS_S,
        )
        self.delivery_duration = histogram(
            "later_delivery_duration_seconds", "Time from a delivery's start to its outcome.", buckets=_DELIVERY_S
        )
        self.delivery_slots_in_use = gauge("later_delivery_slots_in_use", "Deliveries in flight.")
        self.delivery_slots = gauge("later_delivery_slots", "Deliveries that may be in flight.")
        self.pending_writes = gauge("later_pending_writes", "Tasks of requests that wait for the store.")
        self.tick_errors = counter("later_tick_errors", "Ticks that failed, by ticker.", ["ticker"])
        self.store_round_trips = histogram(
            "later_store_round_trip_duration_seconds",
            "Time of round trips to the store, by verb.",
            ["verb"], buckets=_STORE_S,
        )
        self.tasks = gauge("later_tasks", "Tasks by state and topic.", ["state", "topic"])
        self.tasks_due = gauge("later_tasks_due", "Tasks due now and not claimed yet.", ["topic"])
        self.oldest_due_age = gauge("later_oldest_due_age_seconds", "Time since the oldest of them was due.", ["topic"])
        self.remembered_ids = gauge("later_remembered_ids", "Ids of ended tasks that are still remembered.")
        self.store_memory = gauge("later_store_memory_bytes", "Memory that the store uses.")
        self.store_memory_max = gauge("later_store_memory_max_bytes", "Memory that the store may use; 0: no limit.")
        self.store_up = gauge("later_store_up", "1 if the store answered when it was last read.")
        self.processes = gauge("later_processes", "Processes configured.")
        self.processes_up = gauge("later_processes_up", "Processes that are up.")
        self.process_deaths = counter("later_process_deaths", "Processes that exited unasked.")
        # fmt: on
        self._topics: set[str] = set()

    def round_trip_observer(self, verb: str) -> Callable[[float], None]:
        """Return an observer of the round trips of a verb; it takes the seconds of each."""
        return self.store_round_trips.labels(verb).observe

    def count_throttled(self, topic: str) -> None:
        self.claims_throttled.labels(self._topic_label(topic)).inc()

    def count_dead(self, topic: str, reason: str) -> None:
        self.dead.labels(reason).inc()
        self.topic_dead.labels(self._topic_label(topic), reason).inc()

    def count_delivery_failure(self, topic: str, code: str) -> None:
        self.delivery_failures.labels(self._topic_label(topic), code).inc()

    def _topic_label(self, topic: str) -> str:
        """Return the topic's name for the first `MAX_TOPICS` topics, otherwise `other`."""
        if topic not in self._topics:
            if len(self._topics) >= MAX_TOPICS:
                return OTHER
            self._topics.add(topic)
        return topic

    def count_tick_error(self, ticker: str) -> None:
        self.tick_errors.labels(ticker).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def process_samples(self) -> MetricSamples:
        """Return the samples of this process: what it has counted, and what it holds now."""
        return [sample for sample in self._samples() if sample.metric not in STORE_METRICS]

    def store_samples(self) -> dict[str, MetricSamples]:
        """Return the samples of the store's gauges, by metric; an empty list if a metric has no series."""
        by_metric: dict[str, MetricSamples] = {metric: [] for metric in STORE_METRICS}
        for sample in self._samples():
            if sample.metric in by_metric:
                by_metric[sample.metric].append(sample)
        return by_metric

    def counters_only(self, samples: MetricSamples) -> MetricSamples:
        """Return the samples that stay true of a process that exited: what it counted, not what it held."""
        gauges = {metric.name for metric in self.registry.collect() if metric.type == "gauge"}
        return [sample for sample in samples if sample.metric not in gauges]

    def render(self, samples: MetricSamples) -> bytes:
        """Return these samples, and no others, in Prometheus' text format."""
        return generate_latest(_SampleCollector(self.registry, samples))

    def _samples(self) -> Iterator[MetricSample]:
        for metric in self.registry.collect():
            for sample in metric.samples:
                yield MetricSample(metric.name, sample.name, tuple(sorted(sample.labels.items())), sample.value)


def sum_samples(*processes: MetricSamples) -> MetricSamples:
    """Sum the samples of several processes as if one had counted it all, since the first of them started."""
    total: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    for metric, sample, labels, value in chain.from_iterable(processes):
        key = (metric, sample, labels)
        before = total.get(key)
        if before is None:
            total[key] = value
        else:
            total[key] = min(before, value) if sample == f"{metric}_created" else before + value
    return [MetricSample(*key, value) for key, value in total.items()]


class _SampleCollector(Collector):
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
                metric.add_sample(sample.sample, dict(sample.labels), sample.value)
            yield metric
