"""Options that take a time: RFC 3339, Unix seconds, or a duration from now or before now."""

from __future__ import annotations

import time
from datetime import datetime

import click

from later.cli.options import Command, OptionParamType
from later.core.durations import parse_duration_ms
from later.core.errors import Refused
from later.core.validation import parse_time
from later.option_types import option_type

_TIME_FORMATS = "A TIME is RFC 3339 (2027-01-15T08:00:00Z, or with +01:00) or Unix seconds"
DUE_TIME_HELP = f"{_TIME_FORMATS}, or has a unit: 10m is in ten minutes, -10m was ten minutes ago, 0s is now."
PAST_TIME_HELP = f"{_TIME_FORMATS}, or has a unit: 2h is two hours ago, by this machine's clock."
_EXPECTED = "a time, like 2027-01-15T08:00:00Z, 1800000000"
_MIN_UNIX_S, _MAX_UNIX_S = 1e8, 1e11
"""The years 1973 to 5138. A smaller number is a duration whose unit was forgotten, a larger one is in ms."""


def _parse_time(text: str, duration: str, sign: int, expected: str) -> float:
    """Parse a time and return Unix seconds.

    If `text` ends in a unit, the time is `duration` after now (`sign` 1) or before now (-1). A ValueError says what is
    `expected`.
    """
    try:
        if text[-1:].isalpha() and text[-1] not in "Zz":
            return round(time.time() + sign * parse_duration_ms(duration) / 1000, 3)
        try:
            seconds = float(text)
        except ValueError:
            moment = datetime.fromisoformat(text)
            seconds = moment.timestamp() if moment.tzinfo else 0
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not _MIN_UNIX_S <= seconds < _MAX_UNIX_S:
        raise ValueError(expected)
    return seconds


@option_type("TIME")
def _due_time(text: str) -> float:
    sign, duration = (-1, text[1:]) if text.startswith("-") else (1, text)
    return _parse_time(text, duration, sign, expected=f"{_EXPECTED}, 10m or -10m")


@option_type("TIME")
def _execute_time(text: str) -> float | str:
    """Return Unix seconds, or an RFC 3339 time as it is."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        parse_time("time", text)
    except Refused as error:
        raise ValueError(error.detail.partition("expected ")[2].partition(", got ")[0]) from None
    return text


EXECUTE_TIME = OptionParamType(_execute_time)
"""A due time as the HTTP API takes it."""


@option_type("TIME")
def _past_time(text: str) -> float:
    return _parse_time(text, text, -1, expected=f"{_EXPECTED} or 2h")


PAST_TIME = OptionParamType(_past_time)
"""A time before now, in Unix seconds."""


def due_time_options(command: Command) -> Command:
    """Give a command --due-after and --due-before, in Unix seconds."""
    param_type = OptionParamType(_due_time)
    before = click.option("--due-before", type=param_type, help="Only tasks due before this time.")
    after = click.option("--due-after", type=param_type, help="Only tasks due at this time or later.")
    return after(before(command))


def death_time_options(command: Command) -> Command:
    """Give a command --died-after and --died-before, in Unix seconds."""
    before = click.option("--died-before", type=PAST_TIME, help="Only tasks that died before this time.")
    after = click.option("--died-after", type=PAST_TIME, help="Only tasks that died at this time or later.")
    return after(before(command))


def rfc3339(seconds: float) -> str:
    """Format Unix seconds, rounded down to the second, as the options take them."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
