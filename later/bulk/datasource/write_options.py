"""The options of `df.write.format("later")`, checked on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from later.bulk.datasource.options import parse_options, read_job, read_seconds
from later.bulk.input.column_names import TimeRules
from later.bulk.input.row_settings import RowSettings
from later.bulk.transport.target import BATCH_SIZE, RETRIES, TIMEOUT_S, Target
from later.client.key_source import KEY
from later.core.api_keys import has_key_form
from later.core.errors import Refused
from later.option_types import DEFAULT_PREFIX, choice, file_name, integer, prefix
from later.store.url import check_url

SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "numpartitions"})
"""Options of Spark's own, which Spark passes on, too."""
MAX_BATCH_SIZE = 10_000
MAX_REJECTS = 10**15


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """The settings by which a DataFrame is written.

    With `fail_fast`, the first rejected row fails the job; otherwise rejected rows are left out and counted, and more
    than `max_rejects` (None: any number) fail the job in the end.
    """

    target: Target
    row_settings: RowSettings
    fail_fast: bool
    max_rejects: int | None


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer.

    Raises:
        Refused: An option is missing, wrong or unknown; the text names it.
        ConfigError: The URL is wrong, or holds a password.
    """
    values = parse_options(given, _READERS, SPARK_OPTIONS)
    for name, what in _REQUIRED.items():
        if values[name] is None:
            raise Refused(f'{name}: expected {what}: .option("{name}", …)', name)
    fail_fast = values["onError"] in (None, "fail")
    if fail_fast and values["maxRejects"]:
        raise Refused("maxRejects: expected onError=reject with it; otherwise the first rejected row fails the job")
    target = Target(
        url=values["url"],
        prefix=values["prefix"] or DEFAULT_PREFIX,
        timeout_s=values["timeout"] or TIMEOUT_S,
        batch_size=values["batchSize"] or BATCH_SIZE,
        retries=RETRIES if values["retries"] is None else values["retries"],
        key_file=values["keyFile"],
        ca=values["ca"],
    )
    row_settings = RowSettings(
        job=values["jobId"],
        allow_duplicates=values["allowDuplicates"] == "true",
        time_rules=TimeRules(all_now=values["now"] == "true", null_now=values["nullTime"] == "now"),
    )
    return WriteOptions(target=target, row_settings=row_settings, fail_fast=fail_fast, max_rejects=values["maxRejects"])


def _case_insensitive(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: read(text.lower())


def _read_key_file(text: str) -> str | None:
    if has_key_form(text):  # no error may show it
        raise Refused(f"keyFile: expected the name of a file with the key in it, got a key: or put it into {KEY}")
    name: str | None = file_name(text)
    return name


_READERS: dict[str, Callable[[str], Any]] = {
    "url": check_url,
    "jobId": read_job,
    "batchSize": integer(1, MAX_BATCH_SIZE),
    "timeout": read_seconds(100, 3_600_000),
    "retries": integer(0, 100),
    "onError": _case_insensitive(choice("fail", "reject")),
    "maxRejects": integer(0, MAX_REJECTS),
    "allowDuplicates": _case_insensitive(choice("true", "false")),
    "now": _case_insensitive(choice("true", "false")),
    "nullTime": _case_insensitive(choice("reject", "now")),
    "prefix": prefix,
    "keyFile": _read_key_file,
    "ca": file_name,
}

_REQUIRED = {
    "url": "the URL of later, such as http://127.0.0.1:8080",
    "jobId": "an id for the job, the same whenever the same rows are written again",
}
