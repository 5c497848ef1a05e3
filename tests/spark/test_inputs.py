"""What Spark reads of files, row by row."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from later.bulk.inputs import Input, read
from later.bulk.rows import CORRUPT

HEADER = "key,topic,content\n"


def rows_of(spark: SparkSession, path: Path, **options: str) -> list[tuple[str | None, ...]]:
    given = Input(path=str(path), format="csv", options=options, columns={}, constants={})
    found = read(spark, given, "job").frame
    return [tuple(row[name] for name in ("key", "topic", "content", CORRUPT)) for row in found.collect()]


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
