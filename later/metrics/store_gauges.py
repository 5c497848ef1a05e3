"""The gauges of the whole store."""

from __future__ import annotations

import platform
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from later import __version__
from later.metrics.samples import MetricSamples, samples_of


class StoreGauges:
    """Gauges that every process reads alike from the store, so they are taken from one process and never summed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        # The table: metric, help, labels.
        self.build_info = gauge(
            "later_build_info", "1; the versions of later, of Python, and of the store.", ["version", "python", "store"]
        )
        self.topic_permits = gauge(
            "later_topic_permits", "Permits of a topic's concurrency in use, over all instances.", ["topic"]
        )
        self.tasks = gauge("later_tasks", "Tasks by state and topic.", ["state", "topic"])
        self.tasks_due = gauge(
            "later_tasks_due", "Tasks due now and not claimed yet, by what holds them.", ["topic", "held"]
        )
        self.oldest_due_age = gauge(
            "later_oldest_due_age_seconds", "Time since the oldest of them was due.", ["topic", "held"]
        )
        self.topic_count = gauge("later_topics", "Topics that have tasks.")
        self.topics_paused = gauge("later_topics_paused", "Topics that have tasks and are paused.")
        self.workers = gauge("later_workers", "Worker processes with a recent heartbeat.")
        self.remembered_ids = gauge("later_remembered_ids", "Ids of ended tasks that are still remembered.")
        self.memory = gauge("later_store_memory_bytes", "Memory that the store uses.")
        self.memory_max = gauge("later_store_memory_max_bytes", "Memory that the store may use; 0: no limit.")
        self.up = gauge("later_store_up", "1 if the store answered when it was last read.")
        self.shards_away = gauge("later_shards_away", "Shards whose node in the cluster did not answer.")
        self.set_version("")

    def set_version(self, store: str) -> None:
        """Show the name and version of the store; empty if they are not known."""
        self.build_info.clear()
        self.build_info.labels(__version__, platform.python_version(), store).set(1)

    def samples(self) -> dict[str, MetricSamples]:
        """Return the samples by metric; an empty list if a metric has no series."""
        by_metric: dict[str, MetricSamples] = {metric.name: [] for metric in self.registry.collect()}
        for sample in samples_of(self.registry):
            by_metric[sample.metric].append(sample)
        return by_metric
