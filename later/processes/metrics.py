"""What all processes have done, those that are no more among them: one set of figures, whichever process is asked."""

from __future__ import annotations

from collections.abc import Mapping

from later.metrics import Metrics, MetricSamples, sum_samples


class ProcessMetrics:
    """A page for each process, by its number; those that had that number before it are on the same page.

    Pages are added up each for itself and then in order: so no sum ever goes down by the last digit of a fraction, when
    a process dies. A counter that goes down is taken for one that began anew, and its whole count for what came since.
    """

    def __init__(self, metrics: Metrics, count: int) -> None:
        """`metrics` are the supervisor's own."""
        self._metrics = metrics
        self._past: list[MetricSamples] = [[] for _ in range(count)]
        self._of_the_store: Mapping[str, MetricSamples] = {}

    def retire(self, number: int, figures: MetricSamples) -> None:
        """Keep what a process counted that is no more."""
        self._past[number - 1] = sum_samples(self._past[number - 1], self._metrics.counters_only(figures))

    def update_store(self, seen: Mapping[str, MetricSamples]) -> None:
        """What was seen of the store just now, by metric; the others stay as they were when they were seen last."""
        self._of_the_store = {**self._of_the_store, **seen}

    def exposition(self, living: Mapping[int, MetricSamples]) -> bytes:
        """Everything, in Prometheus' text format; `living` by number."""
        pages = [sum_samples(past, living.get(number, [])) for number, past in enumerate(self._past, 1)]
        seen = [figure for figures in self._of_the_store.values() for figure in figures]
        return self._metrics.render([*sum_samples(self._metrics.process_samples(), *pages), *seen])
