"""The bodies of the calls of consumers: which tasks they claim, and what has become of those that they claimed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from later.core import validation
from later.core.caller import Caller
from later.core.errors import Refused
from later.core.json_body import body_parser
from later.core.lease import MAX_CLAIMED
from later.core.retry import MAX_NACK_CHARS, Nack
from later.core.validation import MAX_AHEAD_MS, format_value, parse_topic, refusal, to_milliseconds, utf8_size

MAX_TOPICS = 32
MAX_LEASES = 10_000
"""Leases of one call that says what has become of them."""
MAX_LEASE_S = 43_200
MAX_WAIT_S = 60

_REASON = re.compile(r"[a-z_]{1,32}")
_SWITCH = "true or false"
_LEASE_S = f"a number of seconds from 1 to {MAX_LEASE_S}"
_TOKENS = "an array of up to {} leases, as /claim answers them"
_PAUSE = {
    "delay": "a number of seconds ≥ 0",
    "message": f"a string of at most {MAX_NACK_CHARS} characters",
    "dead": _SWITCH,
    "busy": _SWITCH,
    "reason": "1 to 32 characters of a-z and _",
}
EXPECTED_OF_CLAIM = {
    "topic": validation.EXPECTED["topic"],
    "topics": f"an array of 1 to {MAX_TOPICS} topics, or an object of topics and how many tasks of each",
    "max": f"an integer from 1 to {MAX_CLAIMED}",
    "lease": _LEASE_S,
    "wait": f"a number of seconds from 0 to {MAX_WAIT_S}",
    "done": _TOKENS.format(MAX_CLAIMED),
    "failed": f"an array of up to {MAX_CLAIMED} objects, each with a lease",
    "failed.lease": "a lease, as /claim answers it",
    **{f"failed.{name}": text for name, text in _PAUSE.items()},
}
EXPECTED_OF_LEASES = {"leases": _TOKENS.format(MAX_LEASES), "lease": _LEASE_S, **_PAUSE}


# Bodies as they came


class FailureFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a failed attempt: why it failed, and when the next one is to be."""

    delay: float | None = None
    message: str | None = None
    dead: bool | None = None
    busy: bool | None = None
    reason: str | None = None


class FailureBody(FailureFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt that failed: an element of `failed`."""

    lease: str | None = None


class ClaimBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/claim`."""

    topic: str | None = None
    topics: list[str] | dict[str, int] | None = None
    max: int | None = None
    lease: float | None = None
    wait: float | None = None
    done: list[str] | None = None
    failed: list[FailureBody] | None = None


class LeasesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/ack` and of `/release`."""

    leases: list[str] | None = None


class NackBody(FailureFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/nack`."""

    leases: list[str] | None = None


class ExtendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/extend`."""

    leases: list[str] | None = None
    lease: float | None = None


parse_claim_body = body_parser(ClaimBody, EXPECTED_OF_CLAIM)
parse_leases_body = body_parser(LeasesBody, EXPECTED_OF_LEASES)
parse_nack_body = body_parser(NackBody, EXPECTED_OF_LEASES)
parse_extend_body = body_parser(ExtendBody, EXPECTED_OF_LEASES)


# Checked requests


class WantedTasks(NamedTuple):
    """The tasks that a claim asks for: up to `limit`, and of each topic up to its number, in order of preference.

    Their leases last `lease_ms` (None: as long as the policy of each topic says).
    """

    topics: Mapping[str, int]
    limit: int
    lease_ms: int | None
    wait_s: float


def parse_wanted(body: ClaimBody, caller: Caller) -> WantedTasks:
    """Check what a claim asks for.

    Raises:
        Refused: a field is wrong, or does not go with another.
        NotAllowed: a topic is of another namespace than the caller's.
    """
    limits = _limits_by_topic(body)
    for limit in (*limits.values(), body.max):
        if limit is not None and not 1 <= limit <= MAX_CLAIMED:
            field = "topics" if isinstance(body.topics, dict) and limit is not body.max else "max"
            raise refusal(field, limit, EXPECTED_OF_CLAIM["max"])
    most = body.max or (min(sum(limits.values()), MAX_CLAIMED) if isinstance(body.topics, dict) else 1)
    topics: dict[str, int] = {}
    for name, limit in limits.items():
        topic = caller.own_topic(parse_topic(name))
        topics[topic] = min(topics.get(topic, 0) + limit, MAX_CLAIMED)
    if body.wait is not None and not 0 <= body.wait <= MAX_WAIT_S:
        raise refusal("wait", body.wait, EXPECTED_OF_CLAIM["wait"])
    return WantedTasks(topics, most, None if body.lease is None else parse_lease_ms(body.lease), body.wait or 0.0)


def _limits_by_topic(body: ClaimBody) -> Mapping[str, int]:
    """Return how many tasks of each topic are asked for, by the names that the caller wrote. Raises Refused."""
    if (body.topic is None) == (body.topics is None):
        if body.topic is None:
            raise refusal("topic", None, EXPECTED_OF_CLAIM["topic"])
        raise Refused("topics: expected either topic or topics, got both", "topics")
    names = [body.topic] if body.topic is not None else body.topics or []
    if not 1 <= len(names) <= MAX_TOPICS:
        raise Refused(f"topics: expected {EXPECTED_OF_CLAIM['topics']}, got {len(names)}", "topics")
    most = body.max if body.max is not None else 1
    return names if isinstance(names, dict) else dict.fromkeys(names, most)


def parse_lease_ms(seconds: float) -> int:
    """Return the length of a lease. Raises Refused."""
    if not 1 <= seconds <= MAX_LEASE_S:
        raise refusal("lease", seconds, _LEASE_S)
    return to_milliseconds(seconds)


def check_tokens(tokens: Sequence[str] | None, field: str = "leases", most: int = MAX_LEASES) -> list[str]:
    """Return the leases that a call names, each once. Raises Refused."""
    if tokens is None:
        raise refusal(field, None, _TOKENS.format(most))
    if len(tokens) > most:
        raise Refused(f"{field}: expected {_TOKENS.format(most)}, got {len(tokens)}", field)
    return list(dict.fromkeys(tokens))


def parse_failed(failed: Sequence[FailureBody]) -> dict[str, Nack]:
    """Return how the attempts of a claim's `failed` failed, by their leases. Raises Refused."""
    if len(failed) > MAX_CLAIMED:
        raise Refused(f"failed: expected {EXPECTED_OF_CLAIM['failed']}, got {len(failed)}", "failed")
    try:
        return {_lease_of(body): parse_nack(body) for body in failed}
    except Refused as error:
        raise Refused(f"failed: {error.detail}", "failed") from None


def _lease_of(body: FailureBody) -> str:
    if body.lease is None:
        raise refusal("lease", None, EXPECTED_OF_CLAIM["failed.lease"])
    return body.lease


def parse_nack(body: FailureFields) -> Nack:
    """Check how an attempt failed, and return it.

    Raises:
        Refused: a field is wrong, or does not go with another.
    """
    delay = body.delay
    if delay is not None and not 0 <= delay < math.inf:
        raise refusal("delay", delay)
    if delay is not None and to_milliseconds(delay) > MAX_AHEAD_MS:
        raise Refused(f"delay: expected a time at most ten years ahead, got {format_value(delay)}", "delay")
    if body.message is not None:
        utf8_size("message", body.message)
        if len(body.message) > MAX_NACK_CHARS:
            raise Refused(f"message: expected {_PAUSE['message']}, got {len(body.message)}", "message")
    if body.reason is not None and not _REASON.fullmatch(body.reason):
        raise refusal("reason", body.reason, _PAUSE["reason"])
    if body.dead and (body.busy or delay is not None):
        other = "busy" if body.busy else "delay"
        raise Refused(f"dead: expected either dead or {other}, got both", "dead")
    return Nack(
        message=body.message or "",
        reason=body.reason or "",
        delay_ms=None if delay is None else to_milliseconds(delay),
        is_busy=bool(body.busy),
        is_final=bool(body.dead),
    )
