"""The jobs of `later bulk` on Spark's driver: each reads the input once, and returns exact sums and rows at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from later.bulk.input.due_times import DueTimes
from later.bulk.input.rejects import Reject
from later.bulk.input.spark_input import InputFrame
from later.bulk.jobs.output import Output, read_table
from later.bulk.jobs.partition import (
    CREATE_SCHEMA,
    STATUS_SCHEMA,
    TaskCanceller,
    TaskCreator,
    TaskVerifier,
    tally_fields,
)
from later.bulk.jobs.progress import OnProgress, report_progress
from later.bulk.transport.target import Target
from later.client.transport import CreateCounts
from later.core.errors import LaterError

MAX_EXAMPLES = 20
"""The number of rejected or missing rows that a report shows."""
MAX_SHOWN_CHARS = 500
"""The number of characters of a row that a report shows."""
INTERVAL_S = 0.5
NO_DUE_TIMES = DueTimes()


class JobProgress(Protocol):
    """A display of a job's progress. Its methods are called from other threads."""

    def update_counts(self, counts: CreateCounts) -> None:
        """Show the store's counts of this run."""

    def update_partitions(self, finished: int, total: int) -> None:
        """Show the progress of Spark's partitions. In a job that is run again, the store's counts may not grow."""

    def report_problem(self, reason: str) -> None:
        """Show that the target does not answer. The workers cannot send either; they keep trying."""


class CreateReport(NamedTuple):
    """The result of creating an input's tasks, with the first rejected rows as `examples`.

    `created` is the store's count of this run, which repeated attempts do not raise. `lost` tasks, at least, were
    confirmed as created, but the store no longer counts them. If it could not be asked at the end, `uncounted` is the
    reason, and `created` what its answers said. `job_existed` is True if the store had counted tasks for this job
    before. `due_times` are those of the rows that were accepted.
    """

    rows: int
    created: int
    existing: int
    rejected: int
    seconds: float
    examples: list[Reject]
    job_existed: bool = True
    lost: int = 0
    uncounted: str = ""
    due_times: DueTimes = NO_DUE_TIMES


class MissingTask(NamedTuple):
    """A row whose task does not exist."""

    key: str | None
    id: str
    row: str


class StatusReport(NamedTuple):
    """The numbers of rows by the status of their tasks, with the first rows without a task as `examples`.

    Only tasks that were cancelled count as `in_flight`: a delivery was under way, which was not recalled.

    `job_exists` is True if the store has counted tasks for this job. `rejected` rows are in a table of rejects, and do
    not count as missing; None if there is no such table.
    """

    rows: int
    pending: int
    in_flight: int
    dead: int
    ended: int
    missing: int
    unfit: int
    seconds: float
    examples: list[MissingTask]
    job_exists: bool = True
    rejected: int | None = None


def create(
    input_frame: InputFrame, target: Target, run: str, rejects: Output | None, progress: JobProgress
) -> CreateReport:
    """Create the input's tasks, in a run of the job. Write rejected rows to `rejects`, if there is one.

    Raises:
        LaterError: The target does not answer.
        PySparkException: A partition could not be sent.
    """
    job = input_frame.row_settings.job
    target.check_admission(job)
    job_existed = any(target.counts(job))
    started = time.monotonic()
    max_examples = MAX_EXAMPLES if rejects is None else None
    function = TaskCreator(target=target, row_settings=input_frame.row_settings, run=run, max_examples=max_examples)
    with (
        _report_counts(target, job, run, progress),
        report_progress(input_frame.frame.sparkSession, progress.update_partitions),
    ):
        sums, rows = _map_partitions(input_frame.frame, function, CREATE_SCHEMA, rejects)
    seconds = time.monotonic() - started
    accepted, confirmed, uncounted = sums["rows"] - sums["rejected"], sums["created"], ""
    counted = confirmed
    try:
        counted = target.count_created(job, run)
    except LaterError as error:
        uncounted = str(error)
    return CreateReport(
        rows=sums["rows"],
        created=min(counted, accepted),
        existing=max(accepted - max(counted, confirmed), 0),
        rejected=sums["rejected"],
        seconds=seconds,
        examples=[Reject(**row.asDict()) for row in rows],
        job_existed=job_existed,
        lost=max(confirmed - counted, 0),
        uncounted=uncounted,
        due_times=DueTimes(*(sums[name] for name in DueTimes._fields)),
    )


def validate(input_frame: InputFrame, target: Target, rejects: Output | None, on_progress: OnProgress) -> CreateReport:
    """Report what `create` would reject; create nothing. Raises: as `create` does."""
    target.check_admission(input_frame.row_settings.job)
    target.counts(input_frame.row_settings.job)  # fail before Spark starts if nothing answers
    started = time.monotonic()
    max_examples = MAX_EXAMPLES if rejects is None else None
    function = TaskCreator(
        target=target, row_settings=input_frame.row_settings, dry_run=True, max_examples=max_examples
    )
    with report_progress(input_frame.frame.sparkSession, on_progress):
        sums, rows = _map_partitions(input_frame.frame, function, CREATE_SCHEMA, rejects)
    return CreateReport(
        rows=sums["rows"],
        created=0,
        existing=0,
        rejected=sums["rejected"],
        seconds=time.monotonic() - started,
        examples=[Reject(**row.asDict()) for row in rows],
        due_times=DueTimes(*(sums[name] for name in DueTimes._fields)),
    )


def verify(
    input_frame: InputFrame, target: Target, missing: Output | None, rejects: str | None, on_progress: OnProgress
) -> StatusReport:
    """Report the status of the tasks of the input's rows. Write rows without a task to `missing`, if there is one.

    Rows whose keys are in the tables at `rejects` are not missing, but rejected.

    Raises: as `create` does; and LaterError: there is no table of rejects.
    """
    target.counts(input_frame.row_settings.job)  # fail before Spark starts if nothing answers
    keys: DataFrame | None = None
    if rejects is not None:
        table = read_table(input_frame.frame.sparkSession, rejects, "a table of rejects", {"key": "string"})
        keys = table.select("key").distinct()
    max_examples = MAX_EXAMPLES if missing is None and keys is None else None
    function = TaskVerifier(target=target, row_settings=input_frame.row_settings, max_examples=max_examples)
    return _report_statuses(input_frame, function, missing, on_progress, keys)


def cancel(input_frame: InputFrame, target: Target, on_progress: OnProgress) -> StatusReport:
    """Delete the pending tasks of the input's rows; report the status that each had. Raises: as `create` does."""
    job_exists = any(target.counts(input_frame.row_settings.job))
    function = TaskCanceller(target=target, row_settings=input_frame.row_settings)
    return _report_statuses(input_frame, function, None, on_progress)._replace(job_exists=job_exists)


def _report_statuses(
    input_frame: InputFrame,
    function: TaskVerifier | TaskCanceller,
    missing: Output | None,
    on_progress: OnProgress,
    rejected_keys: DataFrame | None = None,
) -> StatusReport:
    started = time.monotonic()
    rejected = None if rejected_keys is None else Observation()

    def leave_out_rejected(rows: DataFrame) -> DataFrame:
        if rejected is None or rejected_keys is None:
            return rows
        marked = rows.join(rejected_keys.withColumn("is_rejected", F.lit(True)), "key", "left")
        marked = marked.observe(rejected, F.count_if("is_rejected").alias("rows"))
        return _first_of_partitions(marked.filter("is_rejected is null").drop("is_rejected"), missing)

    with report_progress(input_frame.frame.sparkSession, on_progress):
        sums, rows = _map_partitions(input_frame.frame, function, STATUS_SCHEMA, missing, leave_out_rejected)
    seconds = time.monotonic() - started
    report = StatusReport(**sums, seconds=seconds, examples=[MissingTask(row.key, row.id, row.row) for row in rows])
    if rejected is None:
        return report
    count = rejected.get["rows"]
    return report._replace(missing=report.missing - count, rejected=count)


def _first_of_partitions(rows: DataFrame, output: Output | None) -> DataFrame:
    """Return all rows for an output; otherwise the first of each partition. (A limit would stop the counting early.)"""
    if output is not None:
        return rows
    number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
    return rows.withColumn("number", number).filter(F.col("number") < MAX_EXAMPLES).drop("number")


def _map_partitions(
    frame: DataFrame,
    function: Any,
    schema: pa.Schema,
    output: Output | None,
    select: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> tuple[dict[str, Any], list[Row]]:
    """Run the function on each partition. Return the sums of the tallies, and the first of the other rows.

    With an `output`, all of the other rows are written there. `select` may leave some of them out.
    """
    observation = Observation()
    numbers = tally_fields(schema)
    sums = [
        (BOUNDS[name](name) if name in BOUNDS else F.coalesce(F.sum(name), F.lit(0))).alias(name) for name in numbers
    ]
    results = frame.mapInArrow(function, from_arrow_schema(schema))
    rows = select(results.observe(observation, *sums).filter(F.col("rows").isNull()).drop(*numbers))
    if output is None:
        examples = _shorten(rows).collect()
    else:
        output.write(rows)
        examples = _shorten(output.read(frame.sparkSession).limit(MAX_EXAMPLES)).collect()
    return observation.get, examples[:MAX_EXAMPLES]


BOUNDS: dict[str, Callable[[str], Column]] = {"earliest": F.min, "latest": F.max}
"""The numbers of tallies that are not added up."""


def _shorten(rows: DataFrame) -> DataFrame:
    """Cut each row to MAX_SHOWN_CHARS: contents of megabytes from many partitions would be too much for the driver."""
    return rows.withColumns({name: F.left(name, F.lit(MAX_SHOWN_CHARS)) for name in ("key", "row")})


@contextmanager
def _report_counts(target: Target, job: str, run: str, progress: JobProgress) -> Iterator[None]:
    """Report the run's counts during the context, from a thread that does not use Spark."""
    done = Event()
    thread = Thread(target=watch_counts, args=(target, job, run, progress, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(INTERVAL_S)  # a later answer is not needed


def watch_counts(target: Target, job: str, run: str, progress: JobProgress, done: Event) -> None:
    """Report the run's counts until `done` is set; if the target does not answer, report that and ask again."""
    while not done.is_set():
        try:
            with target.open_transport(job, run) as transport:
                while not done.wait(INTERVAL_S):
                    counts = transport.counts()
                    if not done.is_set():
                        progress.update_counts(counts)
        except LaterError as error:
            if not done.is_set():
                progress.report_problem(str(error))
        done.wait(INTERVAL_S)
