"""The options of `spark.read.format("later")`: a store, and the selection of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from later.address_types import mask_url
from later.bulk.datasource.options import NO_TABLE_OPTIONS, parse_options, read_seconds, read_stored_job
from later.core.errors import ConfigError, Refused
from later.core.validation import EXPECTED_TIME, parse_time, parse_topic
from later.option_types import DEFAULT_PREFIX, integer, prefix
from later.store.keys import Bucket
from later.store.scan import ScanRange
from later.store.url import SCHEMES_IN_WORDS, check_store_url

PARTITION_ROWS = 100_000
"""The approximate number of tasks in a partition."""
TIMEOUT_S = 10.0
"""How long the store may take to answer. A daemon allows two seconds; a scan can wait longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The tasks to read from a store, in partitions of about `partition_rows`. The URL has no password.

    With a `job`, only its tasks. `columns` are those that are read; None: all.
    """

    url: str
    prefix: str
    timeout_s: float
    scan_range: ScanRange
    partition_rows: int
    job: str | None = None
    columns: tuple[str, ...] | None = None


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a reader.

    Raises:
        Refused: An option is wrong or unknown; the text names it and says what it takes.
        ConfigError: The URL is missing or wrong, or holds a password.
    """
    values = parse_options(given, _READERS)
    since, before = values["dueAfter"], values["dueBefore"]
    if since is not None and before is not None and since >= before:
        raise Refused("dueBefore: expected a time after dueAfter", "dueBefore")
    if values["url"] is None:
        raise ConfigError(f"url: expected the store's ({SCHEMES_IN_WORDS}), got nothing{NO_TABLE_OPTIONS}")
    return ReadOptions(
        url=values["url"],
        prefix=values["prefix"] or DEFAULT_PREFIX,
        timeout_s=values["timeout"] or TIMEOUT_S,
        scan_range=ScanRange(values["topic"], values["state"] or tuple(Bucket), since, before),
        partition_rows=values["partitionRows"] or PARTITION_ROWS,
        job=values["job"],
        columns=values["columns"],
    )


def _read_url(text: str) -> str:
    if text.startswith(("http://", "https://")):
        raise ConfigError(
            f"url {mask_url(text)}: expected the store's ({SCHEMES_IN_WORDS}), because the API cannot list "
            "all tasks of a store"
        )
    return check_store_url(text)


def _read_columns(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _read_states(text: str) -> tuple[Bucket, ...]:
    try:
        return tuple(dict.fromkeys(Bucket(word.strip()) for word in text.split(",")))
    except ValueError:
        raise ValueError("one or more of delay, unack, error and dead, with commas between them") from None


def _read_time(text: str) -> int:
    try:
        seconds: float | str = float(text)
    except ValueError:
        seconds = text
    try:
        return parse_time("due_after", seconds)
    except Refused:
        raise ValueError(EXPECTED_TIME) from None


_READERS: dict[str, Callable[[str], Any]] = {
    "url": _read_url,
    "prefix": prefix,
    "timeout": read_seconds(100, 600_000),
    "topic": parse_topic,
    "state": _read_states,
    "dueAfter": _read_time,
    "dueBefore": _read_time,
    "partitionRows": integer(1000, 10_000_000),
    "job": read_stored_job,
    "columns": _read_columns,
}
