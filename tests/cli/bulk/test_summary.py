"""`--json` of each command of `bulk` prints exactly one object, whatever happens."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from later.bulk.jobs import run
from later.bulk.jobs.run import CreateReport
from later.cli.bulk.summary import EXIT_STATUSES, format_due_time, without_password
from later.client.http import NotReached, TargetFull
from later.client.transport import CreateCounts
from later.core.errors import STORE_FULL_REASON, LaterError, Refused
from later.signals import signal_handlers
from tests.cases import each_case
from tests.cli.bulk.test_create import (
    MANY_REJECTED,
    NONE_MISSING,
    NONE_REJECTED,
    SOME_MISSING,
    Capture,
    FakeSpark,
    bulk_exit_code,
    spark,
)

__all__ = ["spark"]  # the fixture

KEYS = [
    "command", "job", "run", "url", "prefix", "input", "rejects", "output", "seconds", "counts", "due",
    "report", "outcome", "error",
]  # fmt: skip
CREATE = ("create", "in", "--job", "j", "--json")


def summary_of(capsys: Capture) -> dict[str, Any]:
    """Return the one object on standard output."""
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [*result] == KEYS
    return result


def test_a_job_that_is_done_says_what_it_did_and_where(spark: FakeSpark, capsys: Capture) -> None:
    spark.answer = NONE_REJECTED._replace(due_times=MANY_REJECTED.due_times)
    assert bulk_exit_code(*CREATE, "--rejects", "out") == 0
    result = summary_of(capsys)
    assert spark.call is not None
    assert result.pop("run") == spark.call[2][0]
    assert result.pop("rejects") == spark.call[2][1].directory
    assert result == {
        "command": "create", "job": "j", "url": "http://127.0.0.1:8080", "prefix": None, "input": "in",
        "output": None, "seconds": 0.5, "counts": {"rows": 3, "created": 1, "existing": 2, "lost": 0, "rejected": 0},
        "due": {"at_once": 7, "earliest": "1970-01-01T00:00:05Z", "latest": "2026-11-21T22:40:00Z"},
        "report": None, "outcome": "done", "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "code", "outcome"),
    [
        (MANY_REJECTED, 1, "refused"),
        (NONE_REJECTED._replace(lost=1), 5, "lost"),
        (NONE_REJECTED._replace(uncounted="away"), 3, "unreached"),
        (NotReached("away (tried 9 times)"), 3, "unreached"),
        (TargetFull(f"{STORE_FULL_REASON} (tried 9 times)"), 4, "full"),
        (Refused("execute_time: expected a column"), 2, "usage"),
        (LaterError("Spark's Java has ended"), 1, "failed"),
        (OSError(28, "No space left on device"), 1, "failed"),
        (KeyError("a bug"), 1, "failed"),
    ],
    ids=repr,
)
def test_each_end_has_its_outcome_and_exit_status(
    answer: Any, code: int, outcome: str, spark: FakeSpark, capsys: Capture
) -> None:
    spark.answer = answer
    assert bulk_exit_code(*CREATE) == code
    result = summary_of(capsys)
    assert (result["outcome"], result["job"], result["command"]) == (outcome, "j", "create")
    assert result["error"]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["create", "in", "--json"], "create"),
        (["create", "--json", "--nonsense"], "create"),
        (["verify", "in", "--job", "a b", "--json"], "verify"),
        (["export", "--json"], "export"),
        (["report", "--json"], "report"),
        (["cancel", "in", "--job", "j", "--json"], "cancel"),
        (["creat", "--json"], None),
    ],
    ids=str,
)
def test_a_usage_error_is_an_object_too(
    words: list[str], command: str | None, spark: FakeSpark, capsys: Capture
) -> None:
    assert bulk_exit_code(*words) == 2
    result = summary_of(capsys)
    assert (result["outcome"], result["command"]) == ("usage", command)
    assert result["error"]


def test_a_wrong_address_does_not_hide_the_job_and_its_input(spark: FakeSpark, capsys: Capture) -> None:
    assert bulk_exit_code(*CREATE, "--url", "nowhere") == 2
    result = summary_of(capsys)
    assert (result["job"], result["input"], result["url"]) == ("j", "in", None)


def test_a_summary_names_the_keys_of_the_store_that_it_wrote_to(spark: FakeSpark, capsys: Capture) -> None:
    store = ("--url", "redis://10.0.0.5:6379/0", "--prefix", "shop")
    assert bulk_exit_code(*CREATE, *store) == 0
    result = summary_of(capsys)
    assert (result["url"], result["prefix"]) == ("redis://10.0.0.5:6379/0", "shop")
    spark.answer = NONE_MISSING
    assert bulk_exit_code("cancel", "in", "--job", "j", "--yes", *store) == 0
    assert capsys.readouterr().out.endswith("at redis://10.0.0.5:6379/0, prefix shop\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_job_says_what_it_had_created(number: signal.Signals, spark: FakeSpark, capsys: Capture) -> None:
    def interrupt(run_id: str, rejects: object, progress: run.JobProgress) -> CreateReport:
        progress.update_counts(CreateCounts(60_000, 5, 1))
        signal.raise_signal(number)
        raise AssertionError("the signal comes first")

    spark.answer = interrupt
    with signal_handlers({signal.SIGINT: signal.default_int_handler}):  # a shell's background job ignores it
        assert bulk_exit_code(*CREATE) == 128 + number
    result = summary_of(capsys)
    assert (result["outcome"], result["counts"]) == ("interrupted", {"created": 60_000})
    assert result["error"] == f"interrupted by {number.name}"


def test_verify_and_cancel_count_rows(spark: FakeSpark, capsys: Capture) -> None:
    spark.answer = SOME_MISSING._replace(rejected=0)
    assert bulk_exit_code("verify", "in", "--job", "j", "--rejects", "out", "--json") == 1
    result = summary_of(capsys)
    assert (result["outcome"], result["rejects"], result["seconds"]) == ("missing", "out", 1.26)
    verified = {"rows": 10, "pending": 4, "ended": 2, "dead": 1, "rejected": 0, "missing": 2, "unfit": 1}
    assert result["counts"] == verified
    spark.answer = NONE_MISSING._replace(pending=0, in_flight=1)
    assert bulk_exit_code("cancel", "in", "--job", "j", "--yes", "--json") == 0
    counts = summary_of(capsys)["counts"]
    assert counts == {"rows": 3, "cancelled": 0, "in_flight": 1, "ended": 1, "dead": 1, "missing": 0, "unfit": 0}
    assert sum(counts.values()) == 2 * counts["rows"]


def test_help_is_no_summary(spark: FakeSpark, capsys: Capture) -> None:
    assert bulk_exit_code("create", "--help", "--json") == 0
    assert capsys.readouterr().out.startswith("Usage: ")


def test_an_argument_after_two_dashes_is_no_option(spark: FakeSpark, capsys: Capture) -> None:
    assert bulk_exit_code("create", "--job", "j", "--", "--json") == 0
    assert capsys.readouterr().out.startswith("3 rows: ")


def test_a_summary_shows_no_password() -> None:
    assert without_password("redis://user:secret@h:6379/0") == "redis://h:6379/0"
    assert without_password("unix:///run/later.sock?db=1") == "unix:///run/later.sock?db=1"


@each_case(
    ("due_at", "shown"),
    [(-(10**18), "1-01-01T00:00:00Z"), (1999, "1970-01-01T00:00:01Z"), (10**18, "9999-12-31T23:59:59Z")],
)
def test_any_due_time_can_be_shown(due_at: int, shown: str) -> None:
    assert format_due_time(due_at).endswith(shown)


def test_the_exit_statuses_are_those_of_the_documents() -> None:
    assert {status for outcome, status in EXIT_STATUSES.items()} == {0, 1, 2, 3, 4, 5}
