"""`later bulk export`: the tasks of a store as they stand, or a part of them, to Parquet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import NamedTuple
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.faults import translated
from later.bulk.output import Output
from later.bulk.source import NAME, LaterDataSource
from later.core.errors import LaterError
from later.store.keys import Bucket

LOOK_EVERY_S = 0.5
GROUP = "spark.jobGroup.id"
"""By which Spark knows what jobs a thread has started."""

Heard = Callable[[int, int], None]


class Exported(NamedTuple):
    """How many tasks were written, by state."""

    states: dict[str, int]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(self.states.values())


def export(spark: SparkSession, options: Mapping[str, str], to: Output, heard: Heard) -> Exported:
    """Write what a reader with these options reads.

    `heard` is told now and then how many parts are written, and of how many.

    Raises:
        LaterError: the directory is there already, or is to be overwritten and holds what is no export's; the store
            cannot be reached; whatever Spark says went wrong.
    """
    to.check(spark)
    started = time.monotonic()
    states = Observation()
    counts = [F.count_if(F.col("state") == bucket.value).alias(bucket.value) for bucket in Bucket]
    with translated(), _watched(spark.sparkContext, heard):
        spark.dataSource.register(LaterDataSource)
        tasks = spark.read.format(NAME).options(**options).load().observe(states, *counts)
        to.write(tasks)
    return Exported(states.get, time.monotonic() - started)


@contextmanager
def _watched(spark: SparkContext, heard: Heard) -> Iterator[None]:
    """Tell how far the jobs of this thread are, until the end."""
    before, group = spark.getLocalProperty(GROUP), f"later-export-{uuid4()}"
    spark.setLocalProperty(GROUP, group)
    over = Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY_S):
            with suppress(LaterError), translated():  # whoever waits for the jobs will hear of it
                done, of = _progress(spark, group)
                if of:
                    heard(done, of)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        spark.setLocalProperty(GROUP, before)  # type: ignore[arg-type]  # None takes it away


def _progress(spark: SparkContext, group: str) -> tuple[int, int]:
    """How many tasks of Spark's are done, and of how many."""
    tracker = spark.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
