"""`create --from` as a shell sees it: a bar on a terminal, the lines that were not created, what it came to."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from later.cli.batch import Shipment
from later.cli.calls import opened
from later.cli.say import one_line
from later.client import CallFailed, Client

MAX_SHOWN = 20
"""Lines that are told of one by one; of the others there is a count."""


def create_from(client: Client, name: str, *, job: str | None, batch: int, retries: int, as_json: bool) -> int:
    """Send a file's lines and print what they came to; 1 where one was not created. Raises CallFailed."""
    failure = None
    with opened(name) as file, Told(file) as told:
        shipment = Shipment(client, told, job=job, batch=batch, retries=retries, sleep=time.sleep)
        try:
            shipment.send(file)
        except CallFailed as error:
            failure = error
    tally = shipment.tally
    print(json.dumps(msgspec.structs.asdict(tally)) if as_json else tally)
    if failure is not None:
        raise failure
    return 1 if tally.refused or tally.failed else 0


class Told:
    """On standard error. A context: its end takes the bar away and counts what was not shown."""

    def __init__(self, file: BinaryIO) -> None:
        console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
        columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self._bar = self._progress.add_task("", total=_size(file))
        self._not_created = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._not_created > MAX_SHOWN:
            self._say(f"… and {self._not_created - MAX_SHOWN} more lines")

    def read(self, bytes_read: int) -> None:
        self._progress.advance(self._bar, bytes_read)

    def not_created(self, number: int, reason: str) -> None:
        self._not_created += 1
        if self._not_created <= MAX_SHOWN:
            self._say(f"line {number}: {reason}")

    def again(self, reason: str, pause_s: float) -> None:
        self._say(f"{reason}; trying again in {pause_s:g} s")

    def _say(self, text: str) -> None:
        self._progress.console.print(f"later: {one_line(' '.join(text.split()))}")


def _size(file: BinaryIO) -> int | None:
    """None where nobody knows it: a pipe."""
    try:
        facts = os.fstat(file.fileno())
    except OSError:
        return None
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
