"""The export of spans that the options say, if any."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING

import structlog

from later.config import Config
from later.core.errors import ConfigError

if TYPE_CHECKING:
    from later.tracing.provider import SpanProvider

log = structlog.get_logger("later.daemon")


def open_span_provider(config: Config, instance: str) -> SpanProvider | None:
    """Return the provider of the spans of this process, or None without --otlp. Raises ConfigError.

    OpenTelemetry is imported only here: it takes time and memory, and is an extra.
    """
    if config.otlp is None:
        return None
    try:
        provider: SpanProvider = importlib.import_module("later.tracing.provider").open_provider(
            config.otlp,
            instance,
            share=config.trace_sample,
            is_child=config.trace_parent == "child",
            now_ns=time.time_ns,
        )
    except (ValueError, RuntimeError, OSError) as error:  # it also reads variables when it is imported
        raise ConfigError(f"--otlp: the environment of OpenTelemetry (OTEL_…) is wrong: {error}") from error
    if provider.recorder is None:
        log.warning("nothing is traced", reason="OTEL_SDK_DISABLED is set")
    return provider
