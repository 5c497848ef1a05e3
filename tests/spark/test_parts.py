"""Whoever runs a job over an input hears how far Spark is, also where the store has nothing new to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from later.bulk.input import reader
from later.bulk.input.reader import InputFrame, JobInput
from later.bulk.jobs import progress, run
from later.bulk.transport.target import Target
from later.client.transport import CreateCounts
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, LaterServer, run_server, write_parquet

COUNT = 200
FILES = 2


class Listener:
    """Keeps how far Spark was."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []

    def update_tasks(self, finished: int, total: int) -> None:
        self.heard.append((finished, total))

    def update_counts(self, counts: CreateCounts) -> None: ...

    def report_problem(self, reason: str) -> None:
        raise AssertionError(reason)


Job = Callable[[InputFrame, Target, Listener], object]
JOBS: dict[str, Job] = {
    "create": lambda found, target, listener: run.create(found, target, None, listener),
    "create again": lambda found, target, listener: run.create(found, target, None, listener),
    "validate": lambda found, target, listener: run.validate(found, target, None, listener.update_tasks),
    "find": lambda found, target, listener: run.find(found, target, None, listener.update_tasks),
    "cancel": lambda found, target, listener: run.cancel(found, target, listener.update_tasks),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LaterServer]:
    with run_server(tmp_path) as server:
        yield server


def test_it_is_told_how_many_parts_are_done(
    spark: SparkSession, server: LaterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.005)
    columns = {"key": range(COUNT), "topic": ["parts"] * COUNT, "callback": [UNUSED_CALLBACK] * COUNT}
    path = write_parquet(tmp_path / "orders", FILES, **columns, delay=[DAY_S] * COUNT)
    given = JobInput(path=str(path), format="parquet", options={}, columns={}, constants={})
    found = reader.read_input(spark, given, "parts")
    for name, job in JOBS.items():
        listener = Listener()
        job(found, Target(url=server.url), listener)
        assert listener.heard, name
        assert listener.heard == sorted(listener.heard), name
        assert all(done <= of <= FILES for done, of in listener.heard), name
    assert spark.sparkContext.getLocalProperty(progress.GROUP) is None
