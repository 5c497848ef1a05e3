"""The counts of `bulk report` by Spark: of exports, of rejects, and of tables that are neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from later.bulk.report.counts import DeadGroup, ExportCounts, RejectCounts, RejectGroup, read_export, read_rejects
from later.bulk.report.forecast import Load, ReportWindow
from later.cli.program import run
from later.core.errors import LaterError

Capture = pytest.CaptureFixture[str]
WriteTable = Callable[[Sequence[dict[str, Any]]], str]

HOUR = 3_600_000
NOW = 1_795_249_800_000
"""Sat 21 Nov 2026 08:30 UTC."""
WINDOW = ReportWindow(NOW, 3)
EXPORT = (
    "id string, topic string, execute_time bigint, max_retry int, has_retry int, callback string, content string, "
    "creat_time bigint, state string, due_at timestamp, died_at timestamp, attempts bigint, "
    "last_error struct<reason string, status int, message string, at timestamp>, headers array<string>, "
    "expires_at timestamp"
)
REJECTS = "key string, row string, field string, reason string"


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def pending_task(due_at: int, topic: str = "order", state: str = "delay") -> dict[str, Any]:
    return {"topic": topic, "state": state, "due_at": at(due_at), "callback": "http://h/"}


def dead_task(reason: str, callback: str | None, status: int | None = None, died_at: int = NOW) -> dict[str, Any]:
    error = {"reason": reason, "status": status, "message": "m", "at": at(died_at)}
    return {"topic": "order", "state": "dead", "died_at": at(died_at), "callback": callback, "last_error": error}


def reject(field: str | None, reason: str, key: str = "k") -> dict[str, Any]:
    return {"key": key, "row": "{}", "field": field, "reason": reason}


@pytest.fixture
def export(spark: SparkSession, tmp_path: Path) -> WriteTable:
    """Return a function that writes an export of tasks and returns its directory."""
    return lambda tasks: _write(spark, tasks, EXPORT, tmp_path / "export")


@pytest.fixture
def rejects(spark: SparkSession, tmp_path: Path) -> WriteTable:
    return lambda rows: _write(spark, rows, REJECTS, tmp_path / "rejects")


def _write(spark: SparkSession, rows: Sequence[dict[str, Any]], schema: str, directory: Path) -> str:
    spark.createDataFrame(list(rows), schema).write.parquet(str(directory))
    return str(directory)


def count_export(
    spark: SparkSession, directory: str, *topics: str, max_groups: int = 20, always_listed: Sequence[str] = ()
) -> ExportCounts:
    return read_export(spark, directory, topics, WINDOW, max_groups, always_listed)


@pytest.fixture
def half_hour_time_zone(spark: SparkSession) -> Iterator[None]:
    """Set a session time zone whose hours begin half an hour after those of UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("half_hour_time_zone")
def test_pending_tasks_are_counted_by_the_utc_hour_in_which_they_are_due(
    spark: SparkSession, export: WriteTable
) -> None:
    times = (NOW - 1, NOW, NOW + 30 * 60_000 - 1, NOW + 30 * 60_000, NOW + 2 * HOUR, NOW + 3 * HOUR, NOW + 900 * HOUR)
    tasks = [pending_task(due_at, state=state) for due_at in times for state in ("delay", "error")]

    counts = count_export(spark, export([*tasks, pending_task(NOW, state="unack")]))

    assert counts.due.topics == (Load("order", 2, (4, 2, 2), 4),)
    assert counts.states == {"delay": 7, "error": 7, "unack": 1}


def test_the_largest_topics_and_the_named_ones_are_listed(spark: SparkSession, export: WriteTable) -> None:
    tasks = [pending_task(NOW, topic) for topic in ("a", "a", "a", "b", "c", "c", "d")] + [pending_task(NOW - 1, "e")]
    far = [pending_task(NOW + 99 * HOUR, "f")] * 9

    due = count_export(spark, export(tasks + far), max_groups=2, always_listed=["d", "nowhere"]).due

    assert [load.topic for load in due.topics] == ["a", "c", "d", "nowhere"]
    assert due.topics[-1] == Load("nowhere", 0, (0, 0, 0), 0)
    assert due.others == Load("others", 1, (1, 0, 0), 9)
    assert due.other_topics == 3


def test_only_the_requested_topics_are_counted(spark: SparkSession, export: WriteTable) -> None:
    counts = count_export(
        spark, export([pending_task(NOW, "a"), pending_task(NOW, "b"), dead_task("gone", "http://h/")]), "a", "c"
    )

    assert counts.states == {"delay": 1}
    assert [load.topic for load in counts.due.topics] == ["a"]
    assert counts.dead.tasks == 0


def test_named_topics_without_tasks_are_missing(spark: SparkSession, export: WriteTable) -> None:
    directory = export([pending_task(NOW, "a"), pending_task(NOW, "b"), dead_task("gone", "http://h/")])

    assert count_export(spark, directory, always_listed=["b", "order", "nowhere", "ordr"]).missing_topics == (
        "nowhere",
        "ordr",
    )
    assert count_export(spark, directory).missing_topics == ()
    of_two_topics = count_export(spark, directory, "a", "c", always_listed=["b", "ordr"])
    assert of_two_topics.missing_topics == ("c", "ordr")
    assert [load.topic for load in of_two_topics.due.topics] == ["a"]


def test_dead_tasks_are_counted_by_reason_and_host_with_any_callback(spark: SparkSession, export: WriteTable) -> None:
    callbacks = [
        "http://a_b.Example/x",
        "https://u:p@A_B.example:8443?q",
        "http://[::1]:80/",
        "http://[",
        "%",
        "",
        None,
    ]
    tasks = [dead_task("exhausted", callback, 503, NOW + n) for n, callback in enumerate(callbacks)]

    counts = count_export(spark, export([*tasks, dead_task("gone", "http://a_b.example", 410)])).dead

    assert counts.reasons == {"exhausted": 7, "gone": 1}
    assert counts.groups == (
        DeadGroup("exhausted", "", 4, NOW + 6, 503),
        DeadGroup("exhausted", "a_b.example", 2, NOW + 1, 503),
        DeadGroup("exhausted", "[::1]", 1, NOW + 2, 503),
        DeadGroup("gone", "a_b.example", 1, NOW, 410),
    )


def test_the_most_frequent_answer_of_dead_tasks_is_counted(spark: SparkSession, export: WriteTable) -> None:
    tasks = [dead_task("exhausted", "http://h/", status) for status in (500, 503, 503)]
    unanswered = [dead_task("expired", "http://h/", status) for status in (500, None, None)]

    counts = count_export(spark, export([*tasks, *unanswered, dead_task("gone", "http://h/")]), max_groups=2).dead

    assert counts.groups == (DeadGroup("exhausted", "h", 3, NOW, 503), DeadGroup("expired", "h", 3, NOW, None))
    assert (counts.other_groups, counts.other_tasks, counts.tasks) == (1, 1, 7)


def test_an_empty_export_can_be_counted(spark: SparkSession, export: WriteTable) -> None:
    counts = count_export(spark, export([]))

    assert (counts.states, counts.due.topics, counts.due.others.to_deliver, counts.dead.tasks) == ({}, (), 0, 0)


def test_rejects_are_counted_without_the_details_of_one_row(spark: SparkSession, rejects: WriteTable) -> None:
    rows = [
        *(reject("delay", f"delay: expected a number of seconds ≥ 0, got {n}", f"row-{n}") for n in range(3)),
        *(reject(None, f"expected JSON: Expecting ',' delimiter: line 1 column {n} (char {n})") for n in range(2)),
        reject("topic", 'topic: expected a string, got "a, got\nb"'),
    ]

    assert read_rejects(spark, rejects(rows), 2) == RejectCounts(
        (
            RejectGroup("delay", "expected a number of seconds ≥ 0", 3, "row-0"),
            RejectGroup("", "expected JSON: Expecting ',' delimiter", 2, "k"),
        ),
        1,
        1,
    )


def test_a_row_that_several_runs_rejected_counts_once_as_the_latest_says(spark: SparkSession, tmp_path: Path) -> None:
    """Rows without a key are known by their place; within one run each row counts."""
    schema = f"{REJECTS}, file string, position bigint"
    keyless = {"key": None, "file": "f"}
    runs = {
        "1": [reject("delay", "old", "a"), reject("delay", "no", "b"), reject(None, "no") | keyless | {"position": 1}],
        "2": [
            *[reject("delay", "no", "a")] * 2,
            *(reject(None, "no") | keyless | {"position": position} for position in (1, 2)),
        ],
    }
    for number, rows in runs.items():
        table = [{"file": None, "position": None, **row} for row in rows]
        _write(spark, table, schema, tmp_path / "rejects" / f"run=20261122T0000{number}0Z-aaaaaa")

    counts = read_rejects(spark, str(tmp_path / "rejects"), 5)

    assert counts.groups == (RejectGroup("delay", "no", 3, "a"), RejectGroup("", "no", 2, None))


def test_a_table_that_is_not_an_export_is_refused_with_its_missing_columns(
    spark: SparkSession, rejects: WriteTable
) -> None:
    directory = rejects([])

    with pytest.raises(LaterError) as error:
        count_export(spark, directory)

    lacks = "topic, state, callback, due_at, died_at, last_error"
    assert str(error.value) == f"{directory} is not an export: no column {lacks}"


def test_the_command_reports_both_tables_and_draws_them(
    export: WriteTable, rejects: WriteTable, tmp_path: Path, capsys: Capture
) -> None:
    tasks = export([pending_task(NOW - 1), pending_task(4_000_000_000_000), dead_task("gone", "http://h/", 410)])
    refused = rejects([reject("delay", "delay: expected a number of seconds ≥ 0, got -1")])
    picture = tmp_path / "a.png"

    assert (
        report_exit_code("--export", tasks, "--rejects", refused, "--rate", "order=1", "--json", "--plot", str(picture))
        == 0
    )

    summary = json.loads(capsys.readouterr().out)
    assert (summary["outcome"], summary["input"], summary["output"]) == ("done", tasks, str(picture))
    result = summary["report"]
    assert result["tasks"] == {"delay": 2, "dead": 1}
    assert [(topic["topic"], topic["rate"], topic["later"]) for topic in result["due"]["topics"]] == [("order", 1, 1)]
    assert result["dead"]["groups"][0]["host"] == "h"
    assert result["rejects"]["rows"] == 1
    assert picture.exists()


@pytest.mark.parametrize("name", ["[ab]b", "{ab,ab}", "a*", "a?", "a\\b"])
def test_a_directory_name_is_not_a_glob_pattern(name: str, spark: SparkSession, tmp_path: Path) -> None:
    for table, rows in (("ab", 1), (name, 0)):
        _write(spark, [pending_task(NOW)] * rows, EXPORT, tmp_path / table)
        _write(spark, [reject(None, "no")] * rows, REJECTS, tmp_path / "rejects" / table)

    assert count_export(spark, str(tmp_path / name)).states == {}
    assert read_rejects(spark, str(tmp_path / "rejects" / name), 20).rows == 0


@pytest.mark.parametrize(
    ("content", "error"), [(None, "Path does not exist"), ({}, "no Parquet in it"), ({"x.parquet": "x"}, "x.parquet")]
)
def test_an_unreadable_directory_is_one_line(
    content: dict[str, str] | None, error: str, spark: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    if content is not None:
        (tmp_path / "in").mkdir()
        for name, text in content.items():
            (tmp_path / "in" / name).write_text(text)

    assert report_exit_code("--export", str(tmp_path / "in")) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("later: ")
    assert error in printed.err
    assert printed.err.count("\n") == 1


def report_exit_code(*arguments: str) -> int:
    """Run the command; return its exit code."""
    return run(["bulk", "report", *arguments]).code
