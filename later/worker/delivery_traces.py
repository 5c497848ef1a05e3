"""The spans of deliveries, and the exemplars in metrics that lead to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from later.core.held import Held
from later.core.origin import Origin
from later.core.retry import Outcome
from later.core.task import Task
from later.metrics import Metrics
from later.store.types import Claim

if TYPE_CHECKING:
    from later.tracing.spans import DeliverySpan, SpanRecorder


class DeliveryTraces:
    """The spans of deliveries. Without `--otlp` no object of this class is made."""

    def __init__(self, recorder: SpanRecorder, metrics: Metrics) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self.now_ns = recorder.now_ns

    def begin(
        self, claim: Claim, task: Task, held: Held, origin: Origin | None, now: int, claimed_ns: int
    ) -> DeliverySpan | None:
        """Return the span of a call of `task` that begins at `now` (ms); None if it is not sampled."""
        late_ms = max(now - claim.due_at, 0)
        span = self._recorder.begin_delivery(
            task,
            attempt=claim.attempt,
            due_at=claim.due_at,
            late_ms=late_ms,
            held=held,
            host="" if origin is None else origin.host,
            claimed_ns=claimed_ns,
        )
        if span is not None and claim.attempt == 1:
            self._metrics.lateness.labels(held.value).add_exemplar(late_ms / 1000, span.trace_id, self._unix_s())
        return span

    def note_outcome(self, span: DeliverySpan, outcome: Outcome, took_s: float) -> None:
        """Note the end of a call that took so long."""
        span.note_outcome(outcome)
        self._metrics.delivery_duration.add_exemplar(took_s, span.trace_id, self._unix_s())

    def _unix_s(self) -> float:
        return self.now_ns() / 1_000_000_000
