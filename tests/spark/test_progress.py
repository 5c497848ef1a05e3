"""A job reports how many of Spark's tasks are finished, also if the store has nothing new to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from later.bulk.input import spark_input
from later.bulk.input.spark_input import InputFrame, JobInput
from later.bulk.jobs import progress, run
from later.bulk.transport.target import Target
from later.client.transport import CreateCounts
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, LaterServer, run_server, write_parquet

COUNT = 200
FILES = 2


class Listener:
    """Records the progress of Spark's tasks."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, int]] = []

    def update_partitions(self, finished: int, total: int) -> None:
        self.updates.append((finished, total))

    def update_counts(self, counts: CreateCounts) -> None: ...

    def report_problem(self, reason: str) -> None:
        raise AssertionError(reason)


Job = Callable[[InputFrame, Target, Listener], object]
JOBS: dict[str, Job] = {
    "create": lambda input_frame, target, listener: run.create(input_frame, target, "a-run", None, listener),
    "create again": lambda input_frame, target, listener: run.create(input_frame, target, "a-run", None, listener),
    "validate": lambda input_frame, target, listener: run.validate(
        input_frame, target, None, listener.update_partitions
    ),
    "verify": lambda input_frame, target, listener: run.verify(
        input_frame, target, None, None, listener.update_partitions
    ),
    "cancel": lambda input_frame, target, listener: run.cancel(input_frame, target, listener.update_partitions),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LaterServer]:
    with run_server(tmp_path) as server:
        yield server


def test_every_job_reports_its_finished_tasks(
    spark: SparkSession, server: LaterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.005)
    columns = {"key": range(COUNT), "topic": ["parts"] * COUNT, "callback": [UNUSED_CALLBACK] * COUNT}
    path = write_parquet(tmp_path / "orders", FILES, **columns, delay=[DAY_S] * COUNT)
    job_input = JobInput(path=str(path), format="parquet", options={}, columns={}, constants={})
    input_frame = spark_input.read_input(spark, job_input, "parts")
    for name, job in JOBS.items():
        listener = Listener()
        job(input_frame, Target(url=server.url), listener)
        assert listener.updates, name
        assert listener.updates == sorted(listener.updates), name
        assert all(finished <= total <= FILES for finished, total in listener.updates), name
    assert spark.sparkContext.getLocalProperty(progress.JOB_GROUP_PROPERTY) is None
