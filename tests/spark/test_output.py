"""Output tables: a complete table replaces one that later has written, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.jobs.output import Output, OutputDirectory
from later.bulk.jobs.run import _map_partitions
from later.core.errors import LaterError


def ids_in(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(directory)).collect())


def test_a_table_of_laters_is_replaced_and_nothing_is_left_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    for count in (2, 3):
        Output(str(tmp_path / "to"), overwrite=count > 2).write(spark.range(count))
    assert ids_in(spark, tmp_path / "to") == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_table_is_not_replaced_without_overwrite(spark: SparkSession, tmp_path: Path) -> None:
    output = Output(str(tmp_path / "to"))
    output.write(spark.range(2))
    with pytest.raises(LaterError, match="exists: --overwrite replaces"):
        output.write(spark.range(3))
    assert ids_in(spark, tmp_path / "to") == [0, 1]


def test_a_users_own_table_is_never_replaced(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    spark.range(4).write.parquet(str(lake))
    with pytest.raises(LaterError, match="was not written by later"):
        Output(str(lake), overwrite=True).write(spark.range(1))
    assert ids_in(spark, lake) == [0, 1, 2, 3]


def test_a_failed_write_leaves_the_old_table(spark: SparkSession, tmp_path: Path) -> None:
    Output(str(tmp_path / "to")).write(spark.range(2))
    broken = spark.range(3).withColumn("id", F.raise_error(F.lit("no")).cast("bigint"))
    with pytest.raises(PySparkException):
        Output(str(tmp_path / "to"), overwrite=True).write(broken)
    assert ids_in(spark, tmp_path / "to") == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_failed_write_does_not_prevent_the_next(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException):
        Output(str(tmp_path / "to")).write(spark.range(1).select(F.raise_error(F.lit("no"))))
    Output(str(tmp_path / "to")).write(spark.range(1))
    assert ids_in(spark, tmp_path / "to") == [0]


def test_a_table_may_replace_the_one_it_was_made_from(spark: SparkSession, tmp_path: Path) -> None:
    to = str(tmp_path / "to")
    Output(to).write(spark.range(3))
    Output(to, overwrite=True).write(spark.read.parquet(to).where("id > 0"))
    assert ids_in(spark, tmp_path / "to") == [1, 2]


def test_an_empty_directory_is_used(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    Output(str(tmp_path / "to")).write(spark.range(1))
    assert ids_in(spark, tmp_path / "to") == [0]


def test_an_empty_directory_is_written_in_place(spark: SparkSession, tmp_path: Path) -> None:
    """It may be a mount point, which cannot be replaced and has no room beside it."""
    (tmp_path / "to").mkdir()
    before = (tmp_path / "to").stat().st_ino
    broken = spark.range(3, numPartitions=3).withColumn(
        "id", F.when(F.col("id") < 2, F.col("id")).otherwise(F.raise_error(F.lit("no")).cast("bigint"))
    )
    with pytest.raises(PySparkException):
        Output(str(tmp_path / "to")).write(broken)
    assert list((tmp_path / "to").iterdir()) == []
    Output(str(tmp_path / "to")).write(spark.range(2))
    assert (tmp_path / "to").stat().st_ino == before
    assert ids_in(spark, tmp_path / "to") == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_table_on_a_mount_point_is_not_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(str(tmp_path / "to"), overwrite=True)
    output.write(spark.range(2))
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(tmp_path / "to"))
    with pytest.raises(LaterError, match="to is a mount point and cannot be replaced: name a directory in it"):
        output.write(spark.range(3))
    assert ids_in(spark, tmp_path / "to") == [0, 1]


def test_a_symbolic_link_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for count in (2, 3):
        Output(str(tmp_path / "link"), overwrite=count > 2).write(spark.range(count))
    assert (tmp_path / "link").is_symlink()
    assert ids_in(spark, tmp_path / "real") == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def fail_moves(monkeypatch: pytest.MonkeyPatch, *which: int) -> None:
    """Let these moves fail, counted from 1."""
    move, moves = OutputDirectory.move, itertools.count(1)

    def move_or_fail(self: OutputDirectory, target: OutputDirectory) -> None:
        if next(moves) in which:
            raise LaterError("no space left")
        move(self, target)

    monkeypatch.setattr(OutputDirectory, "move", move_or_fail)


@pytest.mark.parametrize("fails", [1, 2])
def test_a_failed_move_loses_neither_table(
    fails: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(str(tmp_path / "to"), overwrite=True)
    output.write(spark.range(2))
    fail_moves(monkeypatch, fails)
    with pytest.raises(LaterError) as error:
        output.write(spark.range(3))
    why, new = str(error.value).split("; the new table is ")
    assert why == "no space left"
    assert ids_in(spark, tmp_path / "to") == [0, 1]
    assert ids_in(spark, Path(new)) == [0, 1, 2]


def test_the_error_tells_where_both_tables_are_if_all_moves_fail(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(str(tmp_path / "to"), overwrite=True)
    output.write(spark.range(2))
    fail_moves(monkeypatch, 2, 3)
    with pytest.raises(LaterError, match=r"^no space left; the new table is .*\.new, the old one .*\.old$") as error:
        output.write(spark.range(3))
    new, old = str(error.value).partition(" is ")[2].split(", the old one ")
    assert (ids_in(spark, Path(new)), ids_in(spark, Path(old))) == ([0, 1, 2], [0, 1])


@pytest.mark.parametrize("name", ["rej-[a]", "a{b,c}", "*", "a?", "a\\b", "2026-11-21T09:00"])
def test_a_name_is_not_read_again_as_a_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    schema = pa.schema({"rows": pa.int64(), "key": pa.string(), "row": pa.string()})

    def reject_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [str(id) for id in batch.column("id").to_pylist()]
            yield pa.RecordBatch.from_pydict(
                {"rows": [1] + [None] * len(keys), "key": ["", *keys], "row": ["", *keys]}, schema
            )

    spark.range(1).write.parquet(str(tmp_path / "rej-a:b"))

    sums, rows = _map_partitions(spark.range(3).coalesce(1), reject_all, schema,
                      Output(str(tmp_path / name)))  # fmt: skip

    assert sums == {"rows": 1}
    assert sorted(row.key for row in rows) == ["0", "1", "2"]
