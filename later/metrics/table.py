"""The table of a process's metrics: names, help texts, labels, buckets."""

from __future__ import annotations

from collections import Counter as TopicCounts
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)

from later.metrics.consumers import ConsumerMetrics
from later.metrics.durability_metrics import DurabilityMetrics
from later.metrics.firings import FiringMetrics
from later.metrics.http_requests import RequestMetrics
from later.metrics.instruments import DurationHistogram, PlainCounter
from later.metrics.labels import (
    DEATH_REASONS,
    DENIAL_REASONS,
    EVENT_TYPES,
    FAILURE_CODES,
    FOLLOW_UP_FIELDS,
    HELD,
    OUTCOMES,
    PULLED,
    REFUSAL_CAUSES,
    REQUEUED_FROM,
    failure_code,
)
from later.metrics.samples import CollectorChain, Exposition, MetricSamples, SampleCollector, encode, samples_of
from later.metrics.store_clocks import StoreClockMetrics
from later.metrics.store_gauges import StoreGauges
from later.metrics.topic_activity import TopicActivity
from later.metrics.topic_labels import TopicCounter, TopicLabels, TotalCounter

disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client's; each counter would be two series

TOPIC_COUNTERS = frozenset({
    "later_topic_deliveries", "later_claims_throttled", "later_tasks_put_back", "later_topic_dead",
    "later_delivery_failures", "later_claimed",
})  # fmt: skip
"""Counters with the label `topic`, by the names of their families."""

_LATENESS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(60, 120, 300, 600, 900, 1800, 3600),
)  # fmt: skip
_DELIVERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)
_STORE_S = (0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1)
_LOOP_LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """The metrics of one process: its own counters, and gauges of the whole store."""

    on_death: Callable[[str, str, str], None] | None = None
    """Called with the topic, the reason and the id of each task that died."""

    def __init__(self) -> None:
        self._own = own = CollectorRegistry()
        self._by_topic = CollectorRegistry()
        self.store, self.topics, self._hangs = StoreGauges(), TopicLabels(), dict[str, Callable[[float], bool]]()
        self.registry = CollectorRegistry()
        self.registry.register(CollectorChain([self.store.registry, self._by_topic, own]))
        counter = partial(PlainCounter, registry=own)
        labelled_counter = partial(Counter, registry=own)
        gauge = partial(Gauge, registry=own)
        histogram = partial(DurationHistogram, registry=own)
        topic_counter = partial(TopicCounter, topics=self.topics, registry=self._by_topic)
        # fmt: off
        # The table: metric, help, labels, buckets.
        self.tasks_created = counter("later_tasks_created", "Tasks created.")
        self.tasks_duplicate = counter("later_tasks_duplicate", "Creates whose id was known already.")
        self.tasks_refused = counter("later_tasks_refused", "Creates that were refused.")
        self.deliveries = topic_counter(
            "later_topic_deliveries", "Deliveries by topic and outcome.", "outcome",
            initial=OUTCOMES, initial_other=OUTCOMES,
        )
        TotalCounter(
            "later_deliveries", "Deliveries by outcome: done, busy, failed, gone.", "outcome",
            self.deliveries, own,
        )
        self.claims_throttled = topic_counter(
            "later_claims_throttled",
            "Claims that got fewer permits of their topic's rate or concurrency than they wanted.",
            "",
        )
        self.tasks_put_back = topic_counter(
            "later_tasks_put_back",
            "Claimed tasks that were put back until later, because their origin was full or had asked for a pause.",
            "",
        )
        self.topic_dead = topic_counter(
            "later_topic_dead", "Tasks that died, by topic and reason.", "reason",
            initial=DEATH_REASONS, initial_other=DEATH_REASONS,
        )
        self.follow_ups, self.operator_events = (
            labelled_counter(
                "later_follow_ups", "Tasks made because others ended, by the policy field that says so.", ["field"]
            ),
            labelled_counter("later_operator_events", "Events for operators that became tasks, by type.", ["type"]),
        )
        self.delivery_failures = topic_counter(
            "later_delivery_failures",
            "Deliveries that were not done, by topic and code: the receiver's status or its class, or another cause.",
            "code", initial_other=FAILURE_CODES,
        )
        self.callbacks_refused = labelled_counter(
            "later_callbacks_refused", "Callbacks that the address guard refused, at the write or at the call.", ["why"]
        )
        self.delivery_faults = counter(
            "later_delivery_faults", "Deliveries that failed by a fault of later's own, and cost no retry."
        )
        self.delivery_local_faults = counter(
            "later_delivery_local_faults",
            "Deliveries that this machine could not make: no descriptor, port, thread or memory was left.",
        )
        self.retries = counter("later_retries", "Tasks scheduled for another attempt.")
        self.dead_removed = counter("later_dead_removed", "Dead tasks removed after their dead_keep.")
        self.tasks_requeued = labelled_counter(
            "later_tasks_requeued",
            "Tasks moved back to delay, by the bucket they came from: unack when a lease was lost.",
            ["from"],
        )
        self.orphan_entries = counter("later_orphan_entries", "Bucket entries without a task that were removed.")
        self.settles_lost = counter("later_settles_lost", "Deliveries whose settle found another lease, or no store.")
        self.lateness = histogram(
            "later_lateness_seconds",
            "Time from when a task is due to the start of its first delivery, by what held it.",
            _LATENESS_S, label="held",
        )
        self.delivery_duration = histogram(
            "later_delivery_duration_seconds", "Time from a delivery's start to its outcome.", _DELIVERY_S
        ).labels()
        self.delivery_slots_in_use, self.delivery_slots, self.shards_owned = (
            gauge("later_delivery_slots_in_use", "Deliveries in flight."),
            gauge("later_delivery_slots", "Deliveries that may be in flight."),
            gauge("later_shards_owned", "Shards at which the worker looks in each tick, besides others in turn."),
        )
        self.origins_full = gauge(
            "later_origins_full", "Origins of which tasks wait until other calls to them end, in each topic."
        )
        self.connections_refused = counter(
            "later_connections_refused", "Connections of clients that were closed at once: too many were open."
        )
        self.api_denied = labelled_counter(
            "later_api_denied", "Calls and items of batches refused because of their key, by the reason.", ["reason"]
        )
        self.pending_writes = gauge("later_pending_writes", "Tasks of requests that wait for the store.")
        self.tick_errors = labelled_counter("later_tick_errors", "Ticks that failed, by ticker.", ["ticker"])
        self.tick_last_success = gauge(
            "later_tick_last_success_timestamp_seconds",
            "Unix time at which the last tick succeeded, or at which the ticker started.",
            ["ticker"],
        )
        self.event_loop_lag = histogram(
            "later_event_loop_lag_seconds", "How late the event loop runs what is due.", _LOOP_LAG_S
        ).labels()
        self.store_failovers, self.store_round_trips = (
            counter("later_store_failovers", "Times that another server became the store's primary."),
            histogram(
                "later_store_round_trip_duration_seconds",
                "Time of round trips to the store, by verb.",
                _STORE_S, label="verb",
            ),
        )
        self.snapshot_age = gauge(
            "later_snapshot_age_seconds",
            "Age of the census that the gauges of the store are from. Before the first, the time since the start.",
        )
        self.processes = gauge("later_processes", "Processes configured.")
        self.processes_up = gauge("later_processes_up", "Processes that are up.")
        self.process_deaths = counter("later_process_deaths", "Processes that exited unasked.")
        self.process_kills = counter("later_process_kills", "Processes that were killed because they did not answer.")
        # fmt: on
        self.activity, self.requests, self.firings, self.durability, self.consumers, self.store_clocks = (
            TopicActivity(),
            RequestMetrics(own),
            FiringMetrics(own),
            DurabilityMetrics(own),
            ConsumerMetrics(own, self._by_topic, self.topics),
            StoreClockMetrics(own),
        )  # fmt: skip
        ProcessCollector(registry=own)
        self.observe_lateness = {held: self.lateness.labels(held).observe for held in HELD if held != PULLED}
        self._topic_counters = (
            self.deliveries,
            self.claims_throttled,
            self.tasks_put_back,
            self.topic_dead,
            self.delivery_failures,
            self.consumers.claimed,
        )
        for labelled, values in (
            (self.api_denied, DENIAL_REASONS),
            (self.tasks_requeued, REQUEUED_FROM),
            (self.callbacks_refused, REFUSAL_CAUSES),
            (self.follow_ups, FOLLOW_UP_FIELDS),
            (self.operator_events, EVENT_TYPES),
        ):
            for value in values:
                labelled.labels(value)

    def add_ticker(
        self, name: str, last_success_at: Callable[[], float], hangs: Callable[[float], bool] = lambda now_s: False
    ) -> None:
        """Show a ticker from now on. `last_success_at` returns the Unix time (s) of its last success.

        `hangs` returns whether it hangs at a time (s, monotonic).
        """
        self._hangs[name] = hangs
        self.tick_errors.labels(name)
        self.tick_last_success.labels(name).set_function(last_success_at)

    def hung_tickers(self, now_s: float) -> list[str]:
        """Return the names of this process's tickers that hang at `now_s` (monotonic)."""
        return [name for name, hangs in self._hangs.items() if hangs(now_s)]

    def round_trip_observer(self, verb: str) -> Callable[[float], None]:
        """Return an observer of the round trips of a verb; it takes the seconds of each."""
        return self.store_round_trips.labels(verb).observe

    def count_created(self, topics: Iterable[str]) -> None:
        """Count tasks that were created, by the topic of each."""
        for topic, number in TopicCounts(topics).items():
            self.tasks_created.inc(number)
            self.activity.count(topic, "created", number)

    def count_deliveries(self, topic: str, outcome: str, number: int) -> None:
        self.deliveries.inc(topic, outcome, number)
        self.activity.count(topic, outcome, number)

    def count_delivery_failure(self, topic: str, reason: str, status: int | None) -> None:
        self.delivery_failures.inc(topic, failure_code(reason, status))

    def count_death(self, topic: str, reason: str, id: str) -> None:
        """Count a task that died, by the reason."""
        self.topic_dead.inc(topic, reason)
        self.activity.count(topic, "dead")
        if self.on_death is not None:
            self.on_death(topic, reason, id)

    def count_follow_ups(self, field: str, count: int) -> None:
        self.follow_ups.labels(field).inc(count)

    def count_denial(self, reason: str) -> None:
        self.api_denied.labels(reason).inc()

    def count_tick_error(self, ticker: str) -> None:
        self.tick_errors.labels(ticker).inc()

    def exposition(self, accept: str = "") -> Exposition:
        """Return all metrics in the format that the header `Accept` asks for."""
        return encode(self.registry, accept)

    def process_samples(self) -> MetricSamples:
        """Return the samples of this process: what it has counted, and what it holds now."""
        return [*samples_of(self._own), *(sample for counter in self._topic_counters for sample in counter.samples())]

    def counters_only(self, samples: MetricSamples) -> MetricSamples:
        """Return the samples that stay true of a process that exited: what it counted, not what it held."""
        gauges = {metric.name for metric in self._own.collect() if metric.type == "gauge"}
        return [sample for sample in samples if sample.metric not in gauges]

    def render(self, samples: MetricSamples, accept: str = "") -> Exposition:
        """Return these samples, and no others, in the format that the header `Accept` asks for."""
        return encode(SampleCollector(self.registry, samples), accept)
