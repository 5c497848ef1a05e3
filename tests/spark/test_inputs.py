"""What Spark reads of files, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from later.bulk.input.columns import CORRUPT_COLUMN
from later.bulk.input.csv_checks import NOT_UTF_8, UNCLOSED_QUOTE
from later.bulk.input.reader import InputFrame, JobInput, read_input
from later.bulk.input.table import Table
from later.core.errors import Refused

HEADER = "key,topic,content\n"


def found_in(spark: SparkSession, path: Path, format: str, **said: Any) -> InputFrame:
    given = {"options": {}, "columns": {}, "constants": {}} | said
    return read_input(spark, JobInput(path=str(path), format=format, **given), "job")


def rows_of(spark: SparkSession, path: Path, **options: str) -> list[tuple[str | None, ...]]:
    found = found_in(spark, path, "csv", options=options).frame
    return [tuple(row[name] for name in ("key", "topic", "content", CORRUPT_COLUMN)) for row in found.collect()]


def test_a_line_may_end_within_quotes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + '1,order,"he said ""hi""\nand left"\n2,order,x\n')
    assert rows_of(spark, tmp_path / "a.csv") == [
        ("1", "order", 'he said "hi"\nand left', None),
        ("2", "order", "x", None),
    ]


def test_lines_may_end_as_on_windows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(HEADER.replace("\n", "\r\n").encode() + b"1,order,x\r\n2,order,y\r\n")
    assert rows_of(spark, tmp_path / "a.csv") == [("1", "order", "x", None), ("2", "order", "y", None)]


def test_a_row_of_other_columns_is_told_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "1,order\n2,order,x\n3,order,x,y\n")
    for options in (dict[str, str](), {"multiLine": "false"}):
        one, two, three = rows_of(spark, tmp_path / "a.csv", **options)
        assert (one[-1], two[-1], three[-1]) == ("1,order", None, "3,order,x,y")


def test_each_file_has_a_header(spark: SparkSession, tmp_path: Path) -> None:
    for name, key in (("a.csv", "1"), ("b.csv", "2")):
        (tmp_path / name).write_text(f"{HEADER}{key},order,x\n")
    assert sorted(rows_of(spark, tmp_path)) == [("1", "order", "x", None), ("2", "order", "x", None)]


def test_what_is_no_utf_8_is_told_of(spark: SparkSession, tmp_path: Path) -> None:
    """Or Müller and Möller would be one key, of a bad character."""
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + b"M\xfcller,order,x\nM\xf6ller,order,y\nMaier,order,caf\xe9\n")
    for options in ({}, {"multiLine": "false"}):
        came = sent(found_in(spark, tmp_path / "a.csv", "csv", options=options))
        assert [reject.reason for reject in came.unfit] == [f"key: {NOT_UTF_8}"] * 2 + [f"content: {NOT_UTF_8}"]
    right = sent(found_in(spark, tmp_path / "a.csv", "csv", options={"encoding": "ISO-8859-1"}))
    assert (right.lines.keys, right.unfit) == (["Müller".encode(), "Möller".encode(), b"Maier"], [])


@pytest.mark.parametrize("end", ["", '"'])
@pytest.mark.parametrize("sep", [",", ";", "\\t"])
def test_rows_behind_a_quote_that_is_not_closed_are_told_of(
    sep: str, end: str, spark: SparkSession, tmp_path: Path
) -> None:
    between = sep.replace("\\t", "\t")
    lines = ["key,topic,hook,content", '1,order,http://h/,"hello', "2,order,http://h/,x", f"3,order,http://h/,bye{end}"]
    lines += ["4,order,http://h/,y"] if end else []
    (tmp_path / "a.csv").write_text("\n".join(lines).replace(",", between) + "\n")
    came = sent(found_in(spark, tmp_path / "a.csv", "csv", options={"sep": sep}, columns={"callback": "hook"}))
    assert [(reject.key, reject.reason) for reject in came.unfit] == [("1", f"content: {UNCLOSED_QUOTE}")]
    assert came.lines.keys == ([b"4"] if end else [])


def sent(found: InputFrame) -> Any:
    """What a worker makes of the rows, if it gets them all at once."""
    table: Table = found.table
    [batch] = found.frame.toArrow().combine_chunks().to_batches()
    return table.build_reader(batch.schema).read(batch)


@pytest.mark.parametrize(("header", "why"), [("key,topic,", "column 3 has none"), ("key,x,y,X", "two have 'x'")])
def test_a_header_that_spark_would_not_know_again_is_refused(
    header: str, why: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,order,x\n")
    with pytest.raises(Refused, match=f"a.csv: expected a header with a name for each column, {why} "):
        found_in(spark, tmp_path / "a.csv", "csv")
    found = found_in(spark, tmp_path / "a.csv", "csv", options={"enforceSchema": "true"})
    assert found.frame.collect()[0]["key"] == "1"


@pytest.mark.parametrize("header", ["key,x1,x", "key,topic,content2", "key,_c0,x", "key,x2,x1"])
def test_names_that_are_like_those_of_sparks_are_right(header: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,order,x\n")
    assert found_in(spark, tmp_path / "a.csv", "csv").frame.count() == 1


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_column_that_only_some_files_have_is_read(format: str, spark: SparkSession, tmp_path: Path) -> None:
    write = pq.write_table if format == "parquet" else pyarrow.orc.write_table
    write(pa.table({"key": ["a"], "topic": ["t"]}), tmp_path / f"1.{format}")
    write(pa.table({"key": ["b"], "topic": ["t"], "execute_time": [5.5]}), tmp_path / f"2.{format}")
    rows = found_in(spark, tmp_path, format).frame.collect()
    assert {(row["key"], row["execute_time"]) for row in rows} == {("a", None), ("b", 5.5)}


def test_objects_get_nothing_of_their_directories_names(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("topic=order/day=1", "topic=mail/day=1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.ndjson").write_text('{"key":1}\n')
    with pytest.raises(Refused, match=r"topic: a column of the directories' names \(topic=…\)"):
        found_in(spark, tmp_path, "ndjson")
    for said in ({"constants": {"topic": "order"}}, {"columns": {"topic": "kind"}}):
        found = found_in(spark, tmp_path, "ndjson", **said)
        assert (found.frame.columns, sorted(found.unused)) == (["value"], ["day", "topic"])


def test_a_constant_stands_in_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "1,order,x\n")
    headers = {"headers": '{"Authorization":"hush"}'}
    found = found_in(spark, tmp_path / "a.csv", "csv", constants=headers)
    assert "hush" not in found.frame._jdf.queryExecution().toString()
    assert b'"headers":{"Authorization":"hush"}' in sent(found).lines.bodies[0]


def test_rows_of_which_nothing_is_used_are_there_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"note": ["a", "b"]}), tmp_path / "a.parquet")
    constants = {"topic": "order", "callback": "http://127.0.0.1:9/"}
    found = found_in(spark, tmp_path / "a.parquet", "parquet", constants=constants, keyless=True)
    assert len(sent(found).lines.ids) == 2
