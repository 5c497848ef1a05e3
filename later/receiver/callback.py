"""A call of later as a receiver gets it: its task, and the answer that says the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from later.client.call import DECODE_ERRORS
from later.core.errors import Refused
from later.core.reply import CODE_DONE
from later.core.retry import MAX_MESSAGE_CHARS, Outcome, OutcomeKind
from later.handlers.task import Task

MAX_BODY_BYTES = 1024 * 1024 + 64 * 1024
"""The largest body of a call that is read."""
DEFAULT_TIMEOUT_S = 15.0
"""The time of an attempt that does not say its own, as daemons before `later-timeout`."""

_MAX_COUNT = 10**9


class Answer(NamedTuple):
    """The answer to a call."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class CallDeadline:
    """The deadline of a call over HTTP, in seconds of the monotonic clock."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at

    def time_left(self) -> float:
        return self._ends_at - time.monotonic()

    async def extend(self) -> None:
        raise RuntimeError(
            "a call over HTTP cannot be extended: raise the topic's `timeout`, or let a worker claim the task"
        )


class CallBody(msgspec.Struct, frozen=True):
    """The body of a call."""

    id: str
    topic: str
    content: str = ""
    context: dict[str, str] = {}


_decode = msgspec.json.Decoder(CallBody).decode
_DONE = msgspec.json.encode({"code": CODE_DONE})


def read_call(headers: Mapping[str, str], body: bytes, received_at: float, state: Any) -> tuple[Task[Any], str]:
    """Return the task of a call, and its content. Names of headers are in lower case; `received_at` is monotonic.

    Raises:
        Refused: the body is not that of a call.
    """
    try:
        call = _decode(body)
    except DECODE_ERRORS as error:
        raise Refused(f"this is no call of later: {error}") from error
    now = datetime.now(UTC)
    failures, max_retry = _count(headers.get("later-failures")), _count(headers.get("later-max-retry"))
    timeout_s = _read_number(headers.get("later-timeout"), float, DEFAULT_TIMEOUT_S)
    task: Task[Any] = Task(
        id=call.id,
        topic=call.topic,
        attempt=_count(headers.get("later-attempt")) or 1,
        due_at=_time(headers.get("later-due")) or now,
        created_at=_time(headers.get("later-created")),
        failures=failures,
        retries_left=None if failures is None or max_retry is None else max(max_retry - failures, 0),
        context=call.context,
        headers=headers,
        state=state,
        deadline=CallDeadline(received_at + timeout_s),
    )
    return task, call.content


def format_outcome(outcome: Outcome) -> Answer:
    """Return the answer that says an outcome, whatever `ack` of its topic is."""
    if outcome.kind is OutcomeKind.DONE:
        return Answer(200, {"content-type": "application/json"}, _DONE)
    headers = {"later-reason": quote(outcome.message[:MAX_MESSAGE_CHARS], safe=" ", errors="replace")}
    if outcome.later_after_ms is not None:
        headers["later-after"] = f"{outcome.later_after_ms / 1000:.3f}"
    if outcome.retry_after_ms is not None:
        headers["retry-after"] = str(math.ceil(outcome.retry_after_ms / 1000))
    status = {OutcomeKind.BUSY: 503, OutcomeKind.FAILED: 500, OutcomeKind.GONE: 410}[outcome.kind]
    return Answer(status, headers)


def _count(text: str | None) -> int | None:
    number = _read_number(text, int, -1)
    return number if 0 <= number < _MAX_COUNT else None


def _read_number(text: str | None, parse: Callable[[str], Any], default: Any) -> Any:
    try:
        number = parse(text or "")
        return number if math.isfinite(number) else default
    except (ValueError, OverflowError):  # an integer may be larger than every float
        return default


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
