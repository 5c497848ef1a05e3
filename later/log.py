"""Log output on standard error, for people or for machines, without any secret."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from later.core.audit_event import AUDIT_LOGGER
from later.event_lines import EVENT_LINES

LIBRARIES_LEVEL = logging.WARNING
"""Events of aiohttp and asyncio below this level concern only themselves."""
HIDDEN = "***"

_SECRET = re.compile(
    r"content|context|headers?|body|payload|authorization|cookies?|.*(password|secret|token)", re.IGNORECASE
)
_PLAIN_TYPES = frozenset({type(None), bool, int, float})
_URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_MAX_VALUE_CHARS = 10_000


def setup(format: str, level: str, stream: TextIO | None = None, process: int | None = None) -> None:
    """Write events of this level and above in this format (`console` or `json`) to the stream, or standard error.

    Each event carries the number of the process, if there is one. Call it once, before the first event: loggers keep
    the configuration that they found.
    """
    out = _SafeStream(stream or sys.stderr)
    EVENT_LINES.configure(out, format, level, process)
    shared: list[Processor] = [*_SAFETY_PROCESSORS]  # for our own events and for those of libraries
    if format == "json":
        shared.insert(0, structlog.processors.TimeStamper(fmt="iso", utc=True))
        renderers: list[Processor] = [structlog.processors.JSONRenderer()]
    else:
        shared.insert(0, structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False))
        console = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
        renderers = [escape_unprintable, console]
    if process is not None:

        def add_process(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
            event["process"] = process
            return event

        shared.insert(0, add_process)
    structlog.configure(
        processors=[structlog.processors.add_log_level, *shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type] # it only writes and flushes
        cache_logger_on_first_use=True,
    )
    handler: logging.StreamHandler[_SafeStream] = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, *shared],
        )
    )
    _setup_audit_log(out, process)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LIBRARIES_LEVEL, logging.getLevelNamesMapping()[level.upper()]))


def setup_within_application() -> None:
    """Pass events on to `logging`, where an application's own go, unless it has configured structlog itself."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                *_SAFETY_PROCESSORS,
                escape_unprintable,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )


def _setup_audit_log(out: _SafeStream, process: int | None) -> None:
    """Write audit events as JSON, whatever the format and the level of the others: a program reads them."""
    handler: logging.StreamHandler[_SafeStream] = logging.StreamHandler(out)
    handler.setFormatter(_AuditFormatter(process))
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.handlers[:] = [handler]
    audit.setLevel(logging.INFO)
    audit.propagate = False


class _AuditFormatter(logging.Formatter):
    """Formats an audit event, which is a mapping, as one line of JSON without secrets."""

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        fields = record.msg if isinstance(record.msg, Mapping) else {"event": record.getMessage()}
        event = {**fields, "logger": record.name, "level": "info", **self._process, "timestamp": at}
        return json.dumps(hide_secrets(None, "info", event))


class _SafeStream:
    """A stream that drops what cannot be written: a full disk under the log must not stop deliveries."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def hide_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Hide what must never be logged: values by their key, and userinfo and query of every URL in any value."""
    for key, value in event.items():
        event[key] = _hide(key, value)
    return event


@lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    """Return True if what has this name is hidden."""
    return _SECRET.fullmatch(key) is not None


def _hide(key: object, value: object) -> object:
    if isinstance(key, str) and _is_secret(key):
        return HIDDEN
    if type(value) in _PLAIN_TYPES:
        return value
    if type(value) is not str:  # most are, and to find out that one is no mapping takes longer than all else
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {str(inner): _hide(inner, item) for inner, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_hide(None, item) for item in value]
    text = str(value)
    if "://" in text:
        text = _URL.sub(lambda url: bare_url(url[0]), text)
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"


def bare_url(url: str) -> str:
    """Return a URL without user:password@, query and fragment."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def escape_unprintable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape control characters: texts of receivers and callers must not move a terminal's cursor."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key in ("exception", "stack") else [value]
            event[key] = "\n".join(line if line.isprintable() else repr(line)[1:-1] for line in lines)
    return event


_SAFETY_PROCESSORS: list[Processor] = [
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,  # as text, without local variables: they hold contents
    hide_secrets,
]
