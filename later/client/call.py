"""One call of later's API as values: what is sent, what its answer means, and when it may be sent again. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec

from later.core.errors import (
    NOT_LATER,
    CallFailed,
    Conflict,
    CrossSite,
    DurabilityMissed,
    Exists,
    InFlight,
    LaterError,
    NotAllowed,
    NotFound,
    NotKnown,
    Refused,
    TooLarge,
    Unavailable,
)
from later.core.retry_after import parse_retry_after

JSON = "application/json"
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
LEAST_TIMEOUT_S = 0.05
MAX_TIMEOUT_S = 10.0
"""The longest attempt of a call that may be sent again: a daemon whose store is away answers within seconds."""
BROKEN_STATUSES = frozenset({None, 200, 502, 503, 504})
"""Statuses after which a safe call may be sent again: no answer, one that cannot be read, or one of a server that
did not carry it out or lost the answer on the way."""

Answer = TypeVar("Answer")


class Call(Generic[Answer]):
    """A call: its method, its path below the API's URL, its body, and how to decode the answer.

    A `safe` call may be sent again although it may have been carried out; but not one that is `counted` if it certainly
    was, because only its lost answer said how far. `task_id` is the task that it names, if it names one. The server may
    take `wait_s` longer than for other calls.
    """

    content_type = JSON

    def __init__(
        self,
        path: str,
        decode: Callable[[bytes], Answer],
        fields: object = None,
        *,
        method: str = "POST",
        safe: bool = False,
        counted: bool = False,
        task_id: str | None = None,
        wait_s: float = 0.0,
    ) -> None:
        """`fields` are the body, unless they are None. Raises Refused: they have a text that is not Unicode."""
        self.method = method
        self.path = path
        self.decode = decode
        self.body = None if fields is None else encode_json(fields)
        self.safe = safe
        self.counted = counted
        self.task_id = task_id
        self.wait_s = wait_s


class ProblemDetails(msgspec.Struct, frozen=True):
    """An error in an answer (RFC 9457), or of one item of a batch, which has no type."""

    detail: str
    status: int = 0
    type: str = ""
    field: str | None = None
    ended: bool = False
    unknown: bool = False
    id: str | None = None
    stored: bool = False
    durability: str = ""


_encode = msgspec.json.Encoder().encode
_decode_problem = msgspec.json.Decoder(ProblemDetails).decode
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode_json(fields: object) -> bytes:
    """Return fields as JSON. Raises Refused: a text is not Unicode."""
    try:
        return _encode(fields)
    except UnicodeEncodeError:
        raise Refused("expected Unicode text, got a lone surrogate in it") from None


def given(**fields: object) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def read(call: Call[Answer], status: int, retry_after: str | None, body: bytes, now: int) -> Answer:
    """Return what an answer says. `retry_after` is its header of that name; `now` (ms) is for one that is a date.

    Raises:
        LaterError: the call failed, or a part of a batch did; or it is no answer of later's API.
    """
    if status == 200:
        try:
            return call.decode(body)
        except DECODE_ERRORS:
            detail = f"expected an answer of later's API, got something else: {NOT_LATER}"
            raise Unavailable(detail, status, unknown=True) from None
    try:
        problem = _decode_problem(body)
    except DECODE_ERRORS:
        raise _foreign_error(status, retry_after, now) from None
    raise error_of(call, problem, status, None if retry_after is None else parse_retry_after(retry_after, now))


def error_of(
    call: Call[Any], problem: ProblemDetails, status: int, retry_after_ms: int | None = None, task_id: str | None = None
) -> LaterError:
    """Return the error that a problem reports. `task_id` is that of a batch's item."""
    detail = problem.detail
    if problem.stored:
        id = problem.id or task_id or call.task_id
        return DurabilityMissed(detail, id, problem.durability, retry_after_ms=retry_after_ms)
    if status >= 500 or status in (408, 429):
        unknown = status >= 500 and (problem.unknown or status != HTTPStatus.SERVICE_UNAVAILABLE)
        return Unavailable(detail, status, unknown, retry_after_ms=retry_after_ms)
    if status in (404, 405):
        return _missing_error(call, problem, status, task_id or call.task_id)
    if status == 409:
        if problem.type.endswith("/exists") or problem.field == "id":
            return Exists(detail)
        return InFlight(detail) if problem.type.endswith("/in-flight") else Conflict(detail)
    return _refused_error(problem, status)


def _missing_error(call: Call[Any], problem: ProblemDetails, status: int, task_id: str | None) -> LaterError:
    """Return the error of a task that is not there, or of something else; or of a path that later does not have."""
    if status == 404 and task_id is not None:
        return NotFound(task_id, ended=problem.ended)
    if problem.type.startswith("/problems/"):
        return NotFound("", text=problem.detail)
    return CallFailed(f"{call.path.partition('?')[0]}: {problem.detail}: {NOT_LATER}", status)


def _refused_error(problem: ProblemDetails, status: int) -> Refused:
    detail, field = problem.detail, problem.field
    if status == 401:
        return NotKnown(detail, field, reason="unknown")
    if status == 403 and not problem.type.endswith("/cross-site"):
        return NotAllowed(detail, field, reason="scope" if field is None else "namespace")
    return {403: CrossSite, 413: TooLarge}.get(status, Refused)(detail, field)


def _foreign_error(status: int, retry_after: str | None, now: int) -> LaterError:
    """Return the error of an answer that is not later's: of a proxy on the way, or of another server."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    detail = f"answered {status} {phrase}".rstrip()
    if status == 413:
        return TooLarge(detail)
    if status == 429 or status >= 500:
        pause_ms = None if retry_after is None else parse_retry_after(retry_after, now)
        return Unavailable(detail, status, status >= 500, retry_after_ms=pause_ms)
    return CallFailed(f"{detail}: {NOT_LATER}", status)


def pause(attempt: int, error: LaterError, call: Call[Any], chance: float) -> float | None:
    """Return the seconds to wait before the call is sent again, the first attempt being 0; None if it must not be.

    A call that was certainly not carried out may always be: its connection was refused, or the server said so by 429.
    `chance`, from 0 to 1, is the jitter, so that callers which failed together do not come again together.
    """
    if not isinstance(error, Unavailable) or (call.counted and isinstance(error, DurabilityMissed)):
        return None
    was_not_sent = error.status is None and not error.unknown
    if not (was_not_sent or error.status == 429 or (call.safe and error.status in BROKEN_STATUSES)):
        return None
    if error.retry_after_ms is not None:
        return error.retry_after_ms / 1000
    return chance * min(FIRST_PAUSE_S * 2.0 ** min(attempt, 30), MAX_PAUSE_S)


def attempt_timeout_s(left_s: float, call: Call[Any]) -> float:
    """Return how long an attempt may take if `left_s` of the caller's patience are left.

    A safe call leaves half of it to further attempts, because a connection may have died without a word.
    """
    return max(min(left_s / 2, MAX_TIMEOUT_S) if call.safe else left_s, LEAST_TIMEOUT_S) + call.wait_s
