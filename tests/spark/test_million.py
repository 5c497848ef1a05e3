"""A million rows, of which twelve thousand are wrong in fifteen ways: those are rejected, the others become tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from later.store.keys import Bucket
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, LaterServer, run_bulk, task_ids, write_parquet
from tests.system.stores import count_bucket

ROWS, ROWS_PER_FAULT = 1_000_000, 800
FILES = 8
TYPES = {"key": pa.int64(), "delay": pa.float64(), "retry": pa.int32(), "ttl": pa.float64()}
"""All other columns are strings."""


class Fault(NamedTuple):
    """Wrong values of a row, and how it is rejected."""

    values: dict[str, Any]
    field: str
    reason: str


URL = "expected an absolute http or https URL of at most 2048 characters, got"
WITHOUT = "only a topic with deliver pull has tasks without, or one whose policy has a callback"
TOPIC = "expected a string of 1 to 255 bytes without control characters or empty parts, got"
FAULTS = (
    Fault({"callback": None}, "callback", f"{URL} nothing: {WITHOUT}"),
    Fault({"callback": "http:///hook"}, "callback", f'{URL} "http:///hook"'),
    Fault({"callback": "ftp://h/hook"}, "callback", f'{URL} "ftp://h/hook"'),
    Fault(
        {"callback": "http://me:secret@h/"},
        "callback",
        "expected a URL without user:password@, got a URL with user:password@",
    ),
    Fault({"delay": -5.0}, "delay", "expected a number of seconds ≥ 0, got -5"),
    Fault({"delay": float("nan")}, "delay", "expected a number of seconds ≥ 0, got nan"),
    Fault({"execute_time": "1795298743"}, "execute_time", "expected either delay or execute_time, got both"),
    Fault(
        {"delay": None, "execute_time": "soon"},
        "execute_time",
        'expected a number of Unix seconds or an RFC 3339 time, got "soon"',
    ),
    Fault(
        {"delay": None, "execute_time": "9999999999"},
        "execute_time",
        "expected a time at most ten years ahead, got 9999999999",
    ),
    Fault({"topic": None}, "topic", f"{TOPIC} nothing"),
    Fault({"topic": "or\ader"}, "topic", f'{TOPIC} "or\\x07der"'),
    Fault({"key": None}, "key", "expected a value, got nothing"),
    Fault({"retry": 1001}, "retry", "expected an integer from 0 to 1000, got 1001"),
    Fault({"ttl": 0.0}, "ttl", "expected a number of seconds > 0, got 0"),
    Fault({"headers": '{"Host": "h"}'}, "headers", 'expected a header of your own, got "Host", which later sets'),
)


def test_each_of_a_million_rows_is_a_task_or_a_reject(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    rejected, without_key = len(FAULTS) * ROWS_PER_FAULT, ROWS_PER_FAULT
    assert rejected == 12_000

    orders = write_input(tmp_path / "orders", ROWS, ROWS_PER_FAULT)
    options = ("--job", "million", "--url", server.url, "--rejects", tmp_path / "rejects")
    result = run_bulk(spark, "create", orders, *options, "--json")

    assert result.status == 1
    counts = result.counts
    assert (counts["rows"], counts["created"], counts["existing"], counts["rejected"]) == (
        ROWS,
        ROWS - rejected,
        0,
        rejected,
    )
    assert server.job_counts("million") == (ROWS - rejected, 0, rejected - without_key)
    assert count_bucket(server.redis, Bucket.DELAY, "order") == ROWS - rejected
    assert f"later: all rejected rows are in {tmp_path / 'rejects'}" in result.err
    assert read_rejects(tmp_path / "rejects") == expected_rejects(ROWS, ROWS_PER_FAULT)


@pytest.mark.parametrize(("limit", "status"), [(len(FAULTS), 0), (len(FAULTS) - 1, 1)])
def test_more_rejects_than_allowed_are_a_failure(
    limit: int, status: int, spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    """The rows are validated by the same code if the target is the store."""
    count, job = len(FAULTS) * 2, f"limit-{limit}"
    orders = write_input(tmp_path / "orders", count, 1, topic=job)

    options = ("--job", job, "--url", server.store_url, "--rejects", tmp_path / "rejects", "--max-rejects", limit)
    result = run_bulk(spark, "create", orders, *options, "--json")

    assert result.status == status
    assert server.topic_ids(job) == task_ids(job, {*range(count)} - faults(count, 1).keys())
    assert read_rejects(tmp_path / "rejects") == expected_rejects(count, 1, job)


def write_input(path: Path, count: int, per_fault: int, topic: str = "order") -> Path:
    """Write rows with the keys 0, 1, …, valid but for the faults."""
    columns: dict[str, list[Any]] = {
        "key": list(range(count)),
        "topic": [topic] * count,
        "callback": [UNUSED_CALLBACK] * count,
        "delay": [float(DAY_S + key % 1000) for key in range(count)],
        **{name: [None] * count for name in ("execute_time", "retry", "ttl", "headers")},
    }
    for key, fault in faults(count, per_fault).items():
        for name, value in fault.values.items():
            columns[name][key] = value
    typed = {name: pa.array(values, TYPES.get(name, pa.string())) for name, values in columns.items()}
    return write_parquet(path, FILES, **typed)


def faults(count: int, per_fault: int) -> dict[int, Fault]:
    """Return the faults by the keys of their rows."""
    total = len(FAULTS) * per_fault
    return {number * (count // total): FAULTS[number % len(FAULTS)] for number in range(total)}


Rejects = Counter[tuple[str | None, str, str, str]]
"""Rejects by key, field, reason and row."""


def expected_rejects(count: int, per_fault: int, topic: str = "order") -> Rejects:
    rejects: Rejects = Counter()
    for key, fault in faults(count, per_fault).items():
        row = {
            "key": key,
            "topic": topic,
            "callback": UNUSED_CALLBACK,
            "delay": float(DAY_S + key % 1000),
            **fault.values,
        }
        row_key = row.pop("key")
        row_json = {name: _json_value(value) for name, value in row.items() if value is not None}
        row_json |= {} if row_key is None else {"key": str(row_key)}
        if "@" in row_json.get("callback", ""):
            row_json["callback"] = "http://***@h/"
        if "headers" in row_json:
            row_json["headers"] = {"Host": "***"}
        rejects[
            None if row_key is None else str(row_key), fault.field, f"{fault.field}: {fault.reason}", _text(row_json)
        ] += 1
    return rejects


def read_rejects(path: Path) -> Rejects:
    table = pq.read_table(path)
    keys, fields, reasons, rows = (table[name].to_pylist() for name in ("key", "field", "reason", "row"))
    return Counter(zip(keys, fields, reasons, (_text(json.loads(row)) for row in rows), strict=True))


def _json_value(value: Any) -> Any:
    """Return the number or the object of a text, as it is in a row's JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
