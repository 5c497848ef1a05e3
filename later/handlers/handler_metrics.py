"""Metrics of handlers in the process of an application, for Prometheus. Only this needs prometheus_client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from importlib import import_module
from typing import Any

from later.core.retry import Outcome, OutcomeKind
from later.handlers.runner import FunctionRunner
from later.handlers.task import Task

CANCELLED = "cancelled"
"""The outcome of a run that has none: a stop has cancelled it, or its lease was lost."""
OUTCOMES = (*(str(kind) for kind in OutcomeKind), CANCELLED)
DURATION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
LATE_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400)


class HandlerMetrics:
    """The metrics of handlers, in a registry of prometheus_client: by default in the one that its exporters show.

    The series of `topics` are there from the start, so that the first event of each counts.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed.
        ValueError: the registry has these metrics already.
    """

    def __init__(self, registry: Any, topics: Iterable[str]) -> None:
        prometheus = _import_prometheus_client()
        shown = {"registry": prometheus.REGISTRY if registry is None else registry}
        self._runs = prometheus.Counter(
            "later_handler_runs_total", "Runs of handlers that have ended.", ["topic", "outcome"], **shown
        )
        self._durations = prometheus.Histogram(
            "later_handler_duration_seconds", "How long runs took.", ["topic"], buckets=DURATION_BOUNDS_S, **shown
        )
        self._running = prometheus.Gauge(
            "later_handler_running", "Runs of handlers now.", ["topic"], multiprocess_mode="livesum", **shown
        )
        self._late = prometheus.Histogram(
            "later_handler_late_seconds",
            "How long after their due times first attempts began.",
            ["topic"],
            buckets=LATE_BOUNDS_S,
            **shown,
        )
        for topic in topics:
            self.add_topic(topic)

    def add_topic(self, topic: str) -> None:
        """Show the series of a topic, at 0."""
        for outcome in OUTCOMES:
            self._runs.labels(topic, outcome)
        for metric in (self._durations, self._running, self._late):
            metric.labels(topic)

    async def measure(self, task: Task[Any], attempt: Awaitable[Outcome], runner: FunctionRunner) -> Outcome:
        """Wait for an attempt that begins now, and return its outcome. In a thread, its run may end later.

        Raises:
            BaseException: the attempt raised it.
        """
        topic, outcome, began = task.topic, CANCELLED, time.monotonic()
        if task.attempt == 1:
            self._late.labels(topic).observe(max(time.time() - task.due_at.timestamp(), 0))
        self._running.labels(topic).inc()
        try:
            result = await attempt
            outcome = str(result.kind)
            return result
        finally:
            self._runs.labels(topic, outcome).inc()
            self._durations.labels(topic).observe(time.monotonic() - began)
            runner.when_ended(self._running.labels(topic).dec)


def _import_prometheus_client() -> Any:
    try:
        return import_module("prometheus_client")
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise ModuleNotFoundError("metrics need prometheus_client: pip install prometheus_client") from None
