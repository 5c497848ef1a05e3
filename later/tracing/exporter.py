"""The exporter of spans to a collector by OTLP over HTTP, as the environment says."""

from __future__ import annotations

import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS
from opentelemetry.util.re import parse_env_headers
from requests import RequestException, Response, Session

MAX_ANSWER_BYTES = 64 * 1024
"""How much of a collector's answer is read. It says next to nothing."""


def build_exporter(endpoint: str) -> OTLPSpanExporter:
    """Return the exporter to the collector at `endpoint`.

    Raises:
        ValueError: a variable in the environment is wrong.
    """
    check_headers()
    session = Session()
    session.hooks["response"] = [check_answer]
    return OTLPSpanExporter(endpoint, session=session)


def check_headers() -> None:
    """Raise ValueError if a header of the environment is wrong, without its value, which may be a key of the collector.

    OpenTelemetry would leave the header out, or fail with each export, and log the value.
    """
    for variable in (OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS):
        for number, header in enumerate(os.environ.get(variable, "").split(","), 1):
            read = parse_env_headers(header, liberal=True)
            if header.strip() and not (read and all(value.isprintable() for value in read.values())):
                raise ValueError(f"{variable}: header {number}: expected NAME=VALUE, percent-encoded")


def check_answer(response: Response, *_: object, **__: object) -> None:
    """Read a collector's answer, and refuse a redirect: the exporter takes it for a success, and the spans are lost.

    Raises:
        RequestException: it is a redirect, or too long.
    """
    if 300 <= response.status_code < 400:
        response.close()
        raise RequestException(f"redirected ({response.status_code}): give --otlp the URL that the collector has")
    if len(response.raw.read(MAX_ANSWER_BYTES + 1, decode_content=False)) > MAX_ANSWER_BYTES:
        response.close()
        raise RequestException(f"answered with more than {MAX_ANSWER_BYTES // 1024} KiB")
