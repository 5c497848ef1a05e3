"""The counters with the label `topic`, over all processes of a daemon and under one choice of 200 topics.

Each process chooses its topics by itself, and may let one go. So what a process has counted since it was asked last is
added to the totals of the daemon, under the label that the daemon gives the topic.
"""

from __future__ import annotations

from later.metrics import OTHER, TOPIC_COUNTERS, Metrics, MetricSample, MetricSamples

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, str, Labels]


class TopicTotals:
    """The totals. No total ever goes down: a topic that loses its label loses its series."""

    def __init__(self, metrics: Metrics) -> None:
        """`metrics` are those of the supervisor, which choose the topics."""
        self._topics = metrics.topics
        self._totals: dict[Series, float] = {}
        self._last: dict[int, dict[Series, float]] = {}
        """The counts of each process when it was asked last."""
        metrics.topics.series.append(self)

    def add_topic(self, topic: str) -> None:
        """Do nothing: series come from the processes."""

    def remove_topic(self, topic: str) -> None:
        self._totals = {series: total for series, total in self._totals.items() if _topic_of(series[2]) != topic}

    def add(self, number: int, samples: MetricSamples) -> MetricSamples:
        """Add what this process has counted since the last call; return its samples without these counters."""
        last, now = self._last.get(number, {}), dict[Series, float]()
        rest: MetricSamples = []
        for sample in samples:
            if sample.metric not in TOPIC_COUNTERS:
                rest.append(sample)
                continue
            series = (sample.metric, sample.sample, sample.labels)
            before = last.get(series)
            now[series] = sample.value
            if before is None or sample.value != before:
                grown = sample.value - (before or 0.0)
                self._add(series, grown if grown >= 0 else sample.value)
        self._last[number] = now
        return rest

    def forget(self, number: int) -> None:
        """Expect a new process under this number, which counts from 0."""
        self._last.pop(number, None)

    def samples(self) -> MetricSamples:
        return [MetricSample(*series, total) for series, total in self._totals.items()]

    def _add(self, series: Series, grown: float) -> None:
        metric, sample, labels = series
        topic = _topic_of(labels)
        if topic != OTHER and self._topics.label(topic) == OTHER:
            labels = tuple((name, OTHER if name == "topic" else value) for name, value in labels)
        key = (metric, sample, labels)
        self._totals[key] = self._totals.get(key, 0.0) + grown


def _topic_of(labels: Labels) -> str:
    return next(value for name, value in labels if name == "topic")
