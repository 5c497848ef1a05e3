"""How what happens is printed: for a person or for a machine, on standard error, and never with a secret in it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

LIBRARIES_LEVEL = logging.WARNING
"""What aiohttp and asyncio say below this is about their own affairs."""
HIDDEN = "***"

_SECRET = re.compile(r"content|headers?|body|payload|authorization|cookies?|.*(password|secret|token)", re.IGNORECASE)
_URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_LONGEST = 10_000  # characters of one value


def setup(format: str, level: str, stream: TextIO | None = None, process: int | None = None) -> None:
    """Print from now on in this format (`console` or `json`), from this level up, to the stream (standard error).

    Each event carries the number of the process, if it has one. To be called once, before the first event: loggers
    keep what they found.
    """
    out = _Unbreakable(stream or sys.stderr)
    first, last = _processors(format, colors=out.isatty())
    if process is not None:
        first.insert(0, _numbered(process))
    structlog.configure(
        processors=[structlog.processors.add_log_level, *first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type] # it writes and flushes, no more
        cache_logger_on_first_use=True,
    )
    _take_over_libraries(out, first, last, level)


def _processors(format: str, *, colors: bool) -> tuple[list[Processor], list[Processor]]:
    """What an event of ours shares with one of a library, and what prints it."""
    if format == "json":
        first: list[Processor] = [structlog.processors.TimeStamper(fmt="iso", utc=True)]
        return [*first, *_SAFE], [structlog.processors.JSONRenderer()]
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    first = [structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False)]
    return [*first, *_SAFE], [_printable, console]


def _numbered(process: int) -> Processor:
    def add_number(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["process"] = process
        return event

    return add_number


def _take_over_libraries(out: _Unbreakable, first: list[Processor], last: list[Processor], level: str) -> None:
    """Standard logging, in the same format to the same place."""
    handler: logging.StreamHandler[_Unbreakable] = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, *first],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LIBRARIES_LEVEL, logging.getLevelNamesMapping()[level.upper()]))


class _Unbreakable:
    """A stream that loses what cannot be written: a full disk below the log must not stop deliveries."""

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
    """Hide what must never be logged: values by their key, and every URL's userinfo and query, wherever it stands."""
    for key, value in event.items():
        event[key] = _hidden(key, value)
    return event


def _hidden(key: object, value: object) -> object:
    if isinstance(key, str) and _SECRET.fullmatch(key):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(inner): _hidden(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(None, item) for item in value]
    text = str(value)
    if "://" in text:
        text = _URL.sub(lambda url: bare_url(url[0]), text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def bare_url(url: str) -> str:
    """A URL without user:password@, query and fragment."""
    scheme, _, rest = url.partition("://")
    place = re.split("[?#]", rest, maxsplit=1)[0]
    authority, slash, path = place.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _printable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """What receivers and callers wrote must not move the cursor of whoever reads the log."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key in ("exception", "stack") else [value]
            event[key] = "\n".join(line if line.isprintable() else repr(line)[1:-1] for line in lines)
    return event


_SAFE: list[Processor] = [
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,  # as text, without local variables: they hold contents
    hide_secrets,
]
