"""Tables of rejects: where each row was, and how rows that are mended are sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    CommandResult,
    LaterServer,
    run_bulk,
    task_ids,
    write_parquet,
)

CSV_HEADER = "key,topic,callback,delay\n"


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
    columns: dict[str, list[Any]]
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

    [run] = (tmp_path / "rejects").iterdir()
    again = run_bulk(spark, "create", run, "--job", "mended", "--url", server.url)
    table = pa.Table.from_pylist([{**reject, "row": reject["row"].replace("-", "")}])
    (tmp_path / "mended").mkdir()
    pq.write_table(table, tmp_path / "mended" / "0.parquet")
    mended = run_bulk(spark, "create", tmp_path / "mended", "--job", "mended", "--url", server.url)

    assert again.status == 1
    assert "1 rows: 0 created, 0 already there, 1 rejected" in again.out
    assert (mended.status, mended.err) == (0, "")
    assert server.topic_ids("mended") == task_ids("mended", [1, 2])


def test_the_same_command_can_be_run_again_with_its_rejects(
    spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    orders = tmp_path / "orders.ndjson"
    orders.write_text(ndjson_row(1) + ndjson_row(2, -5))

    for _ in range(2):
        assert create(spark, server, orders, "again", tmp_path / "rejects").status == 1

    rows = spark.read.parquet(str(tmp_path / "rejects")).collect()
    assert [row["key"] for row in rows] == ["2", "2"]
    assert len({row["run"] for row in rows}) == 2
    assert {path.name.partition("=")[0] for path in (tmp_path / "rejects").iterdir()} == {"run"}


def test_rejects_are_not_written_between_other_files(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    orders = tmp_path / "orders.ndjson"
    orders.write_text(ndjson_row(1, -5))

    result = create(spark, server, orders, "between", tmp_path)

    reason = "has more in it than tables of rejects by run, such as orders.ndjson: name another directory"
    assert (result.status, result.err) == (1, f"later: {tmp_path} {reason}\n")


def test_verify_tells_missing_rows_from_rejected_ones(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    orders = tmp_path / "orders.ndjson"
    orders.write_text(ndjson_row(1) + ndjson_row(2, -5) + ndjson_row(3, -5))
    assert create(spark, server, orders, "told", tmp_path / "rejects").status == 1
    orders.write_text(orders.read_text() + ndjson_row(4))
    verify = ("verify", orders, "--job", "told", "--url", server.url, "--rejects", tmp_path / "rejects")

    printed = run_bulk(spark, *verify)
    counted = run_bulk(spark, *verify, "--json", "--missing", tmp_path / "missing")

    assert printed.status == 1
    assert "4 rows: 1 pending, 0 ended, 0 dead, 2 rejected, 1 missing, " in printed.out
    assert [line.startswith("later: missing: key 4: ") for line in printed.err.splitlines()] == [True, False]
    assert (counted.counts["rejected"], counted.counts["missing"]) == (2, 1)
    assert [row["key"] for row in pq.read_table(tmp_path / "missing").to_pylist()] == ["4"]


def test_headers_without_their_values_are_not_sent(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """A receiver would be called with *** for its password. The values come from --set, or from the input itself."""
    orders = tmp_path / "orders.ndjson"
    row = {"key": 1, "topic": "headers", "callback": UNUSED_CALLBACK, "delay": -5, "headers": {"A": "secret"}}
    orders.write_text(json.dumps(row))
    create(spark, server, orders, "headers", tmp_path / "rejects")
    [reject] = read_rejects(tmp_path / "rejects")
    mended = tmp_path / "mended.ndjson"
    mended.write_text(reject["row"].replace("-5", str(DAY_S)))

    refused = create(spark, server, mended, "headers", tmp_path / "again")
    sent = create(spark, server, mended, "headers", tmp_path / "sent", "--set", 'headers={"A":"secret"}')

    assert "secret" not in json.dumps(reject)
    assert (refused.status, read_rejects(tmp_path / "again")[0]["code"]) == (1, "redacted")
    assert (sent.status, server.topic_ids("headers")) == (0, task_ids("headers", [1]))
