"""Tables of rejects: where each row was, and how rows that are mended are sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    CommandResult,
    LaterServer,
    run_bulk,
    run_server,
    task_ids,
    write_parquet,
)

CSV_HEADER = "key,topic,callback,delay\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterServer]:
    with run_server(tmp_path_factory.mktemp("rejects")) as server:
        yield server


def create(
    spark: SparkSession, server: LaterServer, path: Path, job: str, rejects: Path, *options: object
) -> CommandResult:
    return run_bulk(spark, "create", path, "--job", job, "--url", server.url, "--rejects", rejects, *options)


def read_rejects(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of all runs' tables of rejects, sorted by key."""
    rows: list[dict[str, Any]] = pq.read_table(directory).to_pylist()
    return sorted(rows, key=lambda row: row["key"] or "")


def csv_row(key: int, delay: object = DAY_S) -> str:
    return f"{key},order,{UNUSED_CALLBACK},{delay}\n"


def ndjson_row(key: int, delay: object = DAY_S) -> str:
    return json.dumps({"key": key, "topic": "order", "callback": UNUSED_CALLBACK, "delay": delay}) + "\n"


def test_a_reject_says_in_which_file_and_where_its_row_is(
    spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    """The rows of two files are in one partition of Spark's, or those of one file in several."""
    texts = {
        "csv": [CSV_HEADER + csv_row(1) + csv_row(2, -5), CSV_HEADER + csv_row(3, -5)],
        "ndjson": [ndjson_row(1) + "\n" + ndjson_row(2, -5), ndjson_row(3, -5)],
        "json": [f"[{ndjson_row(1)},{ndjson_row(2, -5)}]", ndjson_row(3, -5)],
    }
    line_of_the_second_row = {"csv": 2, "ndjson": 3, "json": 2, "parquet": 2}
    for format, files in texts.items():
        (tmp_path / format).mkdir()
        for name, text in zip(("a", "b"), files, strict=True):
            (tmp_path / format / f"{name}.{format}").write_text(text)
    columns = {"key": [1, 2, 3], "topic": ["order"] * 3, "callback": [UNUSED_CALLBACK] * 3, "delay": [DAY_S, -5, -5]}
    for name, rows in (("a", slice(0, 2)), ("b", slice(2, 3))):
        (tmp_path / "parquet").mkdir(exist_ok=True)
        pq.write_table(pa.table({c: v[rows] for c, v in columns.items()}), tmp_path / "parquet" / f"{name}.parquet")

    for format, second in line_of_the_second_row.items():
        rejects = tmp_path / f"rejects-{format}"
        result = create(spark, server, tmp_path / format, f"where-{format}", rejects, "--format", format)
        assert result.status == 1
        found = [(row["key"], Path(row["file"]).name, row["position"]) for row in read_rejects(rejects)]
        assert found == [("2", f"a.{format}", second), ("3", f"b.{format}", 1)]


def test_a_reject_is_mended_and_sent_again(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """The mended row becomes the task that the row of the input would have become."""
    orders = write_parquet(
        tmp_path / "orders", 1, order_id=[1, 2], hook=[UNUSED_CALLBACK] * 2, delay=[DAY_S, -DAY_S],
        content=["one", "two"],
    )  # fmt: skip
    options = ("--column", "key=order_id", "--column", "callback=hook", "--set", "topic=mended")
    result = create(spark, server, orders, "mended", tmp_path / "rejects", *options)
    [reject] = read_rejects(tmp_path / "rejects")
    assert (result.status, reject["field"], reject["code"], reject["got"]) == (1, "delay", "invalid", str(-DAY_S))

    again = run_bulk(spark, "create", tmp_path / "rejects", "--job", "mended", "--url", server.url)
    table = pa.Table.from_pylist([{**reject, "row": reject["row"].replace("-", "")}])
    (tmp_path / "mended").mkdir()
    pq.write_table(table, tmp_path / "mended" / "0.parquet")
    mended = run_bulk(spark, "create", tmp_path / "mended", "--job", "mended", "--url", server.url)

    assert again.status == 1
    assert "1 rows: 0 created, 0 already there, 1 rejected" in again.out
    assert (mended.status, mended.err) == (0, "")
    assert server.topic_ids("mended") == task_ids("mended", [1, 2])
