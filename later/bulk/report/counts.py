"""What an export and a table of rejects come to: counted by Spark, so that only counts leave it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name wherever Spark is spoken

from later.bulk.jobs.output_path import escape_glob
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
from later.core.errors import LaterError

EXPORTED = {
    "topic": "string",
    "state": "string",
    "callback": "string",
    "due_at": "timestamp",
    "died_at": "timestamp",
    "last_error": "struct",
}
"""The columns of an export that are counted, and their types."""
REJECTED = {"key": "string", "field": "string", "reason": "string"}
PENDING_STATES = ("delay", "error")
"""The states whose tasks fall due."""
OTHERS = "others"

_HOST = r"(?i)^https?://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^:/?#\[\]]+)"
"""Java's own parser knows no host with an underscore, and fails the job for what is no URL."""
_DETAILS = r"(?s)(, got |: line [0-9]+ column ).*$"
"""From where on a reason is about its row alone: the value, or where in the line it is."""


class DeadGroup(NamedTuple):
    """Tasks that died of one reason while they called one host ("": it has none).

    `latest` is ms since the epoch; `status` is what their receiver answered most often, None for no answer.
    """

    reason: str
    host: str
    tasks: int
    latest: int | None
    status: int | None


class DeadCounts(NamedTuple):
    """How many died of what, the largest groups by reason and host, and what is in the others."""

    reasons: dict[str, int]
    groups: tuple[DeadGroup, ...]
    other_groups: int
    other_tasks: int

    @property
    def tasks(self) -> int:
        return sum(self.reasons.values())


class RejectGroup(NamedTuple):
    """Rows that were refused for one field and reason ("": for the row as a whole), and the key of one of them."""

    field: str
    reason: str
    rows: int
    key: str | None


class RejectCounts(NamedTuple):
    """The largest groups by field and reason, and what is in the others."""

    groups: tuple[RejectGroup, ...]
    other_groups: int
    other_rows: int

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups) + self.other_rows


class ExportCounts(NamedTuple):
    """What an export holds: tasks by state, what falls due, what died; and of which topics, though named, nothing."""

    states: dict[str, int]
    due: DueCounts
    dead: DeadCounts
    written_at: int | None
    """In ms; None: nobody knows."""
    missing_topics: tuple[str, ...] = ()


class Report(NamedTuple):
    """All that is told; None for what nobody asked for."""

    window: ReportWindow
    states: dict[str, int] | None
    due: DueForecast | None
    dead: DeadCounts | None
    rejected: RejectCounts | None


def reject_group(field: str, reason: str, rows: int, key: str | None) -> RejectGroup:
    """A group of rejects; a refusal begins with its field, which is told by itself."""
    return RejectGroup(field, reason.removeprefix(f"{field}: ") if field else reason, rows, key)


# Reading


def read_export(spark: SparkSession, directory: str, topics: Collection[str], window: ReportWindow, max_groups: int,
                listed: Collection[str]) -> ExportCounts:  # fmt: skip
    """Count an export's tasks, of these topics or (none) of all; `most` groups of each kind are told apart.

    So are the topics that are named, if they are to be counted.

    Raises:
        LaterError: it is not there, or no export.
    """
    with translate_errors():
        export = _table(spark, directory, "an export", EXPORTED)
        written_at = export.agg(F.unix_millis(F.max("_metadata.file_modification_time"))).collect()[0][0]
        absent = _absent(export, {*topics, *listed})
        if topics:
            export = export.where(F.col("topic").isin(*topics))
        states, due = count_due(export, window, max_groups, [name for name in listed if not topics or name in topics])
        return ExportCounts(states, due, count_dead(export, max_groups), written_at or None, absent)


def _absent(export: DataFrame, topics: set[str]) -> tuple[str, ...]:
    """Those of which there is no task, whatever its state."""
    if not topics:
        return ()
    there = export.where(F.col("topic").isin(*topics)).select("topic").distinct().collect()
    return tuple(sorted(topics - {row["topic"] for row in there}))


def read_rejects(spark: SparkSession, directory: str, max_groups: int) -> RejectCounts:
    """Count a table of rejects.

    Raises:
        LaterError: it is not there, or no table of rejects.
    """
    with translate_errors():
        return count_rejects(_table(spark, directory, "a table of rejects", REJECTED), max_groups)


def _table(spark: SparkSession, directory: str, what: str, columns: dict[str, str]) -> DataFrame:
    try:
        table = spark.read.parquet(escape_glob(directory))
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            raise LaterError(f"{directory} is not {what}: no Parquet in it") from None
        raise
    wrong = describe_missing_columns(columns, {field.name: field.dataType.typeName() for field in table.schema})
    if wrong:
        raise LaterError(f"{directory} is not {what}: {wrong}")
    return table


def describe_missing_columns(expected: dict[str, str], found: dict[str, str]) -> str:
    """What a table lacks of these columns, in words; "" where it lacks nothing."""
    absent = [name for name in expected if name not in found]
    if absent:
        return f"no column {', '.join(absent)}"
    other = [f"{name} is a {found[name]}, not a {kind}" for name, kind in expected.items() if found[name] != kind]
    return ", ".join(other)


# Counting


def count_due(
    export: DataFrame, window: ReportWindow, max_topics: int, listed: Collection[str]
) -> tuple[dict[str, int], DueCounts]:
    """Tasks by state, and what falls due of the topics with most to do, and of those that are named."""
    by = (_text("state"), _text("topic"), _slot(window).alias("slot"))
    counts = export.groupBy(*by).agg(F.count("*").alias("tasks"))
    with _kept(counts) as cells:
        states = {row["state"]: row["tasks"] for row in _sums(cells, "state").collect()}
        due = cells.where("slot is not null").groupBy("topic", "slot").agg(F.sum("tasks").alias("tasks"))
        return _largest_first(states), _due(due, window, max_topics, listed)


def _slot(window: ReportWindow) -> Column:
    """The slot that a task's due time falls into; null for a task that waits for none."""
    due_ms = F.unix_millis("due_at")
    hour = F.expr(f"unix_millis(due_at) div {HOUR_MS}") - F.lit(window.first)
    by_time = F.when(due_ms < window.now, F.lit(OVERDUE).cast("long")).otherwise(F.least(hour, F.lit(window.hours)))
    return F.when(F.col("state").isin(*PENDING_STATES), by_time)


def _due(due: DataFrame, window: ReportWindow, most: int, named: Collection[str]) -> DueCounts:
    ranked = due.groupBy("topic").agg(
        F.sum(F.when(F.col("slot") < window.hours, F.col("tasks")).otherwise(0)).alias("soon"),
        F.sum("tasks").alias("tasks"),
    )
    first = ranked.orderBy(F.desc("soon"), F.desc("tasks"), "topic").limit(most).select("topic").collect()
    shown = {row["topic"] for row in first} | set(named)
    is_shown = F.col("topic").isin(*shown) if shown else F.lit(False)
    apart = due.where(is_shown).select("topic", "slot", "tasks").collect()
    rest = due.where(~is_shown)
    others = _sums(rest, "slot").collect()
    count = rest.agg(F.count_distinct("topic")).collect()[0][0]
    loads = loads_from_counts([(row["topic"], row["slot"], row["tasks"]) for row in apart], window)
    loads += [empty_load(topic, window) for topic in sorted(shown - {load.topic for load in loads})]
    summed = loads_from_counts([(OTHERS, row["slot"], row["tasks"]) for row in others], window)
    return DueCounts(window, tuple(loads), sum_loads(OTHERS, summed, window), count)


def count_dead(export: DataFrame, max_groups: int) -> DeadCounts:
    """The dead by what they died of and the host that they called."""
    counts = (
        export.where(F.col("state") == "dead")
        .groupBy(
            _text("last_error.reason", "reason"),
            F.lower(F.regexp_extract(F.coalesce("callback", F.lit("")), _HOST, 1)).alias("host"),
        )
        .agg(
            F.count("*").alias("tasks"),
            F.max(F.unix_millis("died_at")).alias("latest"),
            F.mode(F.coalesce(F.col("last_error.status"), F.lit(0))).alias("status"),
        )
    )
    with _kept(counts) as groups:
        reasons = {row["reason"]: row["tasks"] for row in _sums(groups, "reason").collect()}
        first = _largest(groups, max_groups)
        told = [
            DeadGroup(row["reason"], row["host"], row["tasks"], row["latest"], row["status"] or None) for row in first
        ]
        return DeadCounts(_largest_first(reasons), tuple(told), *_others(groups, first))


def count_rejects(rejects: DataFrame, max_groups: int) -> RejectCounts:
    """The rejects by field and by reason, without what a reason tells of its row alone."""
    counts = rejects.groupBy(
        _text("field"),
        F.regexp_replace(F.coalesce("reason", F.lit("")), _DETAILS, "").alias("reason"),
    ).agg(F.count("*").alias("tasks"), F.min("key").alias("key"))
    with _kept(counts) as groups:
        first = _largest(groups, max_groups)
        told = [reject_group(row["field"], row["reason"], row["tasks"], row["key"]) for row in first]
        return RejectCounts(tuple(told), *_others(groups, first))


def _text(column: str, name: str = "") -> Column:
    """A column of texts with "" for those that are not there."""
    return F.coalesce(F.col(column), F.lit("")).alias(name or column)


def _largest(groups: DataFrame, most: int) -> Sequence[Any]:
    return groups.orderBy(F.desc("tasks"), *groups.columns[:2]).limit(most).collect()


def _others(groups: DataFrame, first: Sequence[Any]) -> tuple[int, int]:
    """How many groups are not among the first, and how much is in them."""
    counted = groups.agg(F.count("*").alias("groups"), F.coalesce(F.sum("tasks"), F.lit(0)).alias("tasks"))
    all_groups, tasks = counted.collect()[0]
    return all_groups - len(first), tasks - sum(row["tasks"] for row in first)


def _sums(counts: DataFrame, by: str) -> DataFrame:
    return counts.groupBy(by).agg(F.sum("tasks").alias("tasks"))


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@contextmanager
def _kept(counts: DataFrame) -> Iterator[DataFrame]:
    """Counted once, though it is looked at again and again.

    In as many parts as there are cores: what is kept is not coalesced as other shuffles are, and 200 parts of a few
    rows each make every look at it take seconds.
    """
    kept = counts.coalesce(counts.sparkSession.sparkContext.defaultParallelism).persist()
    try:
        yield kept
    finally:
        kept.unpersist()
