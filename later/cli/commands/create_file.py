"""The command `create --from`: it sends a file of NDJSON in batches, reports lines that failed, and prints a tally.

Each line is sent with an id, a new one if it has none, so that a batch whose answer was lost can be sent again without
creating a task twice. The file is never in memory as a whole.
"""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

import msgspec

from later.cli.progress import byte_bar
from later.client.api_transport import ApiTransport
from later.client.batches import MAX_BODY_BYTES, BatchSender, ItemsUnavailable, RetryPolicy
from later.client.http import ApiClient
from later.core.errors import CallFailed

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_REPORTED_LINES = 20
"""Lines that are reported one by one; the others are counted."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Line(NamedTuple):
    """One line, ready to be sent. `has_new_id` is True if the line had no id and got a new one here."""

    number: int
    text: bytes
    has_new_id: bool


class InvalidLine(NamedTuple):
    """A line that cannot be sent, and the reason."""

    number: int
    reason: str


class FileTally(msgspec.Struct, kw_only=True):
    """The number of a file's lines with each result."""

    created: int = 0
    existing: int = 0
    refused: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.created} created, {self.existing} existing, {self.refused} refused, {self.failed} failed"


def create_from_file(
    client: ApiClient, file: BinaryIO, *, job: str | None, batch: int, retries: int, as_json: bool
) -> int:
    """Send a file's lines and print the tally; return 1 if a line was not created. Raises CallFailed."""
    failure = None
    with FileProgress(file) as progress:
        retry = RetryPolicy(retries, time.sleep, jitter=0, on_retry=progress.report_retry)
        sender = BatchSender(ApiTransport(client, job), retry, batch_size=batch)
        upload = FileUpload(sender, progress)
        try:
            upload.send(file)
        except CallFailed as error:
            failure = error
    tally = upload.tally
    print(json.dumps(msgspec.structs.asdict(tally)) if as_json else tally)
    if failure is not None:
        raise failure
    return 1 if tally.refused or tally.failed else 0


class FileProgress:
    """A file's progress on standard error: a bar on a terminal, and the lines that were not created.

    A context manager. Its end removes the bar and prints how many lines were not reported one by one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._bar = byte_bar(_file_size(file))
        self._not_created = 0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, traceback)
        if self._not_created > MAX_REPORTED_LINES:
            self._bar.notify(f"… and {self._not_created - MAX_REPORTED_LINES} more lines")

    def advance(self, bytes_read: int) -> None:
        self._bar.advance(bytes_read)

    def report_line(self, number: int, reason: str) -> None:
        """Report a line that was not created. The reason may contain control characters."""
        self._not_created += 1
        if self._not_created <= MAX_REPORTED_LINES:
            self._bar.notify(f"line {number}: {reason}")

    def report_retry(self, reason: str, pause_s: float) -> None:
        self._bar.print_retry(reason, pause_s)


class FileUpload:
    """Sends a file's lines and counts their results in `tally`."""

    def __init__(self, sender: BatchSender, progress: FileProgress) -> None:
        self.tally = FileTally()
        self._sender = sender
        self._progress = progress

    def send(self, file: BinaryIO) -> None:
        """Send the whole file.

        Raises:
            CallFailed: A batch cannot be sent. The lines after it were not tried.
        """
        for lines in self._sender.split(self._valid_lines(file), lambda line: line.text):
            try:
                self._send_batch(lines)
            except CallFailed as error:
                where = f"lines {lines[0].number} to {lines[-1].number}"
                raise CallFailed(f"{where}: {error}; the lines after them were not sent", error.status) from error

    def _valid_lines(self, file: BinaryIO) -> Iterator[Line]:
        for line in read_lines(file, self._progress.advance):
            if isinstance(line, Line):
                yield line
            else:
                self._refuse(line.number, line.reason)

    def _send_batch(self, lines: Sequence[Line]) -> None:
        unavailable: dict[int, str] = dict.fromkeys(range(len(lines)), "")
        try:
            for attempt in self._sender.send_batch([line.text for line in lines]):
                result = attempt.result
                # A task under a new id that exists already was created by an attempt whose answer was lost.
                existing = sum(not lines[position].has_new_id for position in result.existing)
                self.tally.existing += existing
                self.tally.created += result.created + len(result.existing) - existing
                for position, error in result.errors.items():
                    self._refuse(lines[position].number, error.reason)
                unavailable = {position: error.reason for position, error in attempt.unavailable.items()}
        except ItemsUnavailable:
            self.tally.failed += len(unavailable)
            for position, reason in unavailable.items():
                self._progress.report_line(lines[position].number, reason)
        except CallFailed:
            self.tally.failed += len(unavailable)
            raise

    def _refuse(self, number: int, reason: str) -> None:
        self.tally.refused += 1
        self._progress.report_line(number, reason)


def read_lines(file: BinaryIO, on_read: Callable[[int], None]) -> Iterator[Line | InvalidLine]:
    """Yield the file's lines that are not blank. `on_read` is called with the number of bytes read."""
    number = 0
    while text := file.readline(MAX_BODY_BYTES + 1):
        number += 1
        on_read(len(text))
        if len(text) > MAX_BODY_BYTES and not text.endswith(b"\n"):
            while not text.endswith(b"\n") and (text := file.readline(MAX_BODY_BYTES)):
                on_read(len(text))
            yield InvalidLine(number, "the line is too long")
            continue
        text = text.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else text.strip()
        if text:
            yield parse_line(number, text)


def parse_line(number: int, text: bytes) -> Line | InvalidLine:
    """Return the line, with a new id if it has none."""
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return InvalidLine(number, f"expected a JSON object: {error}")
    if bytes(fields.get("id", b"null")) != b"null":
        return Line(number, text, has_new_id=False)
    fields["id"] = msgspec.Raw(b'"%s"' % str(uuid.uuid4()).encode())
    return Line(number, _encode(fields), has_new_id=True)


def _file_size(file: BinaryIO) -> int | None:
    """Return the size in bytes, or None if it is unknown, as of a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
