"""The provider of OpenTelemetry. It makes spans, and exports them to a collector by OTLP over HTTP.

An exporter works in a thread of its own, from a queue with an end: while the collector is away or slow, spans are lost,
and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import structlog
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from later import __version__
from later.tracing.export_log import ExportLog
from later.tracing.exporter import build_exporter
from later.tracing.spans import SpanRecorder

TRACES_PATH = "/v1/traces"
STOP_S = 1.0
"""How long a stop waits for the last spans to be exported."""
SWITCH_INTERVAL_S = 0.001
"""How long the thread that encodes spans may keep the event loop from running: by Python's default, five times that."""

log = structlog.get_logger("later.tracing")


class SpanProvider:
    """The provider of one process. `recorder` makes its spans; it is None if the environment disables all."""

    def __init__(
        self,
        build_exporter: Callable[[], SpanExporter],
        instance: str,
        *,
        share: float,
        is_child: bool,
        now_ns: Callable[[], int],
    ) -> None:
        """`instance` names the process. The rest is as for `SpanRecorder`.

        Raises:
            ValueError, RuntimeError, OSError: a variable of OpenTelemetry in the environment is wrong.
        """
        ExportLog().install()
        own = {"service.name": "later", "service.version": __version__, "service.instance.id": instance}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())  # the environment's are the operator's
        self.recorder: SpanRecorder | None = None
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        tracer = self._provider.get_tracer("later", __version__)
        if not isinstance(tracer, Tracer):
            return
        self._provider.add_span_processor(BatchSpanProcessor(build_exporter()))
        self.recorder = SpanRecorder(tracer, share=share, is_child=is_child, now_ns=now_ns)

    async def stop(self) -> None:
        """Export the last spans, and wait for that no longer than `STOP_S`."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            try:
                self._provider.shutdown()
            finally:
                with suppress(RuntimeError):  # the loop has been closed meanwhile
                    loop.call_soon_threadsafe(stopped.set)

        Thread(target=shut_down, name="later-traces-end", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_S):
                await stopped.wait()
        except TimeoutError:
            log.warning("last traces not exported", reason=f"the collector did not take them within {STOP_S:g} s")


def open_provider(url: str, instance: str, *, share: float, is_child: bool, now_ns: Callable[[], int]) -> SpanProvider:
    """Return the provider that exports to the collector at `url`.

    Raises:
        ValueError, RuntimeError, OSError: a variable of OpenTelemetry in the environment is wrong.
    """
    endpoint = url if url.endswith(TRACES_PATH) else url + TRACES_PATH
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return SpanProvider(lambda: build_exporter(endpoint), instance, share=share, is_child=is_child, now_ns=now_ns)
