"""The exporter: what headers the environment may say."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from later.core.errors import ConfigError
from later.tracing.exporter import build_exporter
from later.tracing.provider import open_provider
from tests.cases import each_case

SECRET = "canary-of-a-key"


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize("header", [f"api-key: {SECRET}", f'api-key="{SECRET}"', f"api-key=%0A{SECRET}%0Ax"])
def test_a_wrong_header_is_told_and_its_value_is_not(
    variable: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"x-tenant=shop,{header}")
    with capture_logs() as logs, pytest.raises(ConfigError, match=f"{variable}: header 2: expected") as raised:
        open_provider("http://127.0.0.1:9", "i", share=1.0, is_child=False, now_ns=time.time_ns)
    assert SECRET not in f"{raised.value} {logs}"


@each_case("headers", ["", " , ", "api-key=a%20b", "api-key=a b,Authorization=Bearer%20abc==, x-tenant=shop"])
def test_headers_that_opentelemetry_takes_are_taken(headers: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
        exporter = build_exporter("http://127.0.0.1:9/v1/traces")
        exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry's
