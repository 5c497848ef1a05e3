"""Spans: which tasks have some, what these belong to, and what they say."""

from __future__ import annotations

from typing import Any, cast

from opentelemetry.trace import Tracer

from later.core.held import Held
from later.core.retry import Outcome, OutcomeKind, SettleTarget
from later.core.task import Task
from later.core.trace_context import format_traceparent, parse_traceparent
from later.tracing.spans import DeliverySpan, SpanRecorder
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.tracing.recorded_spans import CALLER, CONTEXT, UNSAMPLED, RecordedSpans, ids_of

OWN = f"00-{'c' * 32}-{'d' * 16}-01"


def create(spans: RecordedSpans, *tasks: Task, caller: bytes = b"", is_kept: bool = True) -> list[Task]:
    """Create tasks in one request, and return them as they are stored."""
    span = spans.recorder.begin_create(caller, is_kept=is_kept)
    joined = [span.join(task) for task in tasks]
    span.note_stored()
    span.end()
    return joined


def begin_delivery(spans: RecordedSpans, task: Task) -> DeliverySpan | None:
    return spans.recorder.begin_delivery(
        task, attempt=1, due_at=NOW, late_ms=7, held=Held.NO, host="shop.example", claimed_ns=NOW * 1_000_000
    )


def deliver(spans: RecordedSpans, task: Task) -> Task:
    """Deliver a task, and return it as its receiver gets it."""
    span = begin_delivery(spans, task)
    assert span is not None
    called = span.task_to_call(task)
    span.end(is_put_back=False)
    return called


# Creates


def test_the_span_of_a_create_is_a_child_of_its_callers_and_the_context_that_its_task_keeps() -> None:
    spans = RecordedSpans()
    task = a_task(trace_context=CONTEXT)

    [stored] = create(spans, task, caller=CONTEXT)

    [span] = spans.ended
    assert (span.name, span.kind, span.status) == ("create order", "PRODUCER", "UNSET")
    assert span.parent == ids_of(CALLER)
    assert ids_of(stored.trace_context) == span.context
    assert span.attributes == {
        "messaging.system": "later",
        "messaging.operation.type": "create",
        "messaging.destination.name": "order",
        "messaging.message.id": task.id,
    }


def test_a_create_without_a_context_begins_a_trace() -> None:
    spans = RecordedSpans()
    [stored] = create(spans, a_task())
    [span] = spans.ended
    assert span.parent == ""
    assert ids_of(stored.trace_context) == span.context


@each_case(("share", "caller", "count"), [(1.0, UNSAMPLED, 0), (0.0, CALLER, 1), (0.0, "", 0), (1.0, "", 1)])
def test_the_flag_of_the_caller_decides_before_the_share(share: float, caller: str, count: int) -> None:
    spans = RecordedSpans(share=share)
    [stored] = create(spans, task := a_task(), caller=parse_traceparent(caller))
    assert len(spans.ended) == count
    assert bool(stored.trace_context) == bool(count)
    assert count or stored is task


def test_a_task_keeps_no_context_where_none_is_to_be_kept() -> None:
    spans = RecordedSpans()
    assert create(spans, task := a_task(), caller=CONTEXT, is_kept=False) == [task]
    assert len(spans.ended) == 1


@each_case("own", [{"headers": {"TraceParent": OWN}}, {"context": {"traceparent": OWN}}])
def test_a_task_that_names_its_own_context_is_left_as_it_is_and_its_create_belongs_to_that(own: Any) -> None:
    spans = RecordedSpans(share=0.0)
    assert create(spans, task := a_task(**own)) == [task]
    assert [span.parent for span in spans.ended] == [ids_of(OWN)]


def test_a_batch_has_one_span() -> None:
    spans = RecordedSpans()
    stored = create(spans, a_task(), a_task(), caller=CONTEXT)
    [span] = spans.ended
    assert {ids_of(task.trace_context) for task in stored} == {span.context}
    assert span.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in span.attributes


def test_a_batch_of_several_topics_names_none() -> None:
    spans = RecordedSpans()
    create(spans, a_task(topic="a"), a_task(topic="b"))
    [span] = spans.ended
    assert span.name == "create"
    assert "messaging.destination.name" not in span.attributes


def test_of_a_batch_without_a_context_the_share_of_the_tasks_is_traced_and_so_are_their_deliveries() -> None:
    spans, tasks = RecordedSpans(share=0.25), [a_task(id=f"order-{number}") for number in range(2000)]

    stored = create(spans, *tasks)

    traced = [task for task in stored if task.trace_context]
    assert 400 < len(traced) < 600
    assert [span.attributes["messaging.batch.message_count"] for span in spans.ended] == [2000]
    assert [task for task in stored if begin_delivery(spans, task) is not None] == traced


def test_a_create_that_fails_is_an_error_without_words() -> None:
    spans = RecordedSpans()
    span = spans.recorder.begin_create(b"", is_kept=True)
    span.join(a_task())
    span.end()
    assert [(span.status, span.description) for span in spans.ended] == [("ERROR", None)]


def test_a_request_of_which_nothing_was_admitted_has_no_span() -> None:
    spans = RecordedSpans()
    assert create(spans) == []
    assert spans.ended == []


# Deliveries


def test_a_delivery_begins_a_trace_with_a_link_to_the_create() -> None:
    spans = RecordedSpans()
    called = deliver(spans, a_task(trace_context=CONTEXT))
    [span] = spans.ended
    assert (span.name, span.kind, span.parent, span.links) == ("deliver order", "CLIENT", "", [ids_of(CALLER)])
    assert span.trace_id != "a" * 32
    assert ids_of(called.trace_context) == span.context


def test_a_delivery_may_be_a_child_of_the_create() -> None:
    spans = RecordedSpans(is_child=True)
    deliver(spans, a_task(trace_context=CONTEXT))
    [span] = spans.ended
    assert (span.parent, span.links, span.trace_id) == (ids_of(CALLER), [], "a" * 32)


def test_a_task_without_a_context_has_neither_a_parent_nor_a_link() -> None:
    for is_child in (False, True):
        spans = RecordedSpans(is_child=is_child)
        deliver(spans, a_task())
        assert [(span.parent, span.links) for span in spans.ended] == [("", [])]


@each_case(
    ("headers", "count"), [({"traceparent": OWN}, 1), ({"traceparent": UNSAMPLED}, 0), ({"traceparent": "nonsense"}, 0)]
)
def test_a_tasks_own_header_says_whether_it_is_traced(headers: dict[str, str], count: int) -> None:
    spans = RecordedSpans(share=0.0)
    assert (begin_delivery(spans, a_task(headers=headers)) is not None) == bool(count)


def test_a_receiver_gets_the_span_in_place_of_the_tasks_own_context() -> None:
    own = {"TraceParent": OWN, "Tracestate": "vendor=1", "baggage": "user=7", "X-Own": "1"}
    called = deliver(RecordedSpans(), a_task(headers=own))
    assert called.headers == {"baggage": "user=7", "X-Own": "1"}
    assert format_traceparent(called.trace_context) != OWN
    called = deliver(RecordedSpans(is_child=True), a_task(headers=own))
    assert called.headers == {"Tracestate": "vendor=1", "baggage": "user=7", "X-Own": "1"}
    assert called.trace_context[:16].hex() == "c" * 32


def test_the_attributes_of_a_delivery_are_these_and_no_others() -> None:
    spans = RecordedSpans()
    task = a_task(trace_context=CONTEXT)
    span = begin_delivery(spans, task)
    assert span is not None
    span.note_outcome(Outcome(kind=OutcomeKind.FAILED, reason="status", status=503, message="answered 503"))
    span.note_settle(SettleTarget.ERROR, is_settled=True)
    span.end(is_put_back=False)
    [recorded] = spans.ended
    assert recorded.attributes == {
        "messaging.system": "later",
        "messaging.destination.name": "order",
        "messaging.message.id": task.id,
        "messaging.operation.type": "send",
        "server.address": "shop.example",
        "http.response.status_code": 503,
        "later.attempt": 1,
        "later.due_at": "2027-01-15T08:00:00.000Z",
        "later.lateness_ms": 7,
        "later.held": "no",
        "later.verdict": "error",
    }
    assert recorded.events == ["claim", "reply", "settle"]
    assert (recorded.status, recorded.description) == ("ERROR", None)


def test_nothing_that_fails_here_is_noticed_outside() -> None:
    class BrokenTracer:
        def start_span(self, *arguments: Any, **named: Any) -> Any:
            raise RuntimeError("broken")

    recorder = SpanRecorder(cast(Tracer, BrokenTracer()), share=1.0, is_child=False, now_ns=lambda: 0)
    span, task = recorder.begin_create(b"", is_kept=True), a_task()
    assert span.join(task) is task
    span.end()
    begun = recorder.begin_delivery(task, attempt=1, due_at=0, late_ms=0, held=Held.NO, host="", claimed_ns=0)
    assert begun is None


@each_case(
    "topic", ["a/b", "../x", "%2F", "<img src=x onerror=alert(1)>", "\u202ertl", "\U0001f525", "\n\t\x1b[2J", "é" * 127]
)
def test_any_topic_can_be_exported(topic: str) -> None:
    spans = RecordedSpans()
    create(spans, task := a_task(topic=topic))
    deliver(spans, task)
    assert [span.name for span in spans.ended] == [f"create {topic}", f"deliver {topic}"]
    assert spans.encode().count(topic.encode()) == 4
