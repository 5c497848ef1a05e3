"""A receiver's reply: its status, body and headers, and the outcome that they mean."""

from __future__ import annotations

import json

import msgspec

from later.core.policy import Ack
from later.core.reply_headers import decode_reason, describe_location, parse_later_after
from later.core.retry import Outcome, OutcomeKind
from later.core.retry_after import parse_retry_after

BUSY_STATUSES = frozenset({429, 503})
GONE_STATUS = 410
CODE_DONE = 100
CODE_BUSY = 101
MAX_DIGITS = 640
"""The lowest value that Python's limit on the length of integers can have."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply. `body` is None if there is no body that may be read: it is too long, or encoded.

    The other fields are headers, as they came.
    """

    status: int
    body: bytes | None
    retry_after: str | None = None
    later_after: str | None = None
    later_reason: str | None = None
    later_topics: str | None = None
    location: str | None = None
    proxy_status: str | None = None
    squid_error: str | None = None
    smokescreen_error: str | None = None


def parse_reply(reply: Reply, now: int, ack: Ack) -> Outcome:
    """Return the outcome that a reply means if its topic has this `ack`. A Retry-After date counts from `now`.

    `later-after` replaces Retry-After, and `later-reason` the message.
    """
    outcome = _parse_answer(reply, now, ack)
    if outcome.kind is OutcomeKind.DONE or (reply.later_after is None and reply.later_reason is None):
        return outcome
    pause_ms = parse_later_after(reply.later_after or "")
    return msgspec.structs.replace(
        outcome,
        message=decode_reason(reply.later_reason or "") or outcome.message,
        later_after_ms=pause_ms,
        retry_after_ms=outcome.retry_after_ms if pause_ms is None else None,
    )


def _parse_answer(reply: Reply, now: int, ack: Ack) -> Outcome:
    """Return the outcome that the status and the body mean, with the pause of a Retry-After."""
    status = reply.status
    if status in BUSY_STATUSES:
        return _busy("status", f"answered {status}", reply, now)
    if status == GONE_STATUS:
        return Outcome(kind=OutcomeKind.GONE, reason="status", status=status, message="answered 410: gone for good")
    if not 200 <= status < 300:
        message = f"answered {status}"
        if 300 <= status < 400 and reply.location is not None and (target := describe_location(reply.location)):
            message = f"{message}, which points to {target}: redirects are not followed"
        return Outcome(kind=OutcomeKind.FAILED, reason="status", status=status, message=message)
    if ack is Ack.STATUS:
        return Outcome(kind=OutcomeKind.DONE, status=status)
    return _parse_code(reply, now, ack)


def _parse_code(reply: Reply, now: int, ack: Ack) -> Outcome:
    """Return the outcome that the `code` in a reply's body means."""
    fields = _parse_object(reply.body)
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
    message = f"answered code {code if is_integer else 'that is no integer'}"
    return Outcome(kind=OutcomeKind.FAILED, reason="code", status=reply.status, message=message)


def _parse_object(body: bytes | None) -> dict[str, object]:
    """Return the fields of a JSON object, or an empty dictionary if the body is anything else.

    What msgspec rejects is decoded again by Python, which takes thirty times as long: msgspec rejects lone surrogates,
    with which a JavaScript string ends if it was cut, and then a failure would count as done.
    """
    if not body:
        return {}
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            fields = _decoder.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        except (ValueError, RecursionError):
            return {}
    return fields if isinstance(fields, dict) else {}


def _parse_integer(digits: str) -> int | float:
    """Return the number, or infinity if it has more digits than Python reads as an integer."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


_decode = msgspec.json.Decoder().decode
_decoder = json.JSONDecoder(parse_int=_parse_integer)
"""Made once: `json.loads` makes one for each reply, which takes longer than the decoding."""


def _busy(reason: str, message: str, reply: Reply, now: int) -> Outcome:
    pause_ms = None if reply.retry_after is None else parse_retry_after(reply.retry_after, now)
    return Outcome(kind=OutcomeKind.BUSY, reason=reason, status=reply.status, message=message, retry_after_ms=pause_ms)
