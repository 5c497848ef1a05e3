"""Context that tasks carry from where they are created to their handlers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import pytest

from later.handlers.context import (
    MAX_CONTEXT_BYTES,
    capture_context,
    restored_context,
    structlog_context,
    trace_context,
    variables,
)

REQUEST: ContextVar[Any] = ContextVar("request")
TENANT: ContextVar[str] = ContextVar("tenant")


class Fixed:
    """A part of the context with these values."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def capture(self) -> Mapping[str, str]:
        return self.values

    def restore(self, values: Mapping[str, str]) -> AbstractContextManager[None]:
        return nullcontext()


def test_values_that_are_no_text_are_captured_as_text_and_missing_ones_are_left_out() -> None:
    REQUEST.set(17)
    assert capture_context([variables(request=REQUEST, tenant=TENANT)]) == {"request": "17"}
    assert capture_context([Fixed({"number": 1.5, "nothing": None})]) == {"number": "1.5", "nothing": "None"}


def test_what_does_not_fit_is_left_out_with_a_warning_and_does_not_cost_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    huge = Fixed({"huge": "x" * MAX_CONTEXT_BYTES})
    captured = capture_context([Fixed({"a": "1"}), huge, Fixed({"b": "2"})], {"own": "3"})
    assert captured == {"a": "1", "b": "2", "own": "3"}
    assert "the context has more than 4096 bytes: huge left out" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert capture_context([], {"own": "x" * MAX_CONTEXT_BYTES}) == {"own": "x" * MAX_CONTEXT_BYTES}


def test_own_values_replace_captured_ones() -> None:
    assert capture_context([Fixed({"a": "captured"})], {"a": "own"}) == {"a": "own"}


def test_named_values_of_structlog_are_carried_and_put_back() -> None:
    structlog = pytest.importorskip("structlog")
    part = structlog_context("request_id", "tenant")
    with structlog.contextvars.bound_contextvars(request_id=7, secret="s"):
        assert capture_context([part]) == {"request_id": "7"}
        with restored_context([part], {"request_id": "8", "tenant": "t", "secret": "x"}):
            assert structlog.contextvars.get_contextvars() == {"request_id": "8", "tenant": "t", "secret": "s"}
        assert structlog.contextvars.get_contextvars() == {"request_id": 7, "secret": "s"}


def test_the_trace_of_opentelemetry_is_carried_and_put_back() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        captured = capture_context([trace_context()])
    assert captured == {"traceparent": f"00-{1:032x}-{2:016x}-01"}
    assert trace.get_current_span().get_span_context().span_id == 0
    with restored_context([trace_context()], captured):
        assert trace.get_current_span().get_span_context().span_id == 2
    assert trace.get_current_span().get_span_context().span_id == 0
