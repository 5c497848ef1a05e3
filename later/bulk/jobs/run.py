"""Jobs over a whole input, as `later bulk` runs them: one pass each, exact sums, what is wrong as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.input.payload import Reject
from later.bulk.input.reader import InputFrame
from later.bulk.jobs import partition
from later.bulk.jobs.output import Output
from later.bulk.jobs.progress import Heard, watched
from later.bulk.transport.target import Target
from later.client.transport import Counts
from later.core.errors import LaterError

SHOWN = 20
"""Rows of what is wrong that are shown."""
LONGEST = 500
"""Characters of a row that is shown."""
LOOK_EVERY_S = 0.5


class Audience(Protocol):
    """Who is told how a job goes, by threads of its own."""

    def hear(self, counts: Counts) -> None:
        """What the store has counted since the job began."""

    def parts(self, done: int, of: int) -> None:
        """How far Spark is, which goes on where the store's counts stand still: in a job that is run again."""

    def trouble(self, reason: str) -> None:
        """Nobody could be asked: nor can the workers send anything, who try again."""


class Created(NamedTuple):
    """What an input came to; the first of what was rejected. `created` is what the store has counted meanwhile."""

    rows: int
    created: int
    existing: int
    rejected: int
    seconds: float
    examples: list[Reject]
    known: bool = True
    """Had the store heard of the job before?"""


class Missing(NamedTuple):
    """A row whose task is not there."""

    key: str | None
    id: str
    row: str


class Standings(NamedTuple):
    """How many rows' tasks are where; the first of those that are missing."""

    rows: int
    pending: int
    dead: int
    ended: int
    missing: int
    unfit: int
    seconds: float
    examples: list[Missing]
    known: bool = True
    """Has the store ever heard of the job?"""


def create(found: InputFrame, target: Target, rejects: Output | None, audience: Audience) -> Created:
    """Create the input's tasks; what is rejected goes to `rejects`, if anywhere.

    `audience` is told now and then how it goes.

    Raises:
        LaterError: the daemon, or the store, cannot be reached.
        PySparkException: a partition could not be sent.
    """
    job = found.table.job
    before = target.counts(job)
    started = time.monotonic()
    told = SHOWN if rejects is None else None
    with _counted(target, job, before, audience), _watched(found, audience.parts):
        sums, told_rows = _run(
            found.frame, partition.Create(target=target, table=found.table, told=told), partition.CREATED, rejects
        )
    seconds = time.monotonic() - started
    fit = sums["rows"] - sums["rejected"]
    created = min(max(_created_since(target, job, before), sums["created"]), fit)
    examples = [Reject(row.key, row.row, row.field, row.reason) for row in told_rows]
    return Created(sums["rows"], created, fit - created, sums["rejected"], seconds, examples, any(before))


def judge(found: InputFrame, target: Target, rejects: Output | None, heard: Heard) -> Created:
    """The same without creating anything: what would be refused. `heard` is told how far Spark is."""
    target.counts(found.table.job)  # or nobody is there
    started = time.monotonic()
    task = partition.Create(target=target, table=found.table, dry_run=True, told=SHOWN if rejects is None else None)
    with _watched(found, heard):
        sums, told_rows = _run(found.frame, task, partition.CREATED, rejects)
    examples = [Reject(row.key, row.row, row.field, row.reason) for row in told_rows]
    return Created(sums["rows"], 0, 0, sums["rejected"], time.monotonic() - started, examples)


def find(found: InputFrame, target: Target, missing: Output | None, heard: Heard) -> Standings:
    """Where the tasks of the input's rows are; rows without one go to `missing`, if anywhere."""
    target.counts(found.table.job)  # or nobody is there
    task = partition.Find(target=target, table=found.table, told=SHOWN if missing is None else None)
    return _standings(found, task, missing, heard)


def cancel(found: InputFrame, target: Target, heard: Heard) -> Standings:
    """Delete the tasks of the input's rows that are pending; where each was."""
    known = any(target.counts(found.table.job))
    return _standings(found, partition.Cancel(target=target, table=found.table), None, heard)._replace(known=known)


def _standings(
    found: InputFrame, task: partition.Find | partition.Cancel, to: Output | None, heard: Heard
) -> Standings:
    started = time.monotonic()
    with _watched(found, heard):
        sums, rows = _run(found.frame, task, partition.FOUND, to)
    examples = [Missing(row.key, row.id, row.row) for row in rows]
    seconds = time.monotonic() - started
    counts: dict[str, Any] = dict(sums)
    return Standings(**counts, seconds=seconds, examples=examples)


def _run(frame: DataFrame, task: Any, schema: str, to: Output | None) -> tuple[dict[str, int], list[Row]]:
    """The sums of all partitions' tallies, and the first of the rows that came out, which go to `to`, if anywhere."""
    observation = Observation()
    names = [name for name, kind in (part.split() for part in schema.split(", ")) if kind == "bigint"]
    out = frame.mapInArrow(task, schema)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    wrong = out.observe(observation, *sums).filter(F.col("rows").isNull()).drop(*names)
    if to is None:
        rows = _cut(wrong).collect()
    else:
        to.write(wrong)
        rows = _cut(to.read(frame.sparkSession).limit(SHOWN)).collect()
    return observation.get, rows[:SHOWN]


def _cut(wrong: DataFrame) -> DataFrame:
    """As much of each row as is shown: a content of megabytes, and so many partitions, would be too much for one."""
    return wrong.withColumns({name: F.left(name, F.lit(LONGEST)) for name in ("key", "row")})


def _created_since(target: Target, job: str, before: Counts) -> int:
    """What the store has counted; 0 where it cannot be asked any more: then the tallies must do, which know no less
    than what the attempts that count have done.
    """
    try:
        with target.batches(job) as out:
            return out.counts().created - before.created
    except LaterError:
        return 0


def _watched(found: InputFrame, heard: Heard) -> AbstractContextManager[None]:
    return watched(found.frame.sparkSession.sparkContext, heard)


@contextmanager
def _counted(target: Target, job: str, before: Counts, audience: Audience) -> Iterator[None]:
    """Tell of the job's counts until the end, from a thread that has nothing to do with Spark."""
    over = Event()
    thread = Thread(target=watch, args=(target, job, before, audience, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK_EVERY_S)  # an answer that takes longer is of no use any more


def watch(target: Target, job: str, before: Counts, audience: Audience, over: Event) -> None:
    """Tell of the job's counts until it is over. What cannot be asked is asked again."""
    while not over.is_set():
        try:
            with target.transport(job) as transport:
                while not over.wait(LOOK_EVERY_S):
                    counts = Counts(*(now - then for now, then in zip(transport.counts(), before, strict=True)))
                    if not over.is_set():
                        audience.hear(counts)
        except LaterError as error:
            if not over.is_set():
                audience.trouble(str(error))
        over.wait(LOOK_EVERY_S)
