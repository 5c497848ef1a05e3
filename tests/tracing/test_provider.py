"""The provider: what the environment says, and an exporter that takes nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from later import __version__
from later.tracing import provider
from later.tracing.export_log import LOG_EVERY_S, LOGGER, ExportLog
from later.tracing.provider import SpanProvider, open_provider
from tests.builders import a_task


class FakeExporter(SpanExporter):
    """An exporter that keeps what it gets, or waits while `may_answer` is not set."""

    def __init__(self) -> None:
        self.exported: list[ReadableSpan] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may_answer.wait()
        self.exported += spans
        return SpanExportResult.SUCCESS


def a_provider(exporter: SpanExporter) -> SpanProvider:
    return SpanProvider(lambda: exporter, "host:1:ab", share=1.0, is_child=False, now_ns=time.time_ns)


def make_span(made_by: SpanProvider) -> None:
    assert made_by.recorder is not None
    span = made_by.recorder.begin_create(b"", is_kept=True)
    span.join(a_task())
    span.end()


async def test_a_stop_exports_what_is_left_with_the_resource_of_this_process() -> None:
    exporter = FakeExporter()
    made_by = a_provider(exporter)
    make_span(made_by)
    await made_by.stop()
    [span] = exporter.exported
    assert span.resource.attributes["service.name"] == "later"
    assert span.resource.attributes["service.version"] == __version__
    assert span.resource.attributes["service.instance.id"] == "host:1:ab"


async def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "later-of-shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    exporter = FakeExporter()
    made_by = a_provider(exporter)
    make_span(made_by)
    await made_by.stop()
    attributes = exporter.exported[0].resource.attributes
    assert (attributes["service.name"], attributes["deployment.environment.name"]) == ("later-of-shop", "test")


async def test_a_stop_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "STOP_S", 0.05)
    exporter = FakeExporter()
    exporter.may_answer.clear()
    made_by = a_provider(exporter)
    make_span(made_by)
    with capture_logs() as logs:
        await made_by.stop()
    exporter.may_answer.set()
    assert [event["event"] for event in logs] == ["last traces not exported"]


def test_the_environment_may_disable_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert a_provider(FakeExporter()).recorder is None


@pytest.mark.parametrize(
    ("variable", "named"),
    [("OTEL_BSP_MAX_QUEUE_SIZE", "max_queue_size"), ("OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT")],
)
def test_a_wrong_variable_is_told(variable: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "-1")
    with pytest.raises(ValueError, match=named):
        a_provider(FakeExporter())


async def test_an_exporter_of_a_collector_is_made_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints: list[str] = []

    def build(endpoint: str) -> SpanExporter:
        endpoints.append(endpoint)
        return FakeExporter()

    monkeypatch.setattr(provider, "build_exporter", build)
    for url in ("http://a:4318", "http://a:4318/v1/traces", "http://a/otlp"):
        await open_provider(url, "i", share=1.0, is_child=False, now_ns=time.time_ns).stop()
    assert endpoints == ["http://a:4318/v1/traces", "http://a:4318/v1/traces", "http://a/otlp/v1/traces"]


def test_what_opentelemetry_logs_is_a_warning_once_a_minute() -> None:
    handler = ExportLog()

    def warn(at_s: float, text: str) -> None:
        record = logging.LogRecord(f"{LOGGER}.sdk", logging.ERROR, "", 0, "Failed: %s", (text,), None)
        record.created = at_s
        handler.handle(record)

    with capture_logs() as logs:
        for at_s in (0.0, 1.0, LOG_EVERY_S - 1, LOG_EVERY_S, -3600.0):  # at last, the machine's clock is set back
            warn(at_s, f"at {at_s:g}")
    assert [(event["log_level"], event["reason"], event["not_logged"]) for event in logs] == [
        ("warning", "Failed: at 0", 0),
        ("warning", "Failed: at 60", 2),
        ("warning", "Failed: at -3600", 0),
    ]


@pytest.mark.system
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("later.cli.main, later.cli.program", "opentelemetry"),
        # redis imports the metrics of OpenTelemetry where they are installed
        ("later.daemon.single", "opentelemetry.sdk.trace"),
        ("later.processes.child_main", "opentelemetry.exporter"),
        ("later.processes.supervisor", "later.tracing"),
    ],
)
def test_nothing_imports_opentelemetry_at_its_start(modules: str, absent: str) -> None:
    code = f"import sys, {modules}; print([name for name in sys.modules if name.startswith({absent!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
