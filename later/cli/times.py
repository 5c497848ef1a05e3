"""Moments as a shell writes them: a time, or a duration from now."""

from __future__ import annotations

import time
from datetime import datetime

import click

from later.cli.options import Function, reading
from later.option_types import milliseconds

WRITTEN = "A TIME is RFC 3339 (2027-01-15T08:00:00Z, or with +01:00) or Unix seconds"
DUE_TIMES = f"{WRITTEN}, or has a unit: 10m is in ten minutes, -10m was ten minutes ago, 0s is now."
DIED_TIMES = f"{WRITTEN}, or has a unit: 2h is two hours ago, by this machine's clock."
_LIKE = "a time, like 2027-01-15T08:00:00Z, 1800000000"
_EARLIEST, _LATEST = 1e8, 1e11
"""Unix seconds from 1973 to 5138: a number below is a duration without its unit, one above is in milliseconds."""


def due_times(function: Function) -> Function:
    """Give a command --due-after and --due-before, in Unix seconds."""
    read = reading(_due)
    before = click.option("--due-before", callback=read, metavar="TIME", help="Those due before this time.")
    after = click.option("--due-after", callback=read, metavar="TIME", help="Those due at this time or later.")
    return after(before(function))


def died_times(function: Function) -> Function:
    """Give a command --died-after and --died-before, in Unix seconds."""
    read = reading(_died)
    before = click.option("--died-before", callback=read, metavar="TIME", help="Those that died before this time.")
    after = click.option("--died-after", callback=read, metavar="TIME", help="Those that died at this time or later.")
    return after(before(function))


def _due(text: str) -> float:
    sign, duration = (-1, text[1:]) if text.startswith("-") else (1, text)
    return _moment(text, duration, sign, like=f"{_LIKE}, 10m or -10m")


def _died(text: str) -> float:
    return _moment(text, text, -1, like=f"{_LIKE} or 2h")


def _moment(text: str, duration: str, sign: int, like: str) -> float:
    try:
        if text[-1:].isalpha() and text[-1] not in "Zz":
            return round(time.time() + sign * milliseconds(duration) / 1000, 3)
        return _unix_seconds(text)
    except (ValueError, OverflowError):
        raise ValueError(like) from None


def _unix_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        seconds = at.timestamp() if at.tzinfo else 0
    if not _EARLIEST <= seconds < _LATEST:
        raise ValueError
    return seconds


def rfc3339(seconds: float) -> str:
    """A moment in words that can be given again, to the second before."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
