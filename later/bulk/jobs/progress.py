"""How far Spark is with what a thread has asked of it: tasks of Spark's, which bars call parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from uuid import uuid4

from pyspark import SparkContext

from later.bulk.spark.errors import translate_errors
from later.core.errors import LaterError

LOOK_EVERY_S = 0.5
GROUP = "spark.jobGroup.id"
"""By which Spark knows what jobs a thread has started."""

Heard = Callable[[int, int], None]
"""Told how many parts are done, and of how many."""


@contextmanager
def watched(spark: SparkContext, heard: Heard) -> Iterator[None]:
    """Tell now and then how far the jobs are that this thread starts meanwhile. `heard` runs in a thread of its own."""
    before, group = spark.getLocalProperty(GROUP), f"later-{uuid4()}"
    spark.setLocalProperty(GROUP, group)
    over = Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY_S):
            with suppress(LaterError), translate_errors():  # whoever waits for the jobs will hear of it
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
    tracker = spark.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
