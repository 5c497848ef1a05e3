"""A collector of traces in a thread of the test's process: it takes spans by OTLP over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

EXPORTS_AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""The environment of a daemon that does not wait for more spans before it exports some."""


class CollectedSpan(NamedTuple):
    """A span as it was exported."""

    began_ns: int
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    """The `traceparent` of each, without the flags."""
    attributes: Mapping[str, str | int]
    events: list[str]

    @property
    def context(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}"


class Collector:
    """A collector. With `hangs`, it never answers."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[CollectedSpan] = []
        self.resources: list[dict[str, str | int]] = []
        self.bodies: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: set[str] = set()
        self.hangs = False
        self.stop = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[CollectedSpan]:
        """Return the spans of this name in the order in which they began: each process exports its own when it will."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_ns)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.paths.add(request.path)
        body = await request.read()
        if self.hangs:
            await self.stop.wait()
        exported = ExportTraceServiceRequest.FromString(body)
        self.bodies.append(body)
        self.headers.append(request.headers)
        for of_resource in exported.resource_spans:
            self.resources.append({pair.key: _value(pair.value) for pair in of_resource.resource.attributes})
            self.spans += [_collected(span) for scope in of_resource.scope_spans for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")


def _collected(span: Span) -> CollectedSpan:
    return CollectedSpan(
        began_ns=span.start_time_unix_nano,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=[f"00-{link.trace_id.hex()}-{link.span_id.hex()}" for link in span.links],
        attributes={pair.key: _value(pair.value) for pair in span.attributes},
        events=[event.name for event in span.events],
    )


def _value(value: AnyValue) -> str | int:
    return value.string_value if value.HasField("string_value") else value.int_value


@contextmanager
def run_collector(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """Run a collector on a free port, with TLS if there is a context."""
    collector, up, loop = Collector(), threading.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(collector, up, tls)))
    thread.start()
    try:
        assert up.wait(10), "the collector does not start"
        yield collector
    finally:
        loop.call_soon_threadsafe(collector.stop.set)
        thread.join()
        loop.close()


async def _serve(collector: Collector, up: threading.Event, tls: ssl.SSLContext | None) -> None:
    runner = web.ServerRunner(web.Server(collector.handle, access_log=None), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    collector.port = runner.addresses[0][1]
    up.set()
    try:
        await collector.stop.wait()
    finally:
        await runner.cleanup()
