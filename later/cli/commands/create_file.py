"""`create --from` as a shell sees it: a bar on a terminal, the lines that were not created, what it came to."""

from __future__ import annotations

import json
import os
import stat
import time
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TimeRemainingColumn

from later.cli.batch import Shipment
from later.cli.progress import ProgressBar
from later.client.http import CallFailed, Client

MAX_SHOWN = 20
"""Lines that are told of one by one; of the others there is a count."""


def create_from(client: Client, file: BinaryIO, *, job: str | None, batch: int, retries: int, as_json: bool) -> int:
    """Send a file's lines and print what they came to; 1 where one was not created. Raises CallFailed."""
    failure = None
    with Told(file) as told:
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
        columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
        self._bar = ProgressBar(_size(file), *columns)
        self._not_created = 0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, traceback)
        if self._not_created > MAX_SHOWN:
            self._bar.notify(f"… and {self._not_created - MAX_SHOWN} more lines")

    def read(self, bytes_read: int) -> None:
        self._bar.advance(bytes_read)

    def not_created(self, number: int, reason: str) -> None:
        self._not_created += 1
        if self._not_created <= MAX_SHOWN:
            self._bar.notify(f"line {number}: {reason}")

    def again(self, reason: str, pause_s: float) -> None:
        self._bar.print_retry(reason, pause_s)


def _size(file: BinaryIO) -> int | None:
    """None where nobody knows it: a pipe."""
    try:
        facts = os.fstat(file.fileno())
    except OSError:
        return None
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
