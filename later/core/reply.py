"""What a receiver's reply means: status, body and Retry-After, read by the callback's contract."""

from __future__ import annotations

import json

import msgspec

from later.core.policy import Ack
from later.core.retry import Outcome, OutcomeKind
from later.core.retry_after import parse_retry_after

BUSY_STATUSES = frozenset({429, 503})
GONE_STATUS = 410
CODE_DONE = 100
CODE_BUSY = 101
MAX_DIGITS = 640
"""The least that Python's limit on the length of integers can be set to."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply. `body` is None where it has none that may be read: too long, or encoded."""

    status: int
    body: bytes | None
    retry_after: str | None = None


def parse_reply(reply: Reply, now: int, ack: Ack) -> Outcome:
    """What the reply means, as `ack` has its receiver say it; `now` (ms) turns a Retry-After date into a pause."""
    if reply.status in BUSY_STATUSES:
        return _busy("status", f"answered {reply.status}", reply, now)
    if reply.status == GONE_STATUS:
        return Outcome(
            kind=OutcomeKind.GONE, reason="status", status=reply.status, message="answered 410: gone for good"
        )
    if not 200 <= reply.status < 300:
        message = f"answered {reply.status}"
        return Outcome(kind=OutcomeKind.FAILED, reason="status", status=reply.status, message=message)
    if ack is Ack.STATUS:
        return Outcome(kind=OutcomeKind.DONE, status=reply.status)
    return _read_code(reply, now, ack)


def _read_code(reply: Reply, now: int, ack: Ack) -> Outcome:
    fields = _json_object(reply.body)
    if "code" not in fields:
        if ack is Ack.AUTO:
            return Outcome(kind=OutcomeKind.DONE, status=reply.status)
        message = f"answered {reply.status} without a code"
        return Outcome(kind=OutcomeKind.FAILED, reason="code", status=reply.status, message=message)
    code = fields["code"]
    is_integer = isinstance(code, int) and not isinstance(code, bool)
    if is_integer and code == CODE_DONE:
        return Outcome(kind=OutcomeKind.DONE, status=reply.status)
    if is_integer and code == CODE_BUSY:
        return _busy("code", "answered code 101: busy", reply, now)
    shown = code if is_integer else "that is no integer"
    return Outcome(kind=OutcomeKind.FAILED, reason="code", status=reply.status, message=f"answered code {shown}")


def _json_object(body: bytes | None) -> dict[str, object]:
    """The reply's fields; none where it is no JSON object.

    Not by msgspec: it refuses the lone surrogate that a JavaScript string ends with when it was cut,
    and a failure would count as done.
    """
    if not body:
        return {}
    try:
        read = _decoder.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _integer(digits: str) -> int | float:
    """The number; infinity for one with more digits than Python reads, which is an error elsewhere."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


_decoder = json.JSONDecoder(parse_int=_integer)
"""Made once: `json.loads` makes one for each reply, which takes longer than the reading."""


def _busy(reason: str, message: str, reply: Reply, now: int) -> Outcome:
    pause = None if reply.retry_after is None else parse_retry_after(reply.retry_after, now)
    return Outcome(kind=OutcomeKind.BUSY, reason=reason, status=reply.status, message=message, retry_after_ms=pause)
