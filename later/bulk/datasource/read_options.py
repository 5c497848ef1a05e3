"""What a reader's options ask for: a store, and what of it. None is guessed: a typo must not become a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from later.core.errors import ConfigError, Refused
from later.core.validation import EXPECTED_TIME, describe, parse_time
from later.core.validation import parse_topic as checked_topic
from later.option_types import duration, integer, masked, prefix
from later.store.keys import Bucket
from later.store.scan import ScanRange
from later.store.url import check_store_url

ROWS = 100_000
"""About how many tasks a partition has."""
TIMEOUT_S = 10.0
"""How long the store may take to answer: more than a daemon's two seconds, nobody waits for a single answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Tasks of a store, in partitions of about `rows`. The URL has no password."""

    url: str
    prefix: str
    timeout_s: float
    part: ScanRange
    rows: int


def wanted(options: Mapping[str, str]) -> Wanted:
    """What is asked for by options of any case.

    Raises:
        Refused: one is none of the reader's, or wrong; with its name, and what it takes.
        ConfigError: the URL is wrong, or holds a password.
    """
    given = {name.lower(): text for name, text in options.items()}
    values = {name: _value(name, given.pop(name.lower(), None)) for name in _OPTIONS}
    for unknown in given:
        raise Refused(f"{unknown}: no option of a reader; there are {', '.join(_OPTIONS)}", unknown)
    since, before = values["dueAfter"], values["dueBefore"]
    if since is not None and before is not None and since >= before:
        raise Refused("dueBefore: expected a time after dueAfter", "dueBefore")
    if values["url"] is None:
        raise ConfigError("url: expected the store's (redis://, rediss:// or unix://), got nothing")
    return Wanted(
        url=values["url"],
        prefix=values["prefix"] or "later",
        timeout_s=values["timeout"] or TIMEOUT_S,
        part=ScanRange(values["topic"], values["state"] or tuple(Bucket), since, before),
        rows=values["partitionRows"] or ROWS,
    )


def _value(name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return _OPTIONS[name](text.strip())
    except ValueError as error:
        raise Refused(f"{name}: expected {error}, got {describe(text)}", name) from None


def _url(text: str) -> str:
    if text.startswith(("http://", "https://")):
        raise ConfigError(
            f"url {masked(text)}: expected the store's (redis://, rediss:// or unix://): what is read is the store "
            "itself, which no call of the API shows as a whole"
        )
    return check_store_url(text)


def _seconds(text: str) -> float:
    return int(duration(100, 600_000)(text)) / 1000


def _states(text: str) -> tuple[Bucket, ...]:
    try:
        named = [Bucket(word.strip()) for word in text.split(",")]
    except ValueError:
        raise ValueError("one or more of delay, unack, error and dead, with commas between them") from None
    return tuple(dict.fromkeys(named))


def _moment(text: str) -> int:
    try:
        return parse_time("due_after", _number(text))
    except Refused:
        raise ValueError(EXPECTED_TIME) from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "url": _url,
    "prefix": prefix,
    "timeout": _seconds,
    "topic": checked_topic,
    "state": _states,
    "dueAfter": _moment,
    "dueBefore": _moment,
    "partitionRows": integer(1000, 10_000_000),
}
"""By name, as it is shown; a reader makes a value of a text, or raises ValueError with what it takes."""
