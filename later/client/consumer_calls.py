"""The calls of consumers, each made of arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from later.client.answers import ClaimedTask
from later.client.call import Call, given
from later.client.call_fields import decoder, plain_seconds
from later.core.durations import Seconds, to_seconds


class _Claimed(msgspec.Struct):
    tasks: list[ClaimedTask]


class _Lost(msgspec.Struct):
    lost: list[str]


_decode_claimed = decoder(_Claimed)
_decode_lost = decoder(_Lost)


def claim(
    topics: str | Sequence[str] | Mapping[str, int], limit: int | None, *, lease: Seconds | None, wait: Seconds
) -> Call[list[ClaimedTask]]:
    wait_s = to_seconds("wait", wait)
    names: object = [topics] if isinstance(topics, str) else dict(topics) if isinstance(topics, Mapping) else [*topics]
    fields = given(topics=names, max=limit, lease=plain_seconds("lease", lease), wait=wait_s)
    return Call("/claim", _read_claimed, fields, safe=True, wait_s=max(wait_s, 0.0))


def _read_claimed(body: bytes) -> list[ClaimedTask]:
    return _decode_claimed(body).tasks


def ack(leases: Iterable[str]) -> Call[list[str]]:
    return _tell("/ack", leases)


def nack(
    leases: Iterable[str],
    *,
    delay: Seconds | None,
    message: str | None,
    reason: str | None,
    dead: bool,
    busy: bool,
) -> Call[list[str]]:
    fields = given(
        delay=plain_seconds("delay", delay), message=message, reason=reason, dead=dead or None, busy=busy or None
    )
    return _tell("/nack", leases, fields)


def release(leases: Iterable[str]) -> Call[list[str]]:
    return _tell("/release", leases)


def extend(leases: Iterable[str], lease: Seconds | None) -> Call[list[str]]:
    return _tell("/extend", leases, given(lease=plain_seconds("lease", lease)))


def _tell(path: str, leases: Iterable[str], fields: Mapping[str, object] | None = None) -> Call[list[str]]:
    """The call is safe: a lease that an earlier attempt has ended is lost."""
    tokens = [leases] if isinstance(leases, str) else [*leases]
    return Call(path, _read_lost, {"leases": tokens, **(fields or {})}, safe=True)


def _read_lost(body: bytes) -> list[str]:
    return _decode_lost(body).lost
