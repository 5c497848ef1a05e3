"""The exporter: what sends spans to a collector by OTLP over HTTP, as the environment says."""

from __future__ import annotations

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS
from opentelemetry.util.re import parse_env_headers


def build_exporter(endpoint: str) -> OTLPSpanExporter:
    """Return the exporter to the collector at `endpoint`.

    Raises:
        ValueError: a variable in the environment is wrong.
    """
    check_headers()
    return OTLPSpanExporter(endpoint)


def check_headers() -> None:
    """Raise ValueError if a header of the environment is wrong, without its value, which may be a key of the collector.

    OpenTelemetry would leave the header out, or fail with each export, and log the value.
    """
    for variable in (OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS):
        for number, header in enumerate(os.environ.get(variable, "").split(","), 1):
            read = parse_env_headers(header, liberal=True)
            if header.strip() and not (read and all(value.isprintable() for value in read.values())):
                raise ValueError(f"{variable}: header {number}: expected NAME=VALUE, percent-encoded")
