"""The metrics of all processes, exited ones included: the same exposition from whichever process is scraped."""

from __future__ import annotations

from collections.abc import Mapping

from later.metrics import OTHER, Exposition, Metrics, MetricSamples, sum_samples
from later.processes.topic_totals import TopicTotals


class ProcessMetrics:
    """The samples of all processes, by process number: those of an exited process are kept under its number.

    Each number is summed for itself and the sums are added in order, so that rounding never lets a sum go down when a
    process exits: Prometheus takes a counter that goes down for one that was reset, and counts all of it again.
    """

    def __init__(self, metrics: Metrics, count: int) -> None:
        """`metrics` are the supervisor's own; `count` is the number of processes."""
        self._metrics = metrics
        self._retired: list[MetricSamples] = [[] for _ in range(count)]
        self._topics = TopicTotals(metrics)
        self._store = {"later_build_info": metrics.store.samples()["later_build_info"]}

    @property
    def topics_in_use(self) -> list[str]:
        """The topics that shall have labels of their own in each process."""
        return self._metrics.topics.in_use

    def retire(self, number: int, samples: MetricSamples) -> None:
        """Keep the counters of a process that exited."""
        samples = self._topics.add(number, samples)
        self._topics.forget(number)
        self._retired[number - 1] = sum_samples(self._retired[number - 1], self._metrics.counters_only(samples))

    def update_store(self, samples: Mapping[str, MetricSamples]) -> None:
        """Replace the store's samples of these metrics; the others keep their last values."""
        self._store.update(samples)
        if "later_tasks" in samples:
            topics = {dict(sample.labels)["topic"] for sample in samples["later_tasks"]} - {OTHER}
            self._metrics.topics.adopt(topics)
            self._metrics.topics.refresh(topics)

    def exposition(self, running: Mapping[int, MetricSamples], accept: str = "") -> Exposition:
        """Return all metrics in the format that `accept` asks for; `running` has the samples of processes by number."""
        processes = [
            sum_samples(past, self._topics.add(number, running[number]) if number in running else [])
            for number, past in enumerate(self._retired, 1)
        ]
        own = self._topics.add(0, self._metrics.process_samples())
        store = [sample for samples in self._store.values() for sample in samples]
        return self._metrics.render([*sum_samples(own, *processes), *self._topics.samples(), *store], accept)
