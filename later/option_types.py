"""Types of option values: durations, sizes, rates, switches, choices, names. `address_types` has addresses and URLs.

The configuration, the command line and Spark's data source read their options with these types. Each converts a text to
a value, or raises ValueError, whose text says what the type takes and can follow the word "expected".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from later.core.durations import DURATION_EXAMPLES, MAX_DURATION_MS, is_duration, parse_duration_ms

DEFAULT_PREFIX = "later"
"""The daemon's default, which also applies where a bulk job uses the store itself, without a daemon."""

_SIZE = re.compile(r"([0-9]+)(KiB|MiB)?")
_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+){1,8}")
_UNIT_BYTES = {"KiB": 1024, "MiB": 1024 * 1024}
_PREFIX = re.compile(r"[^\s{}*?\[\]\\^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}")


@dataclass(frozen=True, slots=True)
class OptionType:
    """A type of option value: `read` converts the text, `metavar` stands for the value in help.

    `toml_types` are the TOML types that later.toml may use for it.
    """

    read: Callable[[str], Any]
    metavar: str
    toml_types: tuple[str, ...] = ("a string",)

    @property
    def is_list(self) -> bool:
        """True if the option may be given many times; its text then has commas between the values."""
        return "an array" in self.toml_types

    def __call__(self, text: str) -> Any:
        """Return the value of the text. Raises ValueError with what the type takes."""
        return self.read(text)


def option_type(metavar: str, *toml_types: str) -> Callable[[Callable[[str], Any]], OptionType]:
    """Return the decorator that makes an option type of a function that reads a text."""
    return lambda read: OptionType(read, metavar, toml_types or ("a string",))


# Durations


def duration(least_ms: int, most_ms: int | None = None) -> OptionType:
    """Return the type of durations in this range; the value is in ms."""
    least = f"{least_ms / 1000:g}"
    span = f"of at least {least}" if most_ms is None else f"from {least} to {most_ms // 1000}"
    expected = f"a duration {span} s"

    def read(text: str) -> int:
        if not is_duration(text):
            raise ValueError(f"{expected}, like {DURATION_EXAMPLES}")
        ms = parse_duration_ms(text)
        if not least_ms <= ms <= (most_ms or MAX_DURATION_MS):
            raise ValueError(expected)
        return ms

    return OptionType(read, "DURATION", ("a number", "a string"))


duration_s = OptionType(lambda text: parse_duration_ms(text) / 1000, "DURATION")
"""Any duration; the value is in seconds, as in the HTTP API."""


# Numbers


def integer(least: int, most: int) -> OptionType:
    """Return the type of integers in this range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
            raise ValueError(f"an integer from {least} to {most}")
        return int(text)

    return OptionType(read, "NUMBER", ("an integer",))


@option_type("NUMBER")
def any_integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("an integer")
    return int(text)


def count_or_auto(most: int) -> OptionType:
    """Return the type of integers from 1 to `most`; `auto` is the number of CPU cores available to this process."""

    def read(text: str) -> int:
        if text == "auto":
            return min(_available_cores(), most)
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most):
            raise ValueError(f"auto or an integer from 1 to {most}")
        return int(text)

    return OptionType(read, "NUMBER|auto", ("an integer", "a string"))


def _available_cores() -> int:
    """Count the cores in the CPU affinity mask, or fewer if the control group (of a container) grants less time."""
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    try:
        quota_us, period_us = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        granted = math.ceil(int(quota_us) / int(period_us))
    except (OSError, ValueError):  # no such file, or the quota is "max"
        granted = cores
    return max(1, min(allowed, granted))


def _any_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    return number


any_share = OptionType(_any_number, "SHARE")


@option_type("NUMBER/s")
def any_rate(text: str) -> float:
    """Read any rate: `50` or `50/s`."""
    try:
        return _any_number(text.removesuffix("/s"))
    except ValueError:
        raise ValueError("a number, like 50, 0.5 or 50/s") from None


def rate(least: float, most: int) -> OptionType:
    """Return the type of rates in this range, and 0."""

    def read(text: str) -> float:
        number = float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]*)?|\.[0-9]+", text) else -1.0
        if number and not least <= number <= most:
            raise ValueError(f"0, or a number from {least:g} to {most}")
        return number

    return OptionType(read, "NUMBER", ("a number",))


@option_type("TOPIC")
def any_topic(text: str) -> str:
    return text


@option_type("URL")
def any_url(text: str) -> str:
    return text


@option_type("SHARE", "a number")
def share(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]*", text) or not re.search("[0-9]", text) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


def size(least: int, most: int) -> OptionType:
    """Return the type of sizes in this range; the value is in bytes."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text)
        number = int(match[1][:18]) * _UNIT_BYTES.get(match[2], 1) if match else -1
        if not least <= number <= most:
            raise ValueError(f"a size from {least} bytes to {most // 1024 // 1024}MiB, like 65536, 512KiB or 1MiB")
        return number

    return OptionType(read, "SIZE", ("an integer", "a string"))


body_size = size(1024, 16 * 1024 * 1024)
"""The size of a request body, in bytes."""


# Names


def choice(*words: str) -> OptionType:
    """Return the type whose values are these words, or the members of a StrEnum."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return words[words.index(text)]

    return OptionType(read, "|".join(words))


@option_type("on|off")
def switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("on or off")
    return text == "on"


@option_type("TEXT")
def prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(r"1 to 64 characters without white space, control characters or any of {}*?[]\^")
    return text


@option_type("PATH")
def base_path(text: str) -> str:
    """Read the path in front of all others, without a slash at its end; `/` is the empty one."""
    if text == "/":
        return ""
    if not _BASE_PATH.fullmatch(text) or {".", ".."} & {*text.split("/")}:
        raise ValueError("a path that begins with /, of A-Za-z0-9._~- and /, without one at its end, like /later")
    return text


@option_type("DIR")
def path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("a path")
    return Path(text)


@option_type("FILE")
def file_name(text: str) -> str | None:
    """Read the name of a file; `none` is none."""
    if not text or "\0" in text:
        raise ValueError("the name of a file, or none")
    return None if text == "none" else text


def many(read: Callable[[str], str], metavar: str) -> OptionType:
    """Return the type of lists with commas between the values that `read` takes; `none` is the empty list."""

    def read_all(text: str) -> frozenset[str]:
        return frozenset() if text == "none" else frozenset(map(read, text.split(",")))

    return OptionType(read_all, metavar, ("a string", "an array"))


@option_type("FILE")
def key_file(text: str) -> str | None:
    """Read the path of a key file, or the keys themselves; `none` is none."""
    if "\0" in text:
        raise ValueError("a path")
    return None if text == "none" else text


path_or_none = OptionType(lambda text: None if text == "none" else path(text), "FILE")
