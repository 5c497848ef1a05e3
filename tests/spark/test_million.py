"""A million rows, of which twelve thousand are wrong in fifteen ways: the others are tasks, these say why not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from later.store.keys import Bucket
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, LaterServer, run_bulk, run_server, task_ids, write_parquet
from tests.system.stores import count_bucket

ROWS, OF_EACH = 1_000_000, 800
FILES = 8
TYPES = {"key": pa.int64(), "delay": pa.float64(), "retry": pa.int32(), "ttl": pa.float64()}
"""All others are texts."""


class Fault(NamedTuple):
    """Values that a row has in place of right ones, and how it is refused."""

    values: dict[str, Any]
    field: str
    reason: str


URL = "expected an absolute http or https URL of at most 2048 characters, got"
TOPIC = "expected a string of 1 to 255 bytes without control characters or empty parts, got"
FAULTS = (
    Fault({"callback": None}, "callback", f"{URL} nothing"),
    Fault({"callback": "http:///hook"}, "callback", f'{URL} "http:///hook"'),
    Fault({"callback": "ftp://h/hook"}, "callback", f'{URL} "ftp://h/hook"'),
    Fault({"callback": "http://me:secret@h/"}, "callback", "expected a URL without user:password@, got one with it"),
    Fault({"delay": -5.0}, "delay", "expected a number of seconds ≥ 0, got -5"),
    Fault({"delay": float("nan")}, "delay", "expected a number of seconds ≥ 0, got nan"),
    Fault({"execute_time": "1795298743"}, "execute_time", "expected either delay or execute_time, got both"),
    Fault({"delay": None, "execute_time": "soon"}, "execute_time", 'expected a number of Unix seconds, got "soon"'),
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterServer]:
    with run_server(tmp_path_factory.mktemp("million")) as server:
        yield server


def test_a_million_rows_are_tasks_or_say_why_not(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    wrong, keyless = len(FAULTS) * OF_EACH, OF_EACH
    assert wrong == 12_000

    orders = an_input(tmp_path / "orders", ROWS, OF_EACH)
    sent = ("--job", "million", "--url", server.url, "--rejects", tmp_path / "rejects")
    ended = run_bulk(spark, "create", orders, *sent, "--json")

    assert ended.status == 1
    told = ended.json
    assert (told["rows"], told["created"], told["existing"], told["rejected"]) == (ROWS, ROWS - wrong, 0, wrong)
    assert server.job_counts("million") == (ROWS - wrong, 0, wrong - keyless)
    assert count_bucket(server.redis, Bucket.DELAY, "order") == ROWS - wrong
    assert f"later: all of them: {tmp_path / 'rejects'}" in ended.err
    assert rejected(tmp_path / "rejects") == expected(ROWS, OF_EACH)


@pytest.mark.parametrize(("most", "status"), [(len(FAULTS), 0), (len(FAULTS) - 1, 1)])
def test_so_many_may_be_rejected(
    most: int, status: int, spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    """Also by the store itself, where the same is judged by the same."""
    count, job = len(FAULTS) * 2, f"most-{most}"
    orders = an_input(tmp_path / "orders", count, 1, topic=job)

    sent = ("--job", job, "--url", server.store_url, "--rejects", tmp_path / "rejects", "--max-rejects", most)
    ended = run_bulk(spark, "create", orders, *sent, "--json")

    assert ended.status == status
    assert server.topic_ids(job) == task_ids(job, {*range(count)} - faults(count, 1).keys())
    assert rejected(tmp_path / "rejects") == expected(count, 1, job)


def an_input(path: Path, count: int, of_each: int, topic: str = "order") -> Path:
    """Rows with the keys 0, 1, …, right but for the faults."""
    columns: dict[str, list[Any]] = {
        "key": list(range(count)),
        "topic": [topic] * count,
        "callback": [UNUSED_CALLBACK] * count,
        "delay": [float(DAY_S + key % 1000) for key in range(count)],
        **{name: [None] * count for name in ("execute_time", "retry", "ttl", "headers")},
    }
    for key, fault in faults(count, of_each).items():
        for name, value in fault.values.items():
            columns[name][key] = value
    typed = {name: pa.array(values, TYPES.get(name, pa.string())) for name, values in columns.items()}
    return write_parquet(path, FILES, **typed)


def faults(count: int, of_each: int) -> dict[int, Fault]:
    """The keys of the rows that have one."""
    total = len(FAULTS) * of_each
    return {number * (count // total): FAULTS[number % len(FAULTS)] for number in range(total)}


Told = Counter[tuple[str | None, str, str, str]]
"""Of each reject: its key, its field, why, and the row."""


def expected(count: int, of_each: int, topic: str = "order") -> Told:
    told: Told = Counter()
    for key, fault in faults(count, of_each).items():
        row = {
            "key": key,
            "topic": topic,
            "callback": UNUSED_CALLBACK,
            "delay": float(DAY_S + key % 1000),
            **fault.values,
        }
        whose = row.pop("key")
        shown = {name: _in_json(value) for name, value in row.items() if value is not None}
        if "@" in shown.get("callback", ""):
            shown["callback"] = "http://***@h/"
        if "headers" in shown:
            shown["headers"] = {"Host": "***"}
        told[None if whose is None else str(whose), fault.field, f"{fault.field}: {fault.reason}", _text(shown)] += 1
    return told


def rejected(path: Path) -> Told:
    table = pq.read_table(path)
    keys, fields, reasons, rows = (table[name].to_pylist() for name in ("key", "field", "reason", "row"))
    return Counter(zip(keys, fields, reasons, (_text(json.loads(row)) for row in rows), strict=True))


def _in_json(value: Any) -> Any:
    """A text that is a number's or an object's stands there as such."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
