"""`create --from`: a file of NDJSON, sent in batches, and again where that is safe.

Every line goes out with an id, a new one where it has none: so a batch whose answer was lost can be sent again without
making anything twice. The file is never in memory as a whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from later.client.http import (
    AGAIN,
    BATCH_BYTES,
    MAX_LINE_BYTES,
    CallFailed,
    Client,
    pause_before_again,
    results_of,
)

BOM = b"\xef\xbb\xbf"

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Line(NamedTuple):
    """One line, ready to be sent; `ours` says that its id is of our making."""

    number: int
    text: bytes
    ours: bool


class Unfit(NamedTuple):
    """A line that is not sent, and why."""

    number: int
    reason: str


class Tally(msgspec.Struct, kw_only=True):
    """What a file came to."""

    created: int = 0
    existing: int = 0
    refused: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.created} created, {self.existing} existing, {self.refused} refused, {self.failed} failed"


class Audience(Protocol):
    """Who is told how it goes. `reason` is a server's, or about a line: unfit for a terminal as it is."""

    def read(self, bytes_read: int) -> None: ...

    def not_created(self, number: int, reason: str) -> None: ...

    def again(self, reason: str, pause_s: float) -> None: ...


class Shipment:
    """Sends a file's lines and tallies what they came to."""

    def __init__(
        self,
        client: Client,
        audience: Audience,
        *,
        job: str | None,
        batch: int,
        retries: int,
        sleep: Callable[[float], None],
    ) -> None:
        self.tally = Tally()
        self._client = client
        self._audience = audience
        self._path = "/create/batch" + (f"?job={quote(job, safe='')}" if job is not None else "")
        self._batch = batch
        self._retries = retries
        self._sleep = sleep

    def send(self, file: BinaryIO) -> None:
        """Send all of it.

        Raises:
            CallFailed: a batch could not be sent at all; what follows it was not tried.
        """
        for lines in self._batches(file):
            try:
                self._send(lines)
            except CallFailed as error:
                where = f"lines {lines[0].number} to {lines[-1].number}"
                raise CallFailed(f"{where}: {error} (what follows was not sent)", error.status) from error

    def _batches(self, file: BinaryIO) -> Iterator[list[Line]]:
        lines: list[Line] = []
        size = 0
        for line in read_lines(file, self._audience.read):
            if isinstance(line, Unfit):
                self._refuse(line.number, line.reason)
                continue
            if lines and (len(lines) >= self._batch or size + len(line.text) > BATCH_BYTES):
                yield lines
                lines, size = [], 0
            lines.append(line)
            size += len(line.text) + 1
        if lines:
            yield lines

    def _send(self, lines: list[Line]) -> None:
        """Until each line is created, existing or refused, or there were tries enough."""
        left = lines
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                left, reason = self._note(left, self._client.post(self._path, _body(left), "application/x-ndjson"))
                again_ms = None
            except CallFailed as error:
                if last or not error.may_pass:
                    self.tally.failed += len(left)
                    raise
                reason, again_ms = str(error), error.again_ms
            if not left:
                return
            if not last:
                self._wait(reason, attempt, again_ms)
        self._fail(left, reason)

    def _wait(self, reason: str, attempt: int, again_ms: int | None) -> None:
        pause_s = pause_before_again(attempt, again_ms)
        self._audience.again(reason, pause_s)
        self._sleep(pause_s)

    def _note(self, lines: Sequence[Line], answer: Any) -> tuple[list[Line], str]:
        """Tally what is decided; the lines that may get through on another try, and why the last of them did not."""
        left, reason = [], ""
        for line, result in zip(lines, results_of(answer, len(lines)), strict=True):
            error = result.get("error")
            if not isinstance(error, dict):
                self._note_stored(line, created=result.get("created") is not False)
            elif error.get("status") in AGAIN:
                left.append(line)
                reason = str(error.get("detail"))
            else:
                self._refuse(line.number, str(error.get("detail")))
        return left, reason

    def _note_stored(self, line: Line, *, created: bool) -> None:
        # One of our ids that exists already was made by this run, by a try whose answer was lost.
        if created or line.ours:
            self.tally.created += 1
        else:
            self.tally.existing += 1

    def _fail(self, lines: Sequence[Line], reason: str) -> None:
        self.tally.failed += len(lines)
        for line in lines:
            self._audience.not_created(line.number, reason)

    def _refuse(self, number: int, reason: str) -> None:
        self.tally.refused += 1
        self._audience.not_created(number, reason)


def _body(lines: Sequence[Line]) -> bytes:
    return b"\n".join(line.text for line in lines)


def read_lines(file: BinaryIO, count: Callable[[int], None]) -> Iterator[Line | Unfit]:
    """The file's lines that are not blank; `count` is told how many bytes each took."""
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        count(len(text))
        if len(text) > MAX_LINE_BYTES and not text.endswith(b"\n"):
            _skip_line(file, count)
            yield Unfit(number, "the line is too long")
            continue
        text = text.removeprefix(BOM).strip() if number == 1 else text.strip()
        if text:
            yield _line(number, text)


def _skip_line(file: BinaryIO, count: Callable[[int], None]) -> None:
    while text := file.readline(MAX_LINE_BYTES):
        count(len(text))
        if text.endswith(b"\n"):
            return


def _line(number: int, text: bytes) -> Line | Unfit:
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unfit(number, f"expected a JSON object: {error}")
    if bytes(fields.get("id", b"null")) != b"null":
        return Line(number, text, ours=False)
    fields["id"] = msgspec.Raw(b'"%s"' % str(uuid.uuid4()).encode())
    return Line(number, _encode(fields), ours=True)
