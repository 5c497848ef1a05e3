"""The exporter: headers from the environment, and collectors that answer what they should not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from structlog.testing import capture_logs

from later.tracing.export_log import MAX_REASON, ExportLog
from later.tracing.exporter import MAX_ANSWER_BYTES, build_exporter
from later.tracing.provider import open_provider
from tests.cases import each_case

SECRET = "canary-of-a-key"


@contextmanager
def run_collector(status: int, headers: Mapping[str, str], body: bytes, reason: str | None = None) -> Iterator[str]:
    """Run a collector that answers each export so; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status, reason)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except ConnectionError:  # the exporter has read enough
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def a_span() -> ReadableSpan:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("tests").start_span("deliver order")
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


def export(status: int, headers: Mapping[str, str], body: bytes, reason: str | None = None) -> tuple[bool, str]:
    """Export a span to a collector that answers so; return whether it was a success, and the reason in the log."""
    ExportLog().install()
    with run_collector(status, headers, body, reason) as url, capture_logs() as logs:
        exporter = build_exporter(url)
        result = exporter.export([a_span()])
        exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry's
    return result is SpanExportResult.SUCCESS, " ".join(event["reason"] for event in logs)


@each_case("body", [b"", b"\n\x00"])
def test_an_answer_is_a_success_whether_it_says_how_long_it_is_or_not(body: bytes) -> None:
    assert export(200, {"Content-Length": str(len(body))}, body) == (True, "")
    assert export(200, {}, body) == (True, "")


@each_case("status", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_that_says_what_to_do(status: int) -> None:
    is_success, reason = export(status, {"Location": "https://elsewhere.example/", "Content-Length": "0"}, b"")
    assert (is_success, f"redirected ({status}): give --otlp the URL" in reason) == (False, True)


@each_case("headers", [{}, {"Content-Length": str(10 * MAX_ANSWER_BYTES)}])
def test_an_answer_without_an_end_is_not_read(headers: Mapping[str, str]) -> None:
    is_success, reason = export(200, headers, b"x" * (10 * MAX_ANSWER_BYTES))
    assert (is_success, "answered with more than 64 KiB" in reason) == (False, True)


def test_a_long_answer_does_not_fill_the_log() -> None:
    is_success, reason = export(400, {"Content-Length": "0"}, b"", reason="x" * 10_000)
    assert (is_success, "code: 400" in reason, len(reason)) == (False, True, MAX_REASON)


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize("header", [f"api-key: {SECRET}", f'api-key="{SECRET}"', f"api-key=%0A{SECRET}%0Ax"])
def test_a_wrong_header_is_told_and_its_value_is_not(
    variable: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"x-tenant=shop,{header}")
    with capture_logs() as logs, pytest.raises(ValueError, match=f"{variable}: header 2: expected") as raised:
        open_provider("http://127.0.0.1:9", "i", share=1.0, is_child=False, now_ns=time.time_ns)
    assert SECRET not in f"{raised.value} {logs}"


@each_case("headers", ["", " , ", "api-key=a%20b", "api-key=a b,Authorization=Bearer%20abc==, x-tenant=shop"])
def test_headers_that_opentelemetry_takes_are_taken(headers: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
        exporter = build_exporter("http://127.0.0.1:9/v1/traces")
        exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry's
