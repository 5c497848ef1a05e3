"""Every metric that is exported, in one list."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MAX_TOPICS = 200
"""How many topics are labelled by name; the rest are `other`, or a million topics would be a million series."""
OTHER = "other"

_LATENESS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DELIVERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)
_STORE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)


class Metrics:
    """The figures of one process. Counters are its own; gauges of the store are the whole store's."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.created = Counter("later_tasks_created", "Tasks created.", registry=registry)
        self.existing = Counter("later_tasks_existing", "Creates that found their id known.", registry=registry)
        self.refused = Counter("later_tasks_refused", "Creates that were refused.", registry=registry)
        self.deliveries = Counter(
            "later_deliveries",
            "Deliveries by outcome: done, busy, failed, gone.",
            ["outcome"],
            registry=registry,
        )
        self.retries = Counter("later_retries", "Tasks booked for another try.", registry=registry)
        self.dead = Counter("later_dead", "Tasks that died, by reason.", ["reason"], registry=registry)
        self.released = Counter(
            "later_released", "Tasks moved back to delay, by bucket: unack means a lost lease.", ["bucket"],
            registry=registry,
        )  # fmt: skip
        self.strays = Counter("later_strays", "Bucket entries without a task that were removed.", registry=registry)
        self.unsettled = Counter(
            "later_unsettled", "Deliveries whose settle found another lease, or no store.", registry=registry
        )
        self.lateness = Histogram(
            "later_lateness_seconds", "From a task's due time to the start of its first delivery.",
            buckets=_LATENESS_S, registry=registry,
        )  # fmt: skip
        self.delivery_time = Histogram(
            "later_delivery_seconds", "From a delivery's start to its outcome.", buckets=_DELIVERY_S,
            registry=registry,
        )  # fmt: skip
        self.hands_busy = Gauge("later_hands_busy", "Deliveries under way.", registry=registry)
        self.hands = Gauge("later_hands", "Deliveries that may be under way.", registry=registry)
        self.waiting = Gauge("later_waiting_for_store", "Tasks of requests that wait for the store.", registry=registry)
        self.tick_errors = Counter("later_tick_errors", "Ticks that failed, by ticker.", ["ticker"], registry=registry)
        self.store_calls = Histogram(
            "later_store_seconds",
            "Round trips to the store, by verb.",
            ["verb"],
            buckets=_STORE_S,
            registry=registry,
        )
        self.tasks = Gauge("later_tasks", "Tasks by state and topic.", ["state", "topic"], registry=registry)
        self.backlog = Gauge("later_backlog_due", "Tasks due now and not claimed yet.", ["topic"], registry=registry)
        self.backlog_age = Gauge(
            "later_backlog_oldest_seconds",
            "How late the most overdue of them is.",
            ["topic"],
            registry=registry,
        )
        self.remembered = Gauge("later_remembered_ids", "Ids of ended tasks still remembered.", registry=registry)
        self.store_memory = Gauge("later_store_memory_bytes", "Memory that the store uses.", registry=registry)
        self.store_memory_max = Gauge(
            "later_store_memory_max_bytes", "Memory that the store may use; 0: no limit.", registry=registry
        )
        self.store_up = Gauge("later_store_up", "1 if the store answered the last look.", registry=registry)

    def observe_store(self, verb: str, seconds: float) -> None:
        self.store_calls.labels(verb).observe(seconds)

    def count_tick_error(self, ticker: str) -> None:
        self.tick_errors.labels(ticker).inc()

    def exposition(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)
