"""Every metric that is exported, in one list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

MAX_TOPICS = 200
"""How many topics are labelled by name; the rest are `other`, or a million topics would be a million series."""
OTHER = "other"

STORE_METRICS = frozenset({
    "later_tasks", "later_tasks_due", "later_oldest_due_age_seconds", "later_remembered_ids",
    "later_topic_permits", "later_store_memory_bytes", "later_store_memory_max_bytes", "later_store_up",
})  # fmt: skip
"""Gauges of the whole store: the same from each process, so they are taken from one and never added up."""

_LATENESS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DELIVERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)
_STORE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)


class MetricSample(NamedTuple):
    """What a metric stands at: one line of an exposition, fit for the way from one process to another."""

    metric: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    value: float


MetricSamples = list[MetricSample]


class Metrics:
    """The figures of one process. Counters are its own; gauges of the store are the whole store's."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.tasks_created = Counter("later_tasks_created", "Tasks created.", registry=registry)
        self.tasks_duplicate = Counter("later_tasks_duplicate", "Creates that found their id known.", registry=registry)
        self.tasks_refused = Counter("later_tasks_refused", "Creates that were refused.", registry=registry)
        self.deliveries = Counter(
            "later_deliveries",
            "Deliveries by outcome: done, busy, failed, gone.",
            ["outcome"],
            registry=registry,
        )
        self.claims_throttled = Counter(
            "later_claims_throttled",
            "Claims that found fewer permits of their topic's rate or concurrency than tasks that they wanted.",
            ["topic"],
            registry=registry,
        )
        self.topic_dead = Counter(
            "later_topic_dead", "Tasks that died, by topic and reason.", ["topic", "reason"], registry=registry
        )
        self.delivery_failures = Counter(
            "later_delivery_failures",
            "Deliveries that were not done, by topic and code: the receiver's status, or what else went wrong.",
            ["topic", "code"],
            registry=registry,
        )
        self.topic_permits = Gauge(
            "later_topic_permits", "Permits of a topic's concurrency in use, over all instances.", ["topic"],
            registry=registry,
        )  # fmt: skip
        self._topics: set[str] = set()
        self.retries = Counter("later_retries", "Tasks booked for another try.", registry=registry)
        self.dead = Counter("later_dead", "Tasks that died, by reason.", ["reason"], registry=registry)
        self.dead_removed = Counter(
            "later_dead_removed", "Dead tasks that were kept long enough and forgotten.", registry=registry
        )
        self.tasks_requeued = Counter(
            "later_tasks_requeued", "Tasks moved back to delay, by bucket: unack means a lost lease.", ["bucket"],
            registry=registry,
        )  # fmt: skip
        self.orphan_entries = Counter(
            "later_orphan_entries", "Bucket entries without a task that were removed.", registry=registry
        )
        self.settles_lost = Counter(
            "later_settles_lost", "Deliveries whose settle found another lease, or no store.", registry=registry
        )
        self.lateness = Histogram(
            "later_lateness_seconds", "From a task's due time to the start of its first delivery.",
            buckets=_LATENESS_S, registry=registry,
        )  # fmt: skip
        self.delivery_duration = Histogram(
            "later_delivery_duration_seconds", "From a delivery's start to its outcome.", buckets=_DELIVERY_S,
            registry=registry,
        )  # fmt: skip
        self.delivery_slots_in_use = Gauge("later_delivery_slots_in_use", "Deliveries under way.", registry=registry)
        self.delivery_slots = Gauge("later_delivery_slots", "Deliveries that may be under way.", registry=registry)
        self.pending_writes = Gauge(
            "later_pending_writes", "Tasks of requests that wait for the store.", registry=registry
        )
        self.tick_errors = Counter("later_tick_errors", "Ticks that failed, by ticker.", ["ticker"], registry=registry)
        self.store_round_trips = Histogram(
            "later_store_round_trip_duration_seconds",
            "Round trips to the store, by verb.",
            ["verb"],
            buckets=_STORE_S,
            registry=registry,
        )
        self._store_calls_of: dict[str, Callable[[float], None]] = {}
        self.tasks = Gauge("later_tasks", "Tasks by state and topic.", ["state", "topic"], registry=registry)
        self.tasks_due = Gauge("later_tasks_due", "Tasks due now and not claimed yet.", ["topic"], registry=registry)
        self.oldest_due_age = Gauge(
            "later_oldest_due_age_seconds",
            "How late the most overdue of them is.",
            ["topic"],
            registry=registry,
        )
        self.remembered_ids = Gauge("later_remembered_ids", "Ids of ended tasks still remembered.", registry=registry)
        self.store_memory = Gauge("later_store_memory_bytes", "Memory that the store uses.", registry=registry)
        self.store_memory_max = Gauge(
            "later_store_memory_max_bytes", "Memory that the store may use; 0: no limit.", registry=registry
        )
        self.store_up = Gauge("later_store_up", "1 if the store answered the last look.", registry=registry)
        self.processes = Gauge("later_processes", "Processes that there should be.", registry=registry)
        self.processes_up = Gauge("later_processes_up", "Processes that are up.", registry=registry)
        self.process_deaths = Counter(
            "later_process_deaths", "Processes that ended although nobody asked them to.", registry=registry
        )

    def observe_round_trip(self, verb: str, seconds: float) -> None:
        observe = self._store_calls_of.get(verb)
        if observe is None:
            observe = self._store_calls_of[verb] = self.store_round_trips.labels(verb).observe
        observe(seconds)

    def count_throttled(self, topic: str) -> None:
        self.claims_throttled.labels(self._label(topic)).inc()

    def count_dead(self, topic: str, reason: str) -> None:
        self.dead.labels(reason).inc()
        self.topic_dead.labels(self._label(topic), reason).inc()

    def count_delivery_failure(self, topic: str, code: str) -> None:
        self.delivery_failures.labels(self._label(topic), code).inc()

    def _label(self, topic: str) -> str:
        """The topic's name for as many as there is room for."""
        if topic not in self._topics:
            if len(self._topics) >= MAX_TOPICS:
                return OTHER
            self._topics.add(topic)
        return topic

    def count_tick_error(self, ticker: str) -> None:
        self.tick_errors.labels(ticker).inc()

    def exposition(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)

    def process_samples(self) -> MetricSamples:
        """What this process has counted and holds."""
        return [figure for figure in self._all() if figure.metric not in STORE_METRICS]

    def store_samples(self) -> dict[str, MetricSamples]:
        """By metric: one without a figure is one that there is nothing to say about."""
        seen: dict[str, MetricSamples] = {metric: [] for metric in STORE_METRICS}
        for figure in self._all():
            if figure.metric in seen:
                seen[figure.metric].append(figure)
        return seen

    def counters_only(self, figures: MetricSamples) -> MetricSamples:
        """What stays true of a process that is no more: what it counted, not what it held."""
        gauges = {metric.name for metric in self.registry.collect() if metric.type == "gauge"}
        return [figure for figure in figures if figure.metric not in gauges]

    def render(self, figures: MetricSamples) -> bytes:
        """These, and no others, in Prometheus' text format."""
        return generate_latest(_Collected(self.registry, figures))

    def _all(self) -> Iterator[MetricSample]:
        for metric in self.registry.collect():
            for sample in metric.samples:
                yield MetricSample(metric.name, sample.name, tuple(sorted(sample.labels.items())), sample.value)


def sum_samples(*processes: MetricSamples) -> MetricSamples:
    """The figures of several processes as if one had done it all; it was there since the first of them was."""
    total: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    for metric, sample, labels, value in chain.from_iterable(processes):
        key = (metric, sample, labels)
        before = total.get(key)
        if before is None:
            total[key] = value
        else:
            total[key] = min(before, value) if sample == f"{metric}_created" else before + value
    return [MetricSample(*key, value) for key, value in total.items()]


class _Collected(Collector):
    """Figures as Prometheus' library takes them, with the words and the order of a registry."""

    def __init__(self, registry: CollectorRegistry, figures: MetricSamples) -> None:
        self._registry = registry
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        by_metric: dict[str, MetricSamples] = defaultdict(list)
        for figure in self._figures:
            by_metric[figure.metric].append(figure)
        for known in self._registry.collect():
            metric = Metric(known.name, known.documentation, known.type)
            for figure in by_metric[known.name]:
                metric.add_sample(figure.sample, dict(figure.labels), figure.value)
            yield metric
