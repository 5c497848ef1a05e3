"""A recorder of spans for tests, and the spans that it has recorded, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from later.core.trace_context import format_traceparent, parse_traceparent
from later.tracing.spans import SpanRecorder
from tests.builders import NOW

CALLER = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"
CONTEXT = parse_traceparent(CALLER)


class RecordedSpan(NamedTuple):
    """A span that has ended. Contexts are as in the header `traceparent`, without the flags."""

    name: str
    kind: str
    context: str
    parent: str
    links: list[str]
    attributes: Mapping[str, Any]
    events: list[str]
    status: str
    description: str | None
    text: str
    """All of it, as JSON."""

    @property
    def trace_id(self) -> str:
        return self.context.split("-")[1]


class RecordedSpans:
    """The spans of a recorder. The machine's time is NOW, and goes on by a millisecond each time it is read."""

    def __init__(self, *, share: float = 1.0, is_child: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._now_ms = NOW
        self.recorder = SpanRecorder(
            provider.get_tracer("tests"), share=share, is_child=is_child, now_ns=self._read_clock
        )

    def _read_clock(self) -> int:
        self._now_ms += 1
        return self._now_ms * 1_000_000

    @property
    def ended(self) -> list[RecordedSpan]:
        return [_recorded(span) for span in self._exporter.get_finished_spans()]

    def encode(self) -> bytes:
        """Return the spans that have ended as they are exported."""
        encoded: bytes = encode_spans(self._exporter.get_finished_spans()).SerializeToString()
        return encoded


def _recorded(span: ReadableSpan) -> RecordedSpan:
    assert span.context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert times == sorted(times)
    return RecordedSpan(
        name=span.name,
        kind=span.kind.name,
        context=_ids(span.context),
        parent=_ids(span.parent),
        links=[_ids(link.context) for link in span.links],
        attributes=dict(span.attributes or {}),
        events=[event.name for event in span.events],
        status=span.status.status_code.name,
        description=span.status.description,
        text=span.to_json(),
    )


def _ids(context: SpanContext | None) -> str:
    if context is None:
        return ""
    return ids_of(f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")


def ids_of(context: bytes | str) -> str:
    """Return a context, or its header `traceparent`, without the flags."""
    text = format_traceparent(context) if isinstance(context, bytes) else context
    return text.rpartition("-")[0]
