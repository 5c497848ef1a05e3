"""The progress of Spark jobs, as Spark's status tracker shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from uuid import uuid4

from pyspark.sql import SparkSession

from later.bulk.spark.errors import translate_errors
from later.core.errors import LaterError

INTERVAL_S = 0.5
JOB_GROUP_PROPERTY = "spark.jobGroup.id"
"""The thread-local property by which Spark groups the jobs that a thread starts."""

OnProgress = Callable[[int, int], None]
"""A function that takes the number of finished Spark tasks and of all of them."""


@contextmanager
def report_progress(spark: SparkSession, on_progress: OnProgress) -> Iterator[None]:
    """Report the progress of the jobs that this thread starts in the context, from a thread of its own."""
    context, group = spark.sparkContext, f"later-{uuid4()}"
    previous = context.getLocalProperty(JOB_GROUP_PROPERTY)
    context.setLocalProperty(JOB_GROUP_PROPERTY, group)
    done = Event()

    def watch() -> None:
        while not done.wait(INTERVAL_S):
            with suppress(LaterError), translate_errors():  # the thread that waits for the jobs gets the error
                tracker = context.statusTracker()
                jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
                stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
                known = [stage for stage in stages if stage is not None]
                if total := sum(stage.numTasks for stage in known):
                    on_progress(sum(stage.numCompletedTasks for stage in known), total)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        context.setLocalProperty(JOB_GROUP_PROPERTY, previous)  # type: ignore[arg-type]  # None removes it
