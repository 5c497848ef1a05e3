"""The options of `df.write.format("later")`, as strings in camelCase, whatever their case: checked on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from later.bulk.input.table import Table
from later.bulk.input.task_ids import check_job
from later.bulk.transport.target import BATCH, PREFIX, RETRIES, TIMEOUT_S, Target
from later.core.errors import LaterError, Refused
from later.option_types import duration, integer, prefix
from later.store.url import check_url

ON_ERROR = ("fail", "reject")
OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "numpartitions"})
"""Options that Spark hands on, and that say nothing to us."""
MAX_BATCH = 10_000
MOST = 10**15

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """How a DataFrame is written. `max_rejects` None: any number may be."""

    target: Target
    table: Table
    fails: bool
    """Does a row that is refused fail the job? Otherwise it is left out, and counted."""
    max_rejects: int | None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a writer.

    Raises:
        LaterError: one is missing, wrong or unknown, by its name.
    """
    options = _Options(given, _WRITE)
    target = Target(
        url=options.take("url", check_url, None),
        prefix=options.take("prefix", prefix, PREFIX),
        timeout_s=options.take("timeout", _seconds, TIMEOUT_S),
        batch=options.take("batchSize", integer(1, MAX_BATCH), BATCH),
        retries=options.take("retries", integer(0, 100), RETRIES),
    )
    table = Table(
        job=options.take("jobId", _job, None),
        allow_duplicates=options.take("allowDuplicates", _switch, False),
    )
    fails = options.take("onError", _on_error, ON_ERROR[0]) == ON_ERROR[0]
    max_rejects = options.take("maxRejects", integer(0, MOST), None)
    if fails and max_rejects:
        raise LaterError("maxRejects: expected onError=reject with it: else the first row that is refused fails all")
    return WriteOptions(target=target, table=table, fails=fails, max_rejects=max_rejects)


_WRITE = (
    "url", "jobId", "batchSize", "timeout", "retries", "onError", "maxRejects", "allowDuplicates", "prefix",
)  # fmt: skip


class _Options:
    """What was given, by names in lower case, for Spark's are."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        strangers = self._given.keys() - {name.lower() for name in known} - OF_SPARK
        if strangers:
            raise LaterError(f"{min(strangers)}: no option; there are {', '.join(known)}")

    def take(self, name: str, read: Callable[[str], Value], default: Value | None) -> Any:
        """The option's value. Raises LaterError: it is wrong, or missing where there is no default."""
        text = self._given.get(name.lower())
        if text is None:
            if default is None and name in ("url", "jobId"):
                raise LaterError(f'{name}: expected {_NEEDED[name]}: .option("{name}", …)')
            return default
        try:
            return read(text.strip())
        except ValueError as error:
            raise LaterError(f"{name}: expected {error}, got {text!r}") from None


_NEEDED = {
    "url": "where later is, as http://127.0.0.1:8080",
    "jobId": "an id for the job, the same whenever the same rows are written again",
}


def _job(text: str) -> str:
    try:
        return check_job(text)
    except Refused as error:
        raise ValueError(error.detail.removeprefix("expected ")) from None


def _seconds(text: str) -> float:
    return int(duration(100, 3_600_000)(text)) / 1000


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _on_error(text: str) -> str:
    if text.lower() not in ON_ERROR:
        raise ValueError(" or ".join(ON_ERROR))
    return text.lower()
