"""The label `topic`: which topics have series of their own, and the counters that have this label."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from later.metrics.samples import MetricSample

MAX_TOPICS = 200
"""Topics with a label of their own. The rest share the label `other`: a million topics would be a million series."""
OTHER = "other"
IDLE_ROUNDS = 40
"""A topic that had no task and no event in this many counts of the store (ten minutes) may lose its label."""


class TopicSeries(Protocol):
    """Series that exist for each topic with a label of its own."""

    def add_topic(self, topic: str) -> None: ...

    def remove_topic(self, topic: str) -> None: ...


class TopicLabels:
    """The topics that have a label of their own, the same ones in counters and in gauges.

    A topic gets its label when it is met first, while there is room. If there is none, it takes the place of a topic
    that is no longer used, whose series end.
    """

    def __init__(self) -> None:
        self._used_in: dict[str, int] = {}
        """The round in which each topic was used last."""
        self._round = 0
        self.series: list[TopicSeries] = []
        """The metrics that add a topic's series when it gets a label, and remove them when it loses it."""

    def __contains__(self, topic: str) -> bool:
        return topic in self._used_in

    @property
    def in_use(self) -> list[str]:
        """The topics that were used in the last rounds."""
        return [topic for topic, used in self._used_in.items() if not self._is_idle(used)]

    def label(self, topic: str) -> str:
        """Return the topic's own label, otherwise `other`; the topic counts as used."""
        if self._used_in.get(topic) == self._round:
            return topic
        if topic in self._used_in:
            self._used_in[topic] = self._round
            return topic
        if len(self._used_in) < MAX_TOPICS and topic != OTHER:
            self._use(topic)
            return topic
        return OTHER

    def refresh(self, present: Collection[str]) -> None:
        """Begin a round: `present` are all topics that have tasks. Those without a label get the room that there is."""
        self._round += 1
        unlabelled = (topic for topic in present if topic not in self._used_in and topic != OTHER)
        new = [*islice(unlabelled, MAX_TOPICS)]  # more cannot get a label, and to look at a million takes long
        for topic in [topic for topic in self._used_in if topic in present]:
            self._use(topic)
        if len(new) > MAX_TOPICS - len(self._used_in):
            by_use = sorted(self._used_in, key=self._used_in.__getitem__)
            idle = [topic for topic in by_use if self._is_idle(self._used_in[topic])]
            self._remove(idle[: len(new) - (MAX_TOPICS - len(self._used_in))])
        for topic in new[: MAX_TOPICS - len(self._used_in)]:
            self._use(topic)

    def adopt(self, topics: Collection[str]) -> None:
        """Give labels to these topics, because other processes use them: to the first `MAX_TOPICS` of them."""
        topics = [topic for topic in topics if topic != OTHER][:MAX_TOPICS]
        wanted = set(topics)
        new = [topic for topic in topics if topic not in self._used_in]
        others = [topic for topic in self._used_in if topic not in wanted]
        excess = max(len(self._used_in) + len(new) - MAX_TOPICS, 0)
        self._remove(sorted(others, key=self._used_in.__getitem__)[:excess])
        for topic in topics:
            self._use(topic)

    def _use(self, topic: str) -> None:
        if topic not in self._used_in:
            for series in self.series:
                series.add_topic(topic)
        self._used_in[topic] = self._round

    def _is_idle(self, used: int) -> bool:
        return self._round - used >= IDLE_ROUNDS

    def _remove(self, topics: Iterable[str]) -> None:
        for topic in topics:
            del self._used_in[topic]
            for series in self.series:
                series.remove_topic(topic)


class TopicCounter(Collector):
    """A counter with the label `topic` and, unless `label` is empty, one more.

    Its `initial` values exist at 0 for each topic with a label of its own; for `other`, those of `initial_other`.
    Its values are plain numbers: a counter of prometheus_client takes a lock for each, at four times the cost.
    `totals` are the sums over all topics, also of those that have lost their labels, by the second label.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        *,
        topics: TopicLabels,
        registry: CollectorRegistry,
        initial: Sequence[str] = (),
        initial_other: Sequence[str] = ("",),
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = ["topic", label] if label else ["topic"]
        self._topics = topics
        self._initial = initial
        self._values: dict[tuple[str, str], float] = {(OTHER, value): 0.0 for value in initial_other}
        self.totals = dict.fromkeys(initial_other, 0.0)
        topics.series.append(self)
        registry.register(self)

    def inc(self, topic: str, value: str = "", count: int = 1) -> None:
        """Count an event of this topic; `value` is that of the second label."""
        key = (self._topics.label(topic), value)
        self._values[key] = self._values.get(key, 0.0) + count
        self.totals[value] = self.totals.get(value, 0.0) + count

    def add_topic(self, topic: str) -> None:
        for value in self._initial:
            self._values.setdefault((topic, value), 0.0)

    def remove_topic(self, topic: str) -> None:
        self._values = {key: count for key, count in self._values.items() if key[0] != topic}

    def samples(self) -> Iterator[MetricSample]:
        """Yield the samples as processes exchange them: at a tenth of the cost of `collect`, as there are thousands."""
        names = [*reversed(self._labels)]
        for key, count in self._values.items():
            labels = tuple(zip(names, reversed(key[: len(names)]), strict=True))
            yield MetricSample(self._name, f"{self._name}_total", labels, count)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for key, count in self._values.items():
            family.add_metric(key[: len(self._labels)], count)
        yield family


class TotalCounter(Collector):
    """The totals of a counter by topic, as a counter of its own: they stay when topics lose their labels."""

    def __init__(
        self, name: str, documentation: str, label: str, of: TopicCounter, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._of = of
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, total in self._of.totals.items():
            family.add_metric([value], total)
        yield family
