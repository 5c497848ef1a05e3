"""The metrics of all processes, exited ones included: the same exposition from whichever process is scraped."""

from __future__ import annotations

from collections.abc import Mapping

from later.metrics import Metrics, MetricSamples, sum_samples


class ProcessMetrics:
    """The samples of all processes, by process number: those of an exited process are kept under its number.

    Each number is summed for itself and the sums are added in order, so that rounding never lets a sum go down when a
    process exits: Prometheus takes a counter that goes down for one that was reset, and counts all of it again.
    """

    def __init__(self, metrics: Metrics, count: int) -> None:
        """`metrics` are the supervisor's own; `count` is the number of processes."""
        self._metrics = metrics
        self._retired: list[MetricSamples] = [[] for _ in range(count)]
        self._store: dict[str, MetricSamples] = {}

    def retire(self, number: int, samples: MetricSamples) -> None:
        """Keep the counters of a process that exited."""
        self._retired[number - 1] = sum_samples(self._retired[number - 1], self._metrics.counters_only(samples))

    def update_store(self, samples: Mapping[str, MetricSamples]) -> None:
        """Replace the store's samples of these metrics; the others keep their last values."""
        self._store.update(samples)

    def exposition(self, running: Mapping[int, MetricSamples]) -> bytes:
        """Return everything in Prometheus' text format; `running` has the samples of processes by number."""
        processes = [sum_samples(past, running.get(number, [])) for number, past in enumerate(self._retired, 1)]
        store = [sample for samples in self._store.values() for sample in samples]
        return self._metrics.render([*sum_samples(self._metrics.process_samples(), *processes), *store])
