"""The export of spans is opened as the options say, or refused in words."""

from __future__ import annotations

import sys

import pytest

from later.config import Config, load
from later.core.errors import ConfigError
from later.daemon.span_export import open_span_provider


def config(**flags: str) -> Config:
    return load("worker", flags, {})


def test_without_a_collector_nothing_of_opentelemetry_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "later.tracing.provider", None)  # importing it would fail
    assert open_span_provider(config(), "host:1:ab") is None


def test_a_wrong_variable_of_opentelemetry_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigError, match=r"--otlp: the environment of OpenTelemetry .* max_queue_size"):
        open_span_provider(config(otlp="http://127.0.0.1:9"), "host:1:ab")
