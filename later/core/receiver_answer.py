"""The answer of a receiver to a call that asks which topics it handles, and runs nothing (`later-verify: 1`)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote

from later.core.reply import Reply
from later.core.reply_headers import decode_reason, describe_location

VERIFY_HEADER = "later-verify"
VERIFY_BODY = b"[]"
"""The body of the call. It is no task's: somebody who has recorded the call cannot run a handler by it."""

_ADVICE = {
    403: "something before the receiver forbids the call: a protection against forged forms, or a proxy",
    404: "nothing is at this path: give the callback the path of `receive`, and the port of the application",
    405: "something is at this path, but takes no POST: is it the path of `receive`?",
    413: "something before the receiver takes only smaller bodies",
    502: "a proxy does not reach the application",
}
_REFUSED_SIGNATURE = (
    "it does not accept the signature: give it the secret that `later secrets show` prints, and compare the clocks"
)
_NO_SIGNATURE = "it wants signed calls, but nothing signs here: --signing-key FILE, or --data of a `later up`"


class SignatureState(StrEnum):
    """The treatment of signatures by a receiver."""

    VERIFIED = "verified"
    IGNORED = "ignored"
    REFUSED = "refused"
    NONE = "none"
    """Nothing was signed, because there is no signing key."""


class ReceiverAnswer(NamedTuple):
    """The meaning of an answer. `topics` are those that the receiver handles; None: it did not say that.

    `detail` says what is wrong, and what to do; `status` is None if there was no answer.
    """

    topics: tuple[str, ...] | None
    detail: str
    status: int | None = None


def read_receiver_answer(reply: Reply, *, is_signed: bool) -> ReceiverAnswer:
    """Return the meaning of an answer; if it is not what a receiver answers, `detail` says what to do."""
    status = reply.status
    if 200 <= status < 300:
        if reply.later_topics is None:
            text = "without later-topics: it is none of the Python library, and cannot be asked"
            return ReceiverAnswer(None, f"the receiver answered {status} {text}", status)
        topics = tuple(unquote(topic) for topic in reply.later_topics.split(",") if topic)
        return ReceiverAnswer(
            topics, "" if topics else "the receiver has no handlers: is their module imported?", status
        )
    if 300 <= status < 400:
        target = describe_location(reply.location or "")
        place = f", which points to {target}" if target else ""
        text = "redirects are not followed, so tasks would fail: give that place as the callback"
        return ReceiverAnswer(None, f"the receiver answered {status}{place}: {text}", status)
    if status == 401:
        advice = _REFUSED_SIGNATURE if is_signed else _NO_SIGNATURE
    else:
        advice = _ADVICE.get(status) or decode_reason(reply.later_reason or "")
    return ReceiverAnswer(None, f"the receiver answered {status}{f': {advice}' if advice else ''}", status)
