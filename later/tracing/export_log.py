"""Warnings that OpenTelemetry logs, written to our log once a minute at most: a collector may be away for days."""

from __future__ import annotations

import logging

import structlog

LOGGER = "opentelemetry"
HEADERS_LOGGER = "opentelemetry.util.re"
"""The logger of the parser of headers in the environment. It quotes those that are wrong, which may be secret."""
LOG_EVERY_S = 60.0
MAX_REASON = 500
"""The length of a reason in the log: it may quote what a collector has answered."""

log = structlog.get_logger("later.tracing")


class ExportLog(logging.Handler):
    """A handler of the events that OpenTelemetry logs, most of which say that spans could not be exported."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged_at: float | None = None
        self._not_logged = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == HEADERS_LOGGER:  # the exporter refuses them
            return
        if self._logged_at is not None and 0 <= record.created - self._logged_at < LOG_EVERY_S:
            self._not_logged += 1
            return
        self._logged_at = record.created
        count, self._not_logged = self._not_logged, 0
        try:
            log.warning("traces not exported", reason=record.getMessage()[:MAX_REASON], not_logged=count)
        except Exception:
            self.handleError(record)

    def install(self) -> None:
        """Take all events of OpenTelemetry, and pass none of them on."""
        logger = logging.getLogger(LOGGER)
        logger.handlers[:] = [self]
        logger.propagate = False
