"""The metrics of consumers: the tasks that they claim, what becomes of them, and the claims that wait."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from later.metrics.instruments import DurationHistogram, PlainCounter
from later.metrics.topic_labels import TopicCounter, TopicLabels

_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)


class ConsumerMetrics:
    """The metrics of the calls by which consumers claim tasks. Those by topic are in a registry of their own."""

    def __init__(self, own: CollectorRegistry, by_topic: CollectorRegistry, topics: TopicLabels) -> None:
        self.claimed = TopicCounter(
            "later_claimed", "Tasks that consumers have claimed, by topic.", "",
            topics=topics, registry=by_topic, initial=("",),
        )  # fmt: skip
        self.acked = PlainCounter("later_acked", "Claimed tasks that were done.", registry=own)
        self.nacked = PlainCounter("later_nacked", "Attempts of consumers that failed.", registry=own)
        self.released = PlainCounter("later_released", "Claimed tasks that were given back.", registry=own)
        self.extended = PlainCounter("later_extended", "Leases that consumers have extended.", registry=own)
        self.waiters = Gauge("later_claim_waiters", "Claims that wait for tasks.", registry=own)
        self.wait_duration = DurationHistogram(
            "later_claim_wait_duration_seconds",
            "How long claims that may wait took to get tasks; those that got none are not counted.",
            _WAIT_S,
            registry=own,
        ).labels()
