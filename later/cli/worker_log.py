"""The log of `later run` on standard error, where the application does not set up another."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from later.cli.console import printable


def set_up_log(format: str, level: str, process: int | None = None) -> None:
    """Write records of this level and above in this format (`console` or `json`) to standard error.

    Each carries the number of the process, if there is one. Nothing is changed if the application has set up its own.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if format == "json" else LineFormatter(process))
    root.addHandler(handler)
    root.setLevel(level.upper())


class LineFormatter(logging.Formatter):
    """Formats a record as one line for people, and below it the traceback, if there is one."""

    def __init__(self, process: int | None) -> None:
        number = "" if process is None else f"[{process}]"
        super().__init__(f"%(asctime)s %(levelname)-7s %(name)s{number}: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        event = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        exception = {} if record.exc_info is None else {"exception": self.formatException(record.exc_info)}
        return json.dumps({**event, **self._process, **exception, "timestamp": at})
