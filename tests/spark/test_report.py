"""What Spark counts for `bulk report`: of an export, of rejects, of tables that are neither."""

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
from later.cli.main import run
from later.core.errors import LaterError

Capture = pytest.CaptureFixture[str]
Table = Callable[[Sequence[dict[str, Any]]], str]

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


def waiting(due_at: int, topic: str = "order", state: str = "delay") -> dict[str, Any]:
    return {"topic": topic, "state": state, "due_at": at(due_at), "callback": "http://h/"}


def dead(reason: str, callback: str | None, status: int | None = None, died_at: int = NOW) -> dict[str, Any]:
    error = {"reason": reason, "status": status, "message": "m", "at": at(died_at)}
    return {"topic": "order", "state": "dead", "died_at": at(died_at), "callback": callback, "last_error": error}


def reject(field: str | None, reason: str, key: str = "k") -> dict[str, Any]:
    return {"key": key, "row": "{}", "field": field, "reason": reason}


@pytest.fixture
def export(spark: SparkSession, tmp_path: Path) -> Table:
    """Writes an export of these tasks and says where."""
    return lambda tasks: _written(spark, tasks, EXPORT, tmp_path / "export")


@pytest.fixture
def rejects(spark: SparkSession, tmp_path: Path) -> Table:
    return lambda rows: _written(spark, rows, REJECTS, tmp_path / "rejects")


def _written(spark: SparkSession, rows: Sequence[dict[str, Any]], schema: str, directory: Path) -> str:
    spark.createDataFrame(list(rows), schema).write.parquet(str(directory))
    return str(directory)


def counted(
    spark: SparkSession, directory: str, *topics: str, most: int = 20, named: Sequence[str] = ()
) -> ExportCounts:
    return read_export(spark, directory, topics, WINDOW, most, named)


@pytest.fixture
def half_past(spark: SparkSession) -> Iterator[None]:
    """A session's time zone whose hours begin in the middle of those of UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("half_past")
def test_what_waits_is_counted_by_the_hour_of_utc_in_which_it_is_due(spark: SparkSession, export: Table) -> None:
    times = (NOW - 1, NOW, NOW + 30 * 60_000 - 1, NOW + 30 * 60_000, NOW + 2 * HOUR, NOW + 3 * HOUR, NOW + 900 * HOUR)
    tasks = [waiting(due_at, state=state) for due_at in times for state in ("delay", "error")]

    found = counted(spark, export([*tasks, waiting(NOW, state="unack")]))

    assert found.due.topics == (Load("order", 2, (4, 2, 2), 4),)
    assert found.states == {"delay": 7, "error": 7, "unack": 1}


def test_topics_with_most_to_do_and_those_that_are_named_are_told_apart(spark: SparkSession, export: Table) -> None:
    tasks = [waiting(NOW, topic) for topic in ("a", "a", "a", "b", "c", "c", "d")] + [waiting(NOW - 1, "e")]
    far = [waiting(NOW + 99 * HOUR, "f")] * 9

    due = counted(spark, export(tasks + far), most=2, named=["d", "nowhere"]).due

    assert [load.topic for load in due.topics] == ["a", "c", "d", "nowhere"]
    assert due.topics[-1] == Load("nowhere", 0, (0, 0, 0), 0)
    assert due.others == Load("others", 1, (1, 0, 0), 9)
    assert due.other_topics == 3


def test_only_the_topics_that_were_asked_for_are_counted(spark: SparkSession, export: Table) -> None:
    found = counted(spark, export([waiting(NOW, "a"), waiting(NOW, "b"), dead("gone", "http://h/")]), "a", "c")

    assert found.states == {"delay": 1}
    assert [load.topic for load in found.due.topics] == ["a"]
    assert found.dead.tasks == 0


def test_a_topic_that_is_named_and_has_no_task_is_told(spark: SparkSession, export: Table) -> None:
    directory = export([waiting(NOW, "a"), waiting(NOW, "b"), dead("gone", "http://h/")])

    assert counted(spark, directory, named=["b", "order", "nowhere", "ordr"]).missing_topics == ("nowhere", "ordr")
    assert counted(spark, directory).missing_topics == ()
    of_two = counted(spark, directory, "a", "c", named=["b", "ordr"])
    assert of_two.missing_topics == ("c", "ordr")
    assert [load.topic for load in of_two.due.topics] == ["a"]


def test_the_dead_are_counted_by_reason_and_host_whatever_their_callback_is(spark: SparkSession, export: Table) -> None:
    callbacks = [
        "http://a_b.Example/x",
        "https://u:p@A_B.example:8443?q",
        "http://[::1]:80/",
        "http://[",
        "%",
        "",
        None,
    ]
    tasks = [dead("exhausted", callback, 503, NOW + n) for n, callback in enumerate(callbacks)]

    found = counted(spark, export([*tasks, dead("gone", "http://a_b.example", 410)])).dead

    assert found.reasons == {"exhausted": 7, "gone": 1}
    assert found.groups == (
        DeadGroup("exhausted", "", 4, NOW + 6, 503),
        DeadGroup("exhausted", "a_b.example", 2, NOW + 1, 503),
        DeadGroup("exhausted", "[::1]", 1, NOW + 2, 503),
        DeadGroup("gone", "a_b.example", 1, NOW, 410),
    )


def test_the_answer_that_the_dead_got_most_often_is_told(spark: SparkSession, export: Table) -> None:
    tasks = [dead("exhausted", "http://h/", status) for status in (500, 503, 503)]
    unanswered = [dead("expired", "http://h/", status) for status in (500, None, None)]

    found = counted(spark, export([*tasks, *unanswered, dead("gone", "http://h/")]), most=2).dead

    assert found.groups == (DeadGroup("exhausted", "h", 3, NOW, 503), DeadGroup("expired", "h", 3, NOW, None))
    assert (found.other_groups, found.other_tasks, found.tasks) == (1, 1, 7)


def test_an_export_of_nothing_can_be_counted(spark: SparkSession, export: Table) -> None:
    found = counted(spark, export([]))

    assert (found.states, found.due.topics, found.due.others.to_deliver, found.dead.tasks) == ({}, (), 0, 0)


def test_rejects_are_counted_without_what_is_of_one_row(spark: SparkSession, rejects: Table) -> None:
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


def test_a_table_that_is_no_export_is_told_by_the_columns_that_it_lacks(spark: SparkSession, rejects: Table) -> None:
    directory = rejects([])

    with pytest.raises(LaterError) as told:
        counted(spark, directory)

    lacks = "topic, state, callback, due_at, died_at, last_error"
    assert str(told.value) == f"{directory} is not an export: no column {lacks}"


def test_the_command_tells_both_tables_and_draws_them(
    export: Table, rejects: Table, tmp_path: Path, capsys: Capture
) -> None:
    tasks = export([waiting(NOW - 1), waiting(4_000_000_000_000), dead("gone", "http://h/", 410)])
    refused = rejects([reject("delay", "delay: expected a number of seconds ≥ 0, got -1")])
    picture = tmp_path / "a.png"

    assert ended("--export", tasks, "--rejects", refused, "--rate", "order=1", "--json", "--plot", str(picture)) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["tasks"] == {"delay": 2, "dead": 1}
    assert [(topic["topic"], topic["rate"], topic["later"]) for topic in told["due"]["topics"]] == [("order", 1, 1)]
    assert told["dead"]["groups"][0]["host"] == "h"
    assert told["rejects"]["rows"] == 1
    assert picture.exists()


@pytest.mark.parametrize("name", ["[ab]b", "{ab,ab}", "a*", "a?", "a\\b"])
def test_a_directory_is_read_by_its_name_and_not_by_what_that_matches(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    for table, rows in (("ab", 1), (name, 0)):
        _written(spark, [waiting(NOW)] * rows, EXPORT, tmp_path / table)
        _written(spark, [reject(None, "no")] * rows, REJECTS, tmp_path / "rejects" / table)

    assert counted(spark, str(tmp_path / name)).states == {}
    assert read_rejects(spark, str(tmp_path / "rejects" / name), 20).rows == 0


@pytest.mark.parametrize(
    ("content", "said"), [(None, "Path does not exist"), ({}, "no Parquet in it"), ({"x.parquet": "x"}, "x.parquet")]
)
def test_what_cannot_be_read_is_told_in_one_line(
    content: dict[str, str] | None, said: str, spark: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    if content is not None:
        (tmp_path / "in").mkdir()
        for name, text in content.items():
            (tmp_path / "in" / name).write_text(text)

    assert ended("--export", str(tmp_path / "in")) == 1

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("later: ")
    assert said in told.err
    assert told.err.count("\n") == 1


def ended(*arguments: str) -> int:
    """The command's exit status."""
    return run(["bulk", "report", *arguments]).code
