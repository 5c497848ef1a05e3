"""The fields of a policy on the command line: the option that gives each, and how its value is shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from later.cli.options import Function, reading, seconds
from later.core.policy import FIELDS, Ack, DelayMode, PolicyValue
from later.option_types import choice, switch

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


class Kind(NamedTuple):
    """A kind of value: what help calls it, how it is read, how a person sees it.

    `read` makes what the API takes of a text, or raises ValueError with what it takes. What is too much or too
    little is for the daemon to say.
    """

    shape: str
    read: Callable[[str], PolicyValue]
    show: Callable[[Any], str]


class Told(NamedTuple):
    """A field: its kind, what help says of it, and what 0 means where it means more than 0."""

    kind: Kind
    help: str
    zero: str = ""


def _integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("an integer")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    return number


def a_second(text: str) -> float:
    """So many a second: `50` or `50/s`. Raises ValueError."""
    try:
        return _number(text.removesuffix("/s"))
    except ValueError:
        raise ValueError("a number, like 50, 0.5 or 50/s") from None


def _with_unit(duration_s: float) -> str:
    """A duration in the largest unit that leaves it whole, as it could be given."""
    ms = round(duration_s * 1000)
    unit, unit_ms = next((pair for pair in _UNITS_MS if ms and ms % pair[1] == 0), ("s", 1000))
    return f"{ms // unit_ms}{unit}"


DURATION = Kind("DURATION", seconds, _with_unit)
INTEGER = Kind("NUMBER", _integer, str)
SHARE = Kind("SHARE", _number, str)
A_SECOND = Kind("NUMBER/s", a_second, lambda rate: f"{rate}/s")
SWITCH = Kind(switch.shape, switch, lambda on: "on" if on else "off")


def _choice(*words: str) -> Kind:
    reader = choice(*words)
    return Kind(reader.shape, reader, str)


TOLD = {
    "default_delay": Told(DURATION, "The delay of a task that names neither a delay nor a time."),
    "max_delay": Told(DURATION, "The longest delay that a task may ask for; 0: no limit.", "no limit"),
    "delay_mode": Told(_choice(*DelayMode), "honor: a task's own delay counts before the default. "
                       "queue: where the default is 0, it is ignored."),
    "delays": Told(SWITCH, "off refuses tasks that are not due at once."),
    "ttl": Told(DURATION, "How old a task may get before it is done, if it does not say; 0: no limit.", "no limit"),
    "timeout": Told(DURATION, "A delivery's deadline, 1s to 120s; the lease follows it."),
    "retry": Told(INTEGER, "Tries after the first, for a task that does not say."),
    "retry_base": Told(DURATION, "The pause after a first failure; it doubles with each further one."),
    "retry_cap": Told(DURATION, "The longest pause between two tries."),
    "retry_jitter": Told(SHARE, "By up to what share of itself, 0 to 1, a pause is lengthened at random."),
    "ack": Told(_choice(*Ack), "How a receiver says that it is done: by a code where there is one, by code alone, or "
                "by status."),
    "rate": Told(A_SECOND, "Deliveries begun a second, over all instances; 0: no limit.", "no limit"),
    "concurrency": Told(INTEGER, "Deliveries under way, over all instances; 0: no limit.", "no limit"),
    "paused": Told(SWITCH, "on: nothing is delivered; creating goes on."),
    "ramp": Told(DURATION, "How long it takes to reach full speed after a pause, a wait or a raised limit; 0: at once.",
                 "at once"),
    "dead_keep": Told(DURATION, "How long a dead task is kept."),
}  # fmt: skip
"""What the command line adds to `FIELDS`."""


def values_of_fields(function: Function) -> Function:
    """Give a command an option for each field, in the order of the table; what is not given is None."""
    for name in reversed(FIELDS):
        kind, help, _ = TOLD[name]
        option = click.option(_flag(name), name, metavar=kind.shape, callback=reading(kind.read), help=help)
        function = option(function)
    return function


def names_of_fields(function: Function) -> Function:
    """Give a command a flag for each field."""
    for name in reversed(FIELDS):
        function = click.option(_flag(name), name, is_flag=True, help="Inherit it again.")(function)
    return function


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def shown(name: str, value: object) -> str:
    """A field's value for a person: `15m`, `0 (no limit)`."""
    told = TOLD.get(name)
    if told is None:  # a newer daemon's
        return json.dumps(value)
    return f"0 ({told.zero})" if told.zero and value == 0 else told.kind.show(value)
