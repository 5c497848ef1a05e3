"""The spans of creates and of deliveries.

They say which task, topic and attempt it was, when, and what became of it: no content, no value of a header, no path or
query of a URL, no message of a receiver. Whatever fails here costs the span, and never the call that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import structlog
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from later.core.clock import rfc3339
from later.core.held import Held
from later.core.retry import Outcome, OutcomeKind, SettleTarget
from later.core.task import Task, creation_context, names_own_context, task_in_span
from later.core.trace_context import is_id_sampled, is_sampled

PUT_BACK = "put_back"
"""The verdict on a task that was given back to be delivered again, at no cost."""

_SYSTEM = "later"
_FAILED = Status(StatusCode.ERROR)
"""The status of a span of what failed. It has no words: those of an error may quote a caller or a receiver."""
_NO_PARENT = Context()

log = structlog.get_logger("later.tracing")

Parameters = ParamSpec("Parameters")
Owner = TypeVar("Owner")
Result = TypeVar("Result")


def harmless(
    method: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result | None]:
    """Let a method return None where it would raise."""

    def call(owner: Owner, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result | None:
        try:
            return method(owner, *arguments, **named)
        except Exception as error:
            log.debug("span failed", reason=repr(error))
            return None

    return call


class SpanRecorder:
    """Makes the spans of tasks that are sampled: those whose trace context is, and a share of those that have none.

    `is_child` makes the spans of deliveries children of the spans that created the tasks; otherwise they begin traces
    of their own, with links to those. `now_ns` returns the machine's Unix time in ns.
    """

    def __init__(self, tracer: Tracer, *, share: float, is_child: bool, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self._tracer = tracer
        self._share = share
        self._is_child = is_child

    def begin_create(self, caller: bytes, *, is_kept: bool) -> CreateSpan:
        """Return the span of a request that creates tasks, with the trace context `caller` (b"": it has none).

        With `is_kept`, the tasks keep the span as their context.
        """
        return CreateSpan(self, caller, is_kept=is_kept)

    @harmless
    def begin_delivery(
        self, task: Task, *, attempt: int, due_at: int, late_ms: int, held: Held, host: str, claimed_ns: int
    ) -> DeliverySpan | None:
        """Return the span of an attempt that was due at `due_at` and begins `late_ms` later; None if it has none.

        It begins at `claimed_ns`. `host` is that of the callback.
        """
        context = creation_context(task)
        if not self.is_sampled(task, context):
            return None
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": task.topic,
            "messaging.message.id": task.id,
            "messaging.operation.type": "send",
            "server.address": host,
            "later.attempt": attempt,
            "later.due_at": rfc3339(due_at),
            "later.lateness_ms": late_ms,
            "later.held": held.value,
        }
        span = self.start(
            f"deliver {task.topic}",
            SpanKind.CLIENT,
            claimed_ns,
            attributes,
            parent=context if self._is_child else b"",
            linked=b"" if self._is_child else context,
        )
        span.add_event("claim", timestamp=claimed_ns)
        return DeliverySpan(span, self.now_ns, is_new_trace=not (self._is_child and context))

    def is_sampled(self, task: Task, context: bytes) -> bool:
        """Return True if a task with this trace context is traced."""
        return is_sampled(context) if context else is_id_sampled(task.id, self._share)

    def start(
        self,
        name: str,
        kind: SpanKind,
        began_ns: int,
        attributes: Mapping[str, str | int],
        *,
        parent: bytes = b"",
        linked: bytes = b"",
    ) -> Span:
        """Start a span. It is a child of the span `parent`, or begins a trace; `linked` is what it has a link to."""
        return self._tracer.start_span(
            name,
            context=set_span_in_context(NonRecordingSpan(_remote(parent)), _NO_PARENT) if parent else _NO_PARENT,
            kind=kind,
            attributes=attributes,
            links=[Link(_remote(linked))] if linked else None,
            start_time=began_ns,
        )


class CreateSpan:
    """The span of a request that creates tasks. It is made with the first of them that is sampled."""

    def __init__(self, recorder: SpanRecorder, caller: bytes, *, is_kept: bool) -> None:
        self._recorder = recorder
        self._caller = caller
        self._is_kept = is_kept
        self._began_ns = recorder.now_ns()
        self._tasks = 0
        self._topic = ""
        self._has_one_topic = True
        self._first_id = ""
        self._span: Span | None = None
        self._is_stored = False

    def join(self, task: Task) -> Task:
        """Return a task that was admitted, with this span as its context if it is sampled and keeps one."""
        return self._join(task) or task

    def note_stored(self) -> None:
        """Note that the request was carried out. Otherwise the span is one of a failure."""
        self._is_stored = True

    @harmless
    def end(self) -> None:
        """End the span, if it was made."""
        span = self._span
        if span is None:
            return
        if self._tasks == 1:
            span.set_attribute("messaging.message.id", self._first_id)
        else:
            span.set_attribute("messaging.batch.message_count", self._tasks)
        if self._has_one_topic:
            span.set_attribute("messaging.destination.name", self._topic)
        else:
            span.update_name("create")
        if not self._is_stored:
            span.set_status(_FAILED)
        span.end(self._recorder.now_ns())

    @harmless
    def _join(self, task: Task) -> Task:
        if not self._tasks:
            self._first_id, self._topic = task.id, task.topic
        self._tasks += 1
        self._has_one_topic &= task.topic == self._topic
        has_own = names_own_context(task)
        parent = self._caller or (creation_context(task) if has_own else b"")
        if not self._recorder.is_sampled(task, parent):
            return task
        if self._span is None:
            attributes = {"messaging.system": _SYSTEM, "messaging.operation.type": "create"}
            self._span = self._recorder.start(
                f"create {task.topic}", SpanKind.PRODUCER, self._began_ns, attributes, parent=parent
            )
        if has_own or not self._is_kept:
            return task
        return msgspec.structs.replace(task, trace_context=_context_bytes(self._span))


class DeliverySpan:
    """The span of an attempt, from its claim to its settle. It ends once."""

    def __init__(self, span: Span, now_ns: Callable[[], int], *, is_new_trace: bool) -> None:
        self._span = span
        self._now_ns = now_ns
        self._is_new_trace = is_new_trace
        self.trace_id = format(span.get_span_context().trace_id, "032x")

    def task_to_call(self, task: Task) -> Task:
        """Return the task as its receiver gets it: with this span as its trace context."""
        return self._task_to_call(task) or task

    @harmless
    def note_outcome(self, outcome: Outcome) -> None:
        """Note the end of the call."""
        self._span.add_event("reply", timestamp=self._now_ns())
        if outcome.status is not None:
            self._span.set_attribute("http.response.status_code", outcome.status)
        if outcome.kind is not OutcomeKind.DONE:
            self._span.set_status(_FAILED)

    @harmless
    def note_settle(self, verdict: SettleTarget, *, is_settled: bool) -> None:
        """Note what becomes of the task. The settle is lost if another lease or a change was there before it."""
        self._span.set_attribute("later.verdict", verdict.value)
        self._span.add_event("settle" if is_settled else "settle lost", timestamp=self._now_ns())

    @harmless
    def end(self, *, is_put_back: bool) -> None:
        """End the span. With `is_put_back`, its call was cancelled or not made, and the task is delivered again."""
        if is_put_back:
            self._span.set_attribute("later.verdict", PUT_BACK)
            self._span.set_status(_FAILED)
        self._span.end(self._now_ns())

    @harmless
    def _task_to_call(self, task: Task) -> Task:
        return task_in_span(task, _context_bytes(self._span), is_new_trace=self._is_new_trace)


def _context_bytes(span: Span) -> bytes:
    """Return the context of a span as the store holds it."""
    context = span.get_span_context()
    return context.trace_id.to_bytes(16) + context.span_id.to_bytes(8) + bytes([context.trace_flags])


def _remote(context: bytes) -> SpanContext:
    """Return a context that the store holds as OpenTelemetry has it."""
    flags = TraceFlags(context[24])
    return SpanContext(int.from_bytes(context[:16]), int.from_bytes(context[16:24]), is_remote=True, trace_flags=flags)
