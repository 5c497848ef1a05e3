"""Traced deliveries: each attempt has a span, its receiver continues it, and metrics lead to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Tracer

from later.core.errors import LaterError, StoreDown
from later.core.origin import Origin
from later.core.policy import Policy
from later.core.retry import Outcome, OutcomeKind
from later.core.task import Task, headers_of_call
from later.delivery.http_client import LocalFault
from later.tracing.spans import SpanRecorder
from tests.builders import NOW, a_task
from tests.store_fixture import StoreFixture
from tests.tracing.recorded_spans import CALLER, CONTEXT, RecordedSpans, ids_of
from tests.worker.workers import DONE, FAILED, GONE, FakeSender, ManualWorker

SECRETS = ("canary-content", "canary-header", "canary-query", "canary-path", "canary-context", "canary-message")


class TracedSender(FakeSender):
    """A sender that records the header `traceparent` of each call; "" if it has none."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__(*answers)
        self.sent: list[str] = []

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        self.sent.append(headers_of_call(task).get("traceparent", ""))
        return await super().send(task, attempt, failures, now, policy)


async def test_each_attempt_has_a_span_with_a_link_to_the_create_which_its_receiver_gets(store: StoreFixture) -> None:
    await store.tasks.create([a_task(trace_context=CONTEXT)])
    spans, sender = RecordedSpans(), TracedSender(FAILED)
    worker = ManualWorker(store, sender, span_recorder=spans.recorder)
    await worker.work()
    await worker.work_until(NOW + 20_000, 10_000)
    first, second = spans.ended
    assert [ids_of(sent) for sent in sender.sent] == [first.context, second.context]
    assert first.links == second.links == [ids_of(CALLER)]
    assert len({first.trace_id, second.trace_id, "a" * 32}) == 3
    assert [(span.attributes["later.attempt"], span.attributes["later.verdict"]) for span in spans.ended] == [
        (1, "error"),
        (2, "done"),
    ]
    assert [span.events for span in spans.ended] == [["claim", "reply", "settle"]] * 2
    assert [span.status for span in spans.ended] == ["ERROR", "UNSET"]


async def test_a_redriven_task_is_linked_to_its_create(store: StoreFixture) -> None:
    await store.tasks.create([task := a_task(trace_context=CONTEXT)])
    spans = RecordedSpans()
    worker = ManualWorker(store, TracedSender(GONE), span_recorder=spans.recorder)
    await worker.work()
    await store.edits.redrive([task.id], worker.at)
    await worker.work()
    assert [(span.links, span.attributes["later.verdict"]) for span in spans.ended] == [
        ([ids_of(CALLER)], "dead"),
        ([ids_of(CALLER)], "done"),
    ]


async def test_a_delivery_that_is_not_sampled_sends_what_was_kept_and_has_no_span(store: StoreFixture) -> None:
    await store.tasks.create([a_task()])
    spans, sender = RecordedSpans(share=0.0), TracedSender()
    worker = ManualWorker(store, sender, span_recorder=spans.recorder)
    await worker.work()
    assert (sender.sent, spans.ended) == ([""], [])


async def test_no_span_says_what_may_be_secret(store: StoreFixture) -> None:
    content, header, query, path, context, message = SECRETS
    task = a_task(
        callback=f"http://127.0.0.1:8888/{path}?q={query}",
        content=content,
        headers={"Authorization": header},
        context={"tenant": context},
        max_retry=0,
    )
    await store.tasks.create([task])
    spans = RecordedSpans()
    answer = Outcome(kind=OutcomeKind.FAILED, reason="reply", message=message)
    await ManualWorker(store, TracedSender(answer), span_recorder=spans.recorder).work()
    [span] = spans.ended
    assert span.attributes["server.address"] == "127.0.0.1"
    assert [secret for secret in SECRETS if secret in span.text] == []
    assert json.loads(span.text)["name"] == "deliver order"


async def test_a_call_that_could_not_be_made_is_put_back(store: StoreFixture) -> None:
    class Faulty(FakeSender):
        async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
            raise LocalFault("no descriptor")

    await store.tasks.create([a_task()])
    spans = RecordedSpans()
    await ManualWorker(store, Faulty(), span_recorder=spans.recorder).work()
    assert [(s.attributes["later.verdict"], s.status, s.events) for s in spans.ended] == [
        ("put_back", "ERROR", ["claim"])
    ]


async def test_a_delivery_that_a_stop_cancels_is_put_back(store: StoreFixture) -> None:
    await store.tasks.create([a_task()])
    spans, sender = RecordedSpans(), TracedSender()
    sender.may_answer.clear()
    worker = ManualWorker(store, sender, span_recorder=spans.recorder)
    await worker.tick()
    await asyncio.wait_for(sender.called.wait(), 10)
    await worker.deliveries.drain(0)
    assert [span.attributes["later.verdict"] for span in spans.ended] == ["put_back"]


async def test_a_settle_that_finds_another_lease_is_told(store: StoreFixture) -> None:
    await store.tasks.create([task := a_task()])
    spans, sender = RecordedSpans(), TracedSender()
    sender.may_answer.clear()
    worker = ManualWorker(store, sender, span_recorder=spans.recorder)
    await worker.tick()
    await asyncio.wait_for(sender.called.wait(), 10)
    await store.edits.delete([task.id])
    sender.may_answer.set()
    await worker.deliveries.drain(60)
    assert [span.events for span in spans.ended] == [["claim", "reply", "settle lost"]]


async def test_a_settle_that_the_store_never_answers_is_no_event(
    store: StoreFixture,
) -> None:
    await store.tasks.create([a_task()])
    spans = RecordedSpans()
    worker = ManualWorker(store, TracedSender(), span_recorder=spans.recorder)

    async def be_down(settlements: object) -> list[bool | LaterError]:
        worker.at = NOW + 60_000  # its lease is over
        raise StoreDown("the store is gone")

    worker.store.tasks.settle = be_down  # type: ignore[method-assign]  # the store of this test alone
    await worker.work()
    assert [(span.events, "later.verdict" in span.attributes) for span in spans.ended] == [(["claim", "reply"], False)]


async def test_no_fault_of_a_span_disturbs_its_delivery(store: StoreFixture) -> None:
    class FaultySpan(NonRecordingSpan):
        """A span whose methods fail after `calls_left` calls."""

        calls_left = 0

        def __getattribute__(self, name: str) -> Any:
            if name in ("add_event", "set_attribute", "set_status", "end", "get_span_context"):
                FaultySpan.calls_left -= 1
                if FaultySpan.calls_left < 0:
                    raise RuntimeError("the span is broken")
            return super().__getattribute__(name)

    class FaultyTracer:
        def start_span(self, *arguments: Any, **named: Any) -> Span:
            return FaultySpan(SpanContext(1, 1, is_remote=False))

    recorder = SpanRecorder(cast(Tracer, FaultyTracer()), share=1.0, is_child=False, now_ns=lambda: NOW)
    for calls_left in range(12):
        await store.tasks.create([task := a_task(trace_context=CONTEXT)])
        sender, FaultySpan.calls_left = TracedSender(FAILED), calls_left
        worker = ManualWorker(store, sender, span_recorder=recorder)
        await worker.work()
        await worker.work_until(NOW + 20_000, 10_000)
        assert (await worker.is_gone(task), len(sender.sent), worker.deliveries.is_idle) == (True, 2, True)
        assert worker.metrics.registry.get_sample_value("later_delivery_faults_total") == 0


async def test_lateness_and_duration_have_the_trace_as_their_exemplar(store: StoreFixture) -> None:
    await store.tasks.create([a_task(), a_task()])
    spans = RecordedSpans()
    worker = ManualWorker(store, TracedSender(DONE), span_recorder=spans.recorder)
    await worker.work()
    text = worker.metrics.exposition("application/openmetrics-text").text
    examples = [line for line in text.splitlines() if " # {" in line]
    assert {line.partition("{")[0] for line in examples} == {
        "later_lateness_seconds_bucket",
        "later_delivery_duration_seconds_bucket",
    }
    assert all(any(f'trace_id="{span.trace_id}"' in line for span in spans.ended) for line in examples)
    assert "trace_id" not in worker.metrics.exposition().text


async def test_the_host_of_a_delivery_is_that_of_its_callback(store: StoreFixture) -> None:
    task = a_task(callback="http://[::1]:8888/x")
    await store.tasks.create([task])
    spans = RecordedSpans()
    await ManualWorker(store, TracedSender(), span_recorder=spans.recorder).work()
    assert [span.attributes["server.address"] for span in spans.ended] == [Origin.of(task.callback).host]
