"""The fields of calls: durations, times and names as the API takes them, and the pages of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from later.client.call import Call
from later.core.durations import Seconds, to_seconds
from later.core.policy_scopes import PolicyScope, topic_scope
from later.core.validation import refusal

PAGE_SIZE = 500
"""Items that one call of a listing asks for."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Page(NamedTuple, Generic[Item]):
    """Items of a listing, and the call for those that follow; None if these are the last."""

    items: list[Item]
    next: Call[Page[Item]] | None


def decoder(schema: type[Answer]) -> Callable[[bytes], Answer]:
    return msgspec.json.Decoder(schema).decode


def plain_seconds(field: str, value: Seconds | None) -> float | None:
    """Return a duration in seconds. Raises Refused: it is none, or no number, which JSON could not say."""
    if value is None:
        return None
    seconds = to_seconds(field, value)
    if not math.isfinite(seconds):
        raise refusal(field, seconds, "a number of seconds")
    return seconds


def format_time(field: str, time: datetime | None) -> str | None:
    """Return a time in RFC 3339. Raises Refused: it has no zone, so it could be any of 26 hours."""
    if time is None:
        return None
    if time.tzinfo is None:
        raise refusal(field, time.isoformat(), "a time with its zone")
    return time.astimezone(UTC).isoformat()


def scope_path(of: str | PolicyScope) -> str:
    """Return the path of a topic or a namespace."""
    scope = topic_scope(of) if isinstance(of, str) else of
    return f"/{scope.level}s/{quote_name(scope.name)}"


def quote_name(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")
