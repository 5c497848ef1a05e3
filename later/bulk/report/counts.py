"""Counts of an export and of a table of rejects. Spark makes them, so that only the counts leave it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from later.bulk.jobs.output import read_table
from later.bulk.report.forecast import (
    HOUR_MS,
    OVERDUE,
    DueCounts,
    DueForecast,
    ReportWindow,
    empty_load,
    loads_from_counts,
    sum_loads,
)
from later.bulk.spark.errors import translate_errors

EXPORT_COLUMNS = {
    "topic": "string",
    "state": "string",
    "callback": "string",
    "due_at": "timestamp",
    "died_at": "timestamp",
    "last_error": "struct",
}
"""The columns of an export that are counted, and their types."""
REJECT_COLUMNS = {"key": "string", "field": "string", "reason": "string"}
"""The columns of a table of rejects that are counted, and their types."""
WAITING_STATES = ("delay", "error")
"""The states whose tasks wait until they are due."""
OTHERS = "others"

_HOST = r"(?i)^https?://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^:/?#\[\]]+)"
"""The host of a callback. Java's parser refuses hosts with an underscore, and fails the job if a text is not a URL."""
_DETAILS = r"(?s)(, got |: line [0-9]+ column ).*$"
"""The end of a reason that differs from row to row: the value, or its position in the line."""


class DeadGroup(NamedTuple):
    """Dead tasks with the same reason and host (empty: none).

    `latest` is the last death in ms since the epoch; `status` is the receiver's most frequent one, None for no answer.
    """

    reason: str
    host: str
    tasks: int
    latest: int | None
    status: int | None


class DeadCounts(NamedTuple):
    """Dead tasks by reason, the largest groups by reason and host, and the numbers of other groups and their tasks."""

    reasons: dict[str, int]
    groups: tuple[DeadGroup, ...]
    other_groups: int
    other_tasks: int

    @property
    def tasks(self) -> int:
        return sum(self.reasons.values())


class RejectGroup(NamedTuple):
    """Rejected rows with the same field (empty: the row as a whole) and reason, and the key of one of them."""

    field: str
    reason: str
    rows: int
    key: str | None


class RejectCounts(NamedTuple):
    """The largest groups of rejected rows, and the numbers of other groups and their rows."""

    groups: tuple[RejectGroup, ...]
    other_groups: int
    other_rows: int

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups) + self.other_rows


class ExportCounts(NamedTuple):
    """Counts of an export: tasks by state, due tasks, dead tasks, and the named topics of which it has no task."""

    states: dict[str, int]
    due: DueCounts
    dead: DeadCounts
    written_at: int | None
    """In ms since the epoch; None if unknown."""
    missing_topics: tuple[str, ...] = ()


class Report(NamedTuple):
    """A whole report; None for parts that were not requested."""

    window: ReportWindow
    states: dict[str, int] | None
    due: DueForecast | None
    dead: DeadCounts | None
    rejected: RejectCounts | None


def reject_group(field: str, reason: str, rows: int, key: str | None) -> RejectGroup:
    """Return a group of rejects. Its reason does not begin with the field, as a refusal does."""
    return RejectGroup(field, reason.removeprefix(f"{field}: ") if field else reason, rows, key)


# Reading


def read_export(
    spark: SparkSession,
    directory: str,
    topics: Collection[str],
    window: ReportWindow,
    max_groups: int,
    always_listed: Collection[str],
) -> ExportCounts:
    """Count an export's tasks, of these topics or, if there are none, of all.

    The result lists at most `max_groups` of each kind, and also the `always_listed` topics, if they are counted.

    Raises:
        LaterError: The directory does not exist, or is not an export.
    """
    with translate_errors():
        export = read_table(spark, directory, "an export", EXPORT_COLUMNS)
        written_at = export.agg(F.unix_millis(F.max("_metadata.file_modification_time"))).collect()[0][0]
        missing: set[str] = {*topics, *always_listed}
        if missing:
            found = export.where(F.col("topic").isin(*missing)).select("topic").distinct().collect()
            missing -= {row["topic"] for row in found}
        if topics:
            export = export.where(F.col("topic").isin(*topics))
            always_listed = [name for name in always_listed if name in topics]
        states, due = count_due(export, window, max_groups, always_listed)
        return ExportCounts(states, due, count_dead(export, max_groups), written_at or None, tuple(sorted(missing)))


def read_rejects(spark: SparkSession, directory: str, max_groups: int) -> RejectCounts:
    """Count a table of rejects.

    Raises:
        LaterError: The directory does not exist, or is not a table of rejects.
    """
    with translate_errors():
        return count_rejects(read_table(spark, directory, "a table of rejects", REJECT_COLUMNS), max_groups)


# Counting


def count_due(
    export: DataFrame, window: ReportWindow, max_topics: int, always_listed: Collection[str]
) -> tuple[dict[str, int], DueCounts]:
    """Return the tasks by state, and the due tasks of the largest topics and of the `always_listed` ones."""
    due_ms = F.unix_millis("due_at")
    due_hour = F.expr(f"unix_millis(due_at) div {HOUR_MS}") - F.lit(window.first_hour)
    hour = F.when(due_ms < window.now, F.lit(OVERDUE).cast("long")).otherwise(F.least(due_hour, F.lit(window.hours)))
    is_waiting = F.col("state").isin(*WAITING_STATES)
    by = (_string("state"), _string("topic"), F.when(is_waiting, hour).alias("hour"))
    counts = export.groupBy(*by).agg(F.count("*").alias("count"))
    with _cached(counts) as cached:
        states = {row["state"]: row["count"] for row in _sum_by(cached, "state").collect()}
        due = cached.where("hour is not null").groupBy("topic", "hour").agg(F.sum("count").alias("count"))
        return _largest_first(states), _count_topics(due, window, max_topics, always_listed)


def _count_topics(due: DataFrame, window: ReportWindow, max_topics: int, always_listed: Collection[str]) -> DueCounts:
    ranked = due.groupBy("topic").agg(
        F.sum(F.when(F.col("hour") < window.hours, F.col("count")).otherwise(0)).alias("to_deliver"),
        F.sum("count").alias("count"),
    )
    largest = ranked.orderBy(F.desc("to_deliver"), F.desc("count"), "topic").limit(max_topics).select("topic").collect()
    names = {row["topic"] for row in largest} | set(always_listed)
    is_listed = F.col("topic").isin(*names) if names else F.lit(False)
    rows = due.where(is_listed).select("topic", "hour", "count").collect()
    others = due.where(~is_listed)
    other_rows = _sum_by(others, "hour").collect()
    other_topics = others.agg(F.count_distinct("topic")).collect()[0][0]
    loads = loads_from_counts([(row["topic"], row["hour"], row["count"]) for row in rows], window)
    loads += [empty_load(topic, window) for topic in sorted(names - {load.topic for load in loads})]
    other_loads = loads_from_counts([(OTHERS, row["hour"], row["count"]) for row in other_rows], window)
    return DueCounts(window, tuple(loads), sum_loads(OTHERS, other_loads, window), other_topics)


def count_dead(export: DataFrame, max_groups: int) -> DeadCounts:
    """Count the dead tasks by reason and by the host that they called."""
    counts = (
        export.where(F.col("state") == "dead")
        .groupBy(
            _string("last_error.reason", "reason"),
            F.lower(F.regexp_extract(F.coalesce("callback", F.lit("")), _HOST, 1)).alias("host"),
        )
        .agg(
            F.count("*").alias("count"),
            F.max(F.unix_millis("died_at")).alias("latest"),
            F.mode(F.coalesce(F.col("last_error.status"), F.lit(0))).alias("status"),
        )
    )
    with _cached(counts) as cached:
        reasons = {row["reason"]: row["count"] for row in _sum_by(cached, "reason").collect()}
        largest = _largest(cached, max_groups)
        groups = [
            DeadGroup(row["reason"], row["host"], row["count"], row["latest"], row["status"] or None) for row in largest
        ]
        return DeadCounts(_largest_first(reasons), tuple(groups), *_count_others(cached, largest))


def count_rejects(rejects: DataFrame, max_groups: int) -> RejectCounts:
    """Count the rejects by field and by reason, without the details of a single row.

    A row that several runs have rejected counts once, as the latest of them says.
    """
    rejects = _latest_rejects(rejects)
    reason = F.regexp_replace(F.coalesce("reason", F.lit("")), _DETAILS, "").alias("reason")
    counts = rejects.groupBy(_string("field"), reason).agg(F.count("*").alias("count"), F.min("key").alias("key"))
    with _cached(counts) as cached:
        largest = _largest(cached, max_groups)
        groups = [reject_group(row["field"], row["reason"], row["count"], row["key"]) for row in largest]
        return RejectCounts(tuple(groups), *_count_others(cached, largest))


def _latest_rejects(rejects: DataFrame) -> DataFrame:
    """Leave out what earlier runs said of a row. Rows are known by their keys; without one, by place and text."""
    if not {"run", "file", "position", "row"} <= {*rejects.columns}:  # a single run
        return rejects
    identity = (F.col("key"), *(F.when(F.col("key").isNull(), F.col(name)) for name in ("file", "position", "row")))
    latest = F.max("run").over(Window.partitionBy(*identity))
    return rejects.withColumn("latest_run", latest).where("run = latest_run")


def _string(column: str, name: str = "") -> Column:
    """Return a column of strings with "" instead of null."""
    return F.coalesce(F.col(column), F.lit("")).alias(name or column)


def _largest(groups: DataFrame, limit: int) -> Sequence[Any]:
    return groups.orderBy(F.desc("count"), *groups.columns[:2]).limit(limit).collect()


def _count_others(groups: DataFrame, listed: Sequence[Any]) -> tuple[int, int]:
    """Return the number of groups that are not listed, and the sum of their tasks."""
    counted = groups.agg(F.count("*").alias("groups"), F.coalesce(F.sum("count"), F.lit(0)).alias("count"))
    all_groups, tasks = counted.collect()[0]
    return all_groups - len(listed), tasks - sum(row["count"] for row in listed)


def _sum_by(counts: DataFrame, column: str) -> DataFrame:
    return counts.groupBy(column).agg(F.sum("count").alias("count"))


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@contextmanager
def _cached(counts: DataFrame) -> Iterator[DataFrame]:
    """Cache counts that are read several times, in as many partitions as there are cores.

    Spark does not coalesce the partitions of a cached frame: with its default of 200, each read would take seconds.
    """
    cached = counts.coalesce(counts.sparkSession.sparkContext.defaultParallelism).persist()
    try:
        yield cached
    finally:
        cached.unpersist()
