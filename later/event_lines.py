"""Log lines of events that come by the thousand each second, such as requests.

structlog's processors take about half as much CPU for such an event as the request itself. These events hold only
numbers and words that `later` chose, so there is nothing to hide or to escape. Their lines are formatted together, and
written at once, some milliseconds later.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Protocol

import msgspec

from later.core.clock import rfc3339

_encode = msgspec.json.Encoder().encode
FLUSH_AFTER_S = 0.05
"""How long a line waits for others: a write of each turn of the event loop would take as long as all else."""
_EVENT_WIDTH, _LEVEL_WIDTH = 30, 9
"""The columns of structlog's output for people, which these lines stand among."""


class Stream(Protocol):
    """A stream of text that never raises."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class EventLines:
    """Writes events to a stream, once it is configured."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._format = _format_json
        self._least = logging.INFO
        self._process = dict[str, object]()
        self._waiting: list[tuple[float, dict[str, object]]] = []
        atexit.register(self.flush)

    def configure(self, stream: Stream, format: str, level: str, process: int | None) -> None:
        """Write to this stream in a format (`console` or `json`), from a level on, with the number of the process."""
        self._stream = stream
        self._format = _format_json if format == "json" else _format_for_people
        self._least = logging.getLevelNamesMapping()[level.upper()]
        self._process = {} if process is None else {"process": process}

    def add(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        """Add an event. Its values must be numbers, or text that is printable and no secret."""
        if level < self._least:
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)
        name = logging.getLevelName(level).lower()
        self._waiting.append((time.time(), {**fields, "event": event, "level": name, **self._process}))

    def flush(self) -> None:
        """Write what was added."""
        waiting, self._waiting = self._waiting, []
        if waiting and self._stream is not None:
            self._stream.write("".join([self._format(at, event) for at, event in waiting]))
            self._stream.flush()


def _format_json(at: float, event: dict[str, object]) -> str:
    event["timestamp"] = rfc3339(int(at * 1000))
    return _encode(event).decode() + "\n"


def _format_for_people(at: float, event: dict[str, object]) -> str:
    name, level = event.pop("event"), event.pop("level")
    fields = " ".join(f"{key}={event[key]}" for key in sorted(event))
    return f"{_local_time(int(at))} [{level!s:{_LEVEL_WIDTH}}] {name!s:{_EVENT_WIDTH}} {fields}\n"


@lru_cache(maxsize=4)
def _local_time(second: int) -> str:
    return datetime.fromtimestamp(second).strftime("%Y-%m-%d %H:%M:%S")  # as structlog writes it


EVENT_LINES = EventLines()
"""Where the events of this process go; `log.setup` configures it."""
