"""Durations as people write them: `15`, `500ms`, `15s`, `10m`, `2h`, `7d`, `1h30m`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

from later.core.errors import Refused
from later.core.validation import MAX_AHEAD_MS, format_value

MAX_DURATION_MS = MAX_AHEAD_MS
"""Ten years, the longest duration."""
DURATION_EXAMPLES = "15, 500ms, 15s, 10m, 2h or 7d"

Seconds = float | str | timedelta
"""A duration as callers of the Python library give it: a number of seconds, a text as above, or a timedelta."""

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS = re.compile(_NUMBER)
_PARTS = re.compile("".join(rf"(?:{_NUMBER}{unit}(?![a-z]))?" for unit in _UNIT_MS))
"""Numbers with units, each unit once at most, the largest first."""


def is_duration(text: str) -> bool:
    """Return True if the text is a duration, of whatever length."""
    return bool(text) and (_SECONDS.fullmatch(text) or _PARTS.fullmatch(text)) is not None


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms, rounded up. Raises ValueError: not a duration, or longer than ten years."""
    if not is_duration(text):
        raise ValueError(f"a duration, like {DURATION_EXAMPLES}")
    match = _PARTS.fullmatch(text if text[-1] in "dhms" else f"{text}s")
    assert match is not None  # a number alone is one of seconds
    ms = sum(Decimal(number) * unit for number, unit in zip(match.groups("0"), _UNIT_MS.values(), strict=True))
    if ms > MAX_DURATION_MS:
        raise ValueError("a duration of at most ten years")
    return math.ceil(ms)


def duration_literal(seconds: float) -> str:
    """Format a duration as `parse_duration_ms` parses it, in the largest unit that gives an integer: `90m`, `500ms`."""
    ms = round(seconds * 1000)
    unit, unit_ms = next((pair for pair in _UNIT_MS.items() if ms and ms % pair[1] == 0), ("s", 1000))
    return f"{ms // unit_ms}{unit}"


def to_seconds(field: str, value: Seconds) -> float:
    """Return a duration in seconds; whether a number is in range is left to those who take it.

    Raises:
        Refused: it is a text that is no duration, or is longer than ten years.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    try:
        return parse_duration_ms(value) / 1000
    except ValueError as error:
        raise Refused(f"{field}: expected {error}, got {format_value(value)}", field) from None
