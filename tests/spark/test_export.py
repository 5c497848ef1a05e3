"""`spark.read.format("later")` and `bulk export` with Spark: tables, messages and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from later.bulk.datasource import arrow_schema
from later.bulk.datasource.source import LaterDataSource
from later.bulk.jobs import export as export_module
from later.bulk.jobs import progress
from later.bulk.jobs.output import Output
from later.bulk.spark.errors import translate_errors
from later.cli.program import run
from later.core.errors import LaterError
from later.store.keys import Bucket
from later.store.types import TaskRecord
from tests.builders import NOW, a_task
from tests.servers import run_server
from tests.store.inspection import FAILURE, claim_due, died, failed
from tests.store_fixture import open_store

Capture = pytest.CaptureFixture[str]

WAITING = [a_task(id=f"w{n}", topic=f"topic-{n % 3}", delay=60 + n) for n in range(2500)]
FULL = a_task(
    id="full", topic="topic-0", delay=60, ttl=90, headers={"X-A": "b"}, content="é\n", max_retry=1, context={"a": "b"}
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store of sixteen shards: 2,501 tasks are waiting, 3 in flight, 4 in error, 5 dead."""
    with run_server("valkey", tmp_path_factory.mktemp("export")) as (url, _):
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    async with open_store(url, shards=16) as store:
        await store.tasks.create([a_task(id=f"t{n}") for n in range(12)])
        claims = sorted(await claim_due(store), key=lambda claim: int(claim.id[1:]))
        await store.tasks.settle([died(claim) for claim in claims[:5]])
        await store.tasks.settle([failed(claim, NOW + 60_000) for claim in claims[5:9]])
        await store.tasks.create([*WAITING, FULL])


@pytest.fixture
def tasks(spark: SparkSession, store: str) -> DataFrame:
    spark.dataSource.register(LaterDataSource)
    return spark.read.format("later").option("url", store).load()


def export_exit_code(*arguments: str) -> int:
    """Run the command and return its exit status."""
    return run(["bulk", "export", *arguments]).code


def states(frame: DataFrame) -> dict[str, int]:
    return {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()}


def test_the_table_has_the_readers_columns(tasks: DataFrame) -> None:
    assert to_arrow_schema(tasks.schema, timezone="UTC") == arrow_schema.SCHEMA


def test_a_store_is_a_table(tasks: DataFrame) -> None:
    assert states(tasks) == {"delay": 2501, "unack": 3, "error": 4, "dead": 5}
    ids = {row["id"] for row in tasks.select("id").collect()}
    assert ids == {"full", *(task.id for task in WAITING), *(f"t{n}" for n in range(12))}


def test_rows_have_the_tasks_values(tasks: DataFrame) -> None:
    [row] = tasks.where("id = 'full'").toArrow().to_pylist()
    assert row == expected_row(TaskRecord("full", "topic-0", FULL, Bucket.DELAY, FULL.execute_at, 0, None))
    [row] = tasks.where("state = 'error' and id = 't5'").toArrow().to_pylist()
    task = a_task(id="t5")
    assert row == expected_row(TaskRecord("t5", "order", task, Bucket.ERROR, NOW + 60_000, 1, FAILURE))


def expected_row(record: TaskRecord) -> dict[str, Any]:
    [row] = arrow_schema.batch_from_records([record]).to_pylist()
    return dict(row)


def test_options_limit_what_is_read(spark: SparkSession, tasks: DataFrame, store: str) -> None:
    reader = spark.read.format("later").option("url", store)
    assert states(reader.option("topic", "order").option("state", "dead,unack").load()) == {"unack": 3, "dead": 5}


def test_many_partitions_give_the_same_table(spark: SparkSession, tasks: DataFrame, store: str) -> None:
    parts = spark.read.format("later").option("url", store).option("partitionRows", "1000").load()
    assert parts.rdd.getNumPartitions() == 3
    assert parts.select("id").distinct().count() == parts.count() == 2513


@pytest.mark.parametrize(
    ("option", "message"),
    [("stat", "stat: unknown option"), ("state", "state: expected one or more of delay, unack, error and dead")],
)
def test_a_wrong_option_is_refused_in_one_line(
    spark: SparkSession, tasks: DataFrame, store: str, option: str, message: str
) -> None:
    with pytest.raises(LaterError) as error, translate_errors():
        spark.read.format("later").option("url", store).option(option, "x").load().collect()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_export_reports_its_finished_spark_tasks(
    spark: SparkSession, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.005)
    updates: list[tuple[int, int]] = []
    options = {"url": store, "partitionRows": "1000"}
    export_module.export(spark, options, Output(str(tmp_path / "to")), lambda *update: updates.append(update))
    assert {total for _, total in updates} == {3}
    assert updates == sorted(updates)
    assert spark.sparkContext.getLocalProperty(progress.JOB_GROUP_PROPERTY) is None


@pytest.mark.usefixtures("spark")
def test_a_table_of_the_catalog_is_refused_and_a_view_keeps_its_options(spark: SparkSession, store: str) -> None:
    spark.dataSource.register(LaterDataSource)
    with pytest.raises(LaterError, match=r"^later cannot be a table of the catalog, because Spark"), translate_errors():
        spark.sql(f"CREATE TABLE refused USING later OPTIONS (url '{store}', topic 'topic-0')")
    spark.sql(f"CREATE TEMPORARY VIEW some USING later OPTIONS (url '{store}', state 'dead', columns 'id')")
    assert spark.sql("select * from some").columns == ["id"]
    assert spark.sql("select count(*) from some").collect()[0][0] == 5


def test_a_stream_of_a_store_is_refused(spark: SparkSession, store: str, tmp_path: Path) -> None:
    spark.dataSource.register(LaterDataSource)
    tasks = spark.readStream.format("later").option("url", store).load()
    with pytest.raises(LaterError, match=r"^later cannot be read as a stream"), translate_errors():
        tasks.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


class TestCommand:
    def test_all_tasks_are_written(self, spark: SparkSession, store: str, tmp_path: Path, capsys: Capture) -> None:
        to = str(tmp_path / "pool")
        assert export_exit_code(to, "--url", store, "--json") == 0
        result = json.loads(capsys.readouterr().out)
        assert result["counts"] == {"rows": 2513, "delay": 2501, "unack": 3, "error": 4, "dead": 5}
        assert (result["outcome"], result["url"], result["output"]) == ("done", store, to)
        written = spark.read.parquet(to)
        assert {"rows": 2513, **states(written)} == result["counts"]
        assert to_arrow_schema(written.schema, timezone="UTC") == arrow_schema.SCHEMA

    def test_the_dead_tasks_of_a_topic_are_written(
        self, spark: SparkSession, store: str, tmp_path: Path, capsys: Capture
    ) -> None:
        assert export_exit_code(f"{tmp_path}/dead", "--url", store, "--topic", "order", "--state", "dead") == 0
        assert capsys.readouterr().out.startswith("5 rows: 5 dead; ")
        assert sorted(row["id"] for row in spark.read.parquet(f"{tmp_path}/dead").collect()) == [
            f"t{n}" for n in range(5)
        ]

    def test_an_export_may_be_empty(self, spark: SparkSession, store: str, tmp_path: Path, capsys: Capture) -> None:
        assert export_exit_code(f"{tmp_path}/none", "--url", store, "--topic", "nowhere") == 0
        assert capsys.readouterr().out.startswith("0 rows; ")
        assert spark.read.parquet(f"{tmp_path}/none").count() == 0

    def test_an_export_is_replaced_with_overwrite_only(
        self, spark: SparkSession, store: str, tmp_path: Path, capsys: Capture
    ) -> None:
        to = str(tmp_path / "again")
        assert export_exit_code(to, "--url", store, "--topic", "order") == 0
        assert export_exit_code(to, "--url", store) == 1
        assert capsys.readouterr().err == (f"later: {to} exists: --overwrite replaces a table that later has written\n")
        assert spark.read.parquet(to).count() == 12
        assert export_exit_code(to, "--url", store, "--overwrite") == 0
        assert spark.read.parquet(to).count() == 2513

    def test_nothing_but_an_export_is_replaced(self, store: str, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "thesis.txt").write_text("years")
        assert export_exit_code(str(tmp_path), "--url", store, "--overwrite") == 1
        assert "was not written by later" in capsys.readouterr().err
        assert (tmp_path / "thesis.txt").read_text() == "years"

    @pytest.mark.parametrize(
        ("to", "message"),
        [("hdfs://nobody.invalid:9/x", "nobody.invalid"), ("nofs://x/y", 'No FileSystem for scheme "nofs"')],
    )
    def test_an_invalid_directory_is_reported_in_one_line(
        self, to: str, message: str, store: str, capsys: Capture
    ) -> None:
        assert export_exit_code(to, "--url", store) == 1
        err = capsys.readouterr().err
        assert message in err
        assert (err.count("\n"), "Traceback" in err) == (1, False)

    def test_an_unavailable_store_is_reported_in_one_line(self, tmp_path: Path, capsys: Capture) -> None:
        assert export_exit_code(f"{tmp_path}/x", "--url", f"unix://{tmp_path}/nowhere.sock") == 3
        err = capsys.readouterr().err
        assert err.startswith("later: the store cannot be reached")
        assert err.count("\n") == 1
