"""A table takes the place of one that later has written, when it is whole, and of nothing else."""

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
from later.bulk.jobs.run import _run
from later.core.errors import LaterError


def ids_in(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(directory)).collect())


def test_a_table_of_ours_is_replaced_and_nothing_is_left_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    for count in (2, 3):
        Output(str(tmp_path / "to"), overwrite=count > 2).write(spark.range(count))
    assert ids_in(spark, tmp_path / "to") == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_it_is_not_replaced_unasked(spark: SparkSession, tmp_path: Path) -> None:
    to = Output(str(tmp_path / "to"))
    to.write(spark.range(2))
    with pytest.raises(LaterError, match="exists: --overwrite replaces"):
        to.write(spark.range(3))
    assert ids_in(spark, tmp_path / "to") == [0, 1]


def test_what_a_user_has_is_never_replaced(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    spark.range(4).write.parquet(str(lake))
    with pytest.raises(LaterError, match="was not written by later"):
        Output(str(lake), overwrite=True).write(spark.range(1))
    assert ids_in(spark, lake) == [0, 1, 2, 3]


def test_a_table_that_cannot_be_made_leaves_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    Output(str(tmp_path / "to")).write(spark.range(2))
    broken = spark.range(3).withColumn("id", F.raise_error(F.lit("no")).cast("bigint"))
    with pytest.raises(PySparkException):
        Output(str(tmp_path / "to"), overwrite=True).write(broken)
    assert ids_in(spark, tmp_path / "to") == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_one_that_could_not_be_made_bars_no_other(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException):
        Output(str(tmp_path / "to")).write(spark.range(1).select(F.raise_error(F.lit("no"))))
    Output(str(tmp_path / "to")).write(spark.range(1))
    assert ids_in(spark, tmp_path / "to") == [0]


def test_a_table_may_take_the_place_of_what_it_was_made_of(spark: SparkSession, tmp_path: Path) -> None:
    to = str(tmp_path / "to")
    Output(to).write(spark.range(3))
    Output(to, overwrite=True).write(spark.read.parquet(to).where("id > 0"))
    assert ids_in(spark, tmp_path / "to") == [1, 2]


def test_an_empty_directory_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    Output(str(tmp_path / "to")).write(spark.range(1))
    assert ids_in(spark, tmp_path / "to") == [0]


def test_an_empty_directory_is_written_to_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """It may be a volume, which is not replaced, and beside which is no room."""
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


def test_a_table_on_a_volume_of_its_own_is_not_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Output(str(tmp_path / "to"), overwrite=True)
    to.write(spark.range(2))
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(tmp_path / "to"))
    with pytest.raises(LaterError, match="to is a mount point and cannot be replaced: name a directory in it"):
        to.write(spark.range(3))
    assert ids_in(spark, tmp_path / "to") == [0, 1]


def test_a_link_stays_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for count in (2, 3):
        Output(str(tmp_path / "link"), overwrite=count > 2).write(spark.range(count))
    assert (tmp_path / "link").is_symlink()
    assert ids_in(spark, tmp_path / "real") == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def let_fail(monkeypatch: pytest.MonkeyPatch, *which: int) -> None:
    """Let these moves fail, of those that come, counted from 1."""
    move, moves = OutputDirectory.move, itertools.count(1)

    def failing(self: OutputDirectory, to: OutputDirectory) -> None:
        if next(moves) in which:
            raise LaterError("no space left")
        move(self, to)

    monkeypatch.setattr(OutputDirectory, "move", failing)


@pytest.mark.parametrize("fails", [1, 2])
def test_a_move_that_fails_loses_neither_table(
    fails: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Output(str(tmp_path / "to"), overwrite=True)
    to.write(spark.range(2))
    let_fail(monkeypatch, fails)
    with pytest.raises(LaterError) as error:
        to.write(spark.range(3))
    why, new = str(error.value).split("; the new table is ")
    assert why == "no space left"
    assert ids_in(spark, tmp_path / "to") == [0, 1]
    assert ids_in(spark, Path(new)) == [0, 1, 2]


def test_where_all_moves_fail_it_is_told_where_both_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Output(str(tmp_path / "to"), overwrite=True)
    to.write(spark.range(2))
    let_fail(monkeypatch, 2, 3)
    with pytest.raises(LaterError, match=r"^no space left; the new table is .*\.new, the old one .*\.old$") as error:
        to.write(spark.range(3))
    new, old = str(error.value).partition(" is ")[2].split(", the old one ")
    assert (ids_in(spark, Path(new)), ids_in(spark, Path(old))) == ([0, 1, 2], [0, 1])


@pytest.mark.parametrize("name", ["rej-[a]", "a{b,c}", "*", "a?", "a\\b", "2026-11-21T09:00"])
def test_a_name_is_no_pattern_when_what_is_wrong_is_read_again(spark: SparkSession, tmp_path: Path, name: str) -> None:
    schema = pa.schema({"rows": pa.int64(), "key": pa.string(), "row": pa.string()})

    def reject_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [str(id) for id in batch.column("id").to_pylist()]
            yield pa.RecordBatch.from_pydict(
                {"rows": [1] + [None] * len(keys), "key": ["", *keys], "row": ["", *keys]}, schema
            )

    spark.range(1).write.parquet(str(tmp_path / "rej-a:b"))

    sums, rows = _run(spark.range(3).coalesce(1), reject_all, schema,
                      Output(str(tmp_path / name)))  # fmt: skip

    assert sums == {"rows": 1}
    assert sorted(row.key for row in rows) == ["0", "1", "2"]
