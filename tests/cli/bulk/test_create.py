"""`bulk create`, `verify` and `cancel` as a shell sees them: options, output, exit statuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from later.bulk.input import spark_input
from later.bulk.input.due_times import DueTimes
from later.bulk.input.rejects import build_reject
from later.bulk.input.row_settings import RowSettings
from later.bulk.input.spark_input import InputFrame, JobInput
from later.bulk.jobs import run
from later.bulk.jobs.output import Output
from later.bulk.jobs.run import CreateReport, MissingTask, StatusReport
from later.bulk.spark import session
from later.bulk.transport.target import Target
from later.cli.bulk.job_options import infer_format
from later.cli.program import run as run_command
from later.client.http import NotReached, TargetFull
from later.client.transport import CreateCounts
from later.core.errors import (
    STORE_FULL_REASON,
    CallFailed,
    InputUnreadable,
    LaterError,
    Refused,
    StoreDown,
    Unavailable,
)
from tests.cases import each_case

Capture = pytest.CaptureFixture[str]

REJECT = build_reject(
    b'{"topic":"order","delay":-5}', b"17", Refused("delay: expected a number of seconds ≥ 0, got -5", "delay")
)
MANY_REJECTED = CreateReport(
    rows=1_000_000,
    created=988_000,
    existing=0,
    rejected=12_000,
    seconds=8.0,
    examples=[REJECT],
    due_times=DueTimes(7, 5000, 1_795_300_800_000),
)
NONE_REJECTED = CreateReport(rows=3, created=1, existing=2, rejected=0, seconds=0.5, examples=[])
SOME_MISSING = StatusReport(
    rows=10, pending=4, in_flight=0, dead=1, ended=2, missing=2, unfit=1, seconds=1.26,
    examples=[MissingTask("17", "j:x", '{"topic":"order"}')],
)  # fmt: skip
NONE_MISSING = StatusReport(
    rows=3, pending=1, in_flight=0, dead=1, ended=1, missing=0, unfit=0, seconds=1.0, examples=[]
)


class FakeSpark:
    """Replaces Spark's session and the jobs: it records what they are called with, and a job returns `answer`."""

    def __init__(self) -> None:
        self.session: tuple[str, dict[str, str], str] | None = None
        self.input: JobInput | None = None
        self.call: tuple[str, Target, tuple[Any, ...]] | None = None
        self.answer: Any = NONE_REJECTED
        self.ignored_columns: list[str] = []

    @contextmanager
    def open(self, master: str, conf: dict[str, str], name: str) -> Iterator[Any]:
        self.session = (master, conf, name)
        yield self

    def read(self, spark: Any, job_input: JobInput, job: str) -> InputFrame:
        self.input = job_input
        frame: Any = SimpleNamespace(sparkSession=spark)
        return InputFrame(frame, RowSettings(job=job), self.ignored_columns)

    def job(self, name: str) -> Any:
        """Return the replacement of a job."""

        def run_job(input_frame: InputFrame, target: Target, *rest: Any) -> Any:
            self.call = (name, target, rest)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer(*rest) if callable(self.answer) else self.answer

        return run_job


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSpark:
    monkeypatch.chdir(tmp_path)
    spark = FakeSpark()
    monkeypatch.setattr(session, "open_session", spark.open)
    monkeypatch.setattr(spark_input, "read_input", spark.read)
    for name in ("create", "validate", "verify", "cancel"):
        monkeypatch.setattr(run, name, spark.job(name))
    return spark


def bulk_exit_code(*arguments: str) -> int:
    return run_command(["bulk", *arguments]).code


class TestOptions:
    def test_options_have_defaults(self, spark: FakeSpark) -> None:
        assert bulk_exit_code("create", "in.parquet", "--job", "j") == 0
        assert spark.session == ("local[*,4]", {}, "later bulk j")
        assert spark.input == JobInput(path="in.parquet", format="parquet", options={}, columns={}, constants={})
        assert spark.call is not None
        assert spark.call[:2] == ("create", Target(url="http://127.0.0.1:8080", batch_size=1000, retries=8))

    def test_all_options_are_passed_on(self, spark: FakeSpark) -> None:
        arguments = [
            "--format", "csv", "--column", "key=id", "--column", "callback=a=b", "--set", "topic=order",
            "--set", "content=", "--option", "sep=;", "--spread", "6h", "--allow-duplicates", "--ignore-others",
            "--batch", "7", "--retries", "0", "--url", "redis://h/1", "--prefix", "mine", "--store-timeout", "3s",
            "--master", "spark://h:7077", "--conf", "spark.a=1", "--rejects", "out",
        ]  # fmt: skip
        assert bulk_exit_code("create", "in", "--job", "j", *arguments) == 0
        assert spark.session == ("spark://h:7077", {"spark.a": "1"}, "later bulk j")
        assert spark.input == JobInput(
            path="in", format="csv", options={"sep": ";"}, columns={"key": "id", "callback": "a=b"},
            constants={"topic": "order", "content": ""}, spread_s=21_600, allow_duplicates=True,
            send_unknown_fields=False,
        )  # fmt: skip
        assert spark.call is not None
        name, target, (_, rejects, _) = spark.call
        assert (name, rejects.runs_of) == ("create", "out")
        assert re.fullmatch(r"out/run=\d{8}T\d{6}Z-[0-9a-f]{6}", rejects.directory)
        assert target == Target(url="redis://h/1", prefix="mine", timeout_s=3, batch_size=7, retries=0)

    @each_case(
        ("path", "format"),
        [("a.csv", "csv"), ("a.CSV.gz", "csv"), ("a.json", "json"), ("a.ndjson.zst", "ndjson"), ("a.jsonl", "ndjson"),
         ("a.orc", "orc"), ("a.parquet", "parquet"), ("a.csv.parquet", "parquet"), ("a.snappy.parquet", "parquet"),
         ("s3a://lake/orders/", "parquet"), ("s3a://lake/v1.json/part", "parquet"), ("a.json.d/*.csv", "csv")],
    )  # fmt: skip
    def test_the_format_is_inferred_from_the_extension(self, path: str, format: str) -> None:
        assert infer_format(path) == format

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ([], "Missing option '--job'"),
            (["--job", "a b"], "expected 1 to 107 characters"),
            (["--job", "x" * 108], "expected 1 to 107 characters"),
            (["--job", "j", "--set", "topic"], "topic: expected FIELD=VALUE"),
            (["--job", "j", "--column", "=x"], "=x: expected FIELD=COLUMN"),
            (["--job", "j", "--set", "topic=a", "--set", "topic=b"], "topic is given twice"),
            (
                ["--job", "j", "--set", "topic=a", "--column", "topic=b"],
                "topic: give either --column or --set, not both.",
            ),
            (["--job", "j", "--column", "hook=x"], "hook: unknown field; expected topic, callback, "),
            (["--job", "j", "--set", "key=x"], "key: expected a column"),
            (["--job", "j", "--batch", "0"], "0 is not in the range 1<=x<=10000"),
            (["--job", "j", "--batch", "10001"], "10001 is not in the range 1<=x<=10000"),
            (["--job", "j", "--format", "xml"], "'xml' is not one of"),
            (["--job", "j", "--spread", "soon"], "soon: expected a duration"),
            (["--job", "j", "--max-rejects", "-1"], "-1 is not in the range x>=0"),
        ],
        ids=str,
    )
    def test_wrong_options_are_usage_errors(
        self, arguments: list[str], why: str, spark: FakeSpark, capsys: Capture
    ) -> None:
        assert bulk_exit_code("create", "in", *arguments) == 2
        assert why in capsys.readouterr().err
        assert spark.session is None

    @pytest.mark.parametrize("name", ["create", "verify", "cancel"])
    def test_a_password_in_a_url_is_refused(self, name: str, spark: FakeSpark, capsys: Capture) -> None:
        assert bulk_exit_code(name, "in", "--job", "j", "--url", "redis://:secret@h") == 2
        assert "secret" not in capsys.readouterr().err


class TestCreate:
    def test_the_counts_and_the_first_rejects_are_printed(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = MANY_REJECTED
        assert bulk_exit_code("create", "in", "--job", "j") == 1
        out, err = capsys.readouterr()
        counts, due, where = out.splitlines()
        assert counts == "1,000,000 rows: 988,000 created, 0 already there, 12,000 rejected; 8.0 s, 125,000/s"
        assert due == "due: 7 at once; the earliest 1970-01-01T00:00:05Z, the latest 2026-11-21T22:40:00Z"
        assert re.fullmatch(r"job j, run \d{8}T\d{6}Z-[0-9a-f]{6}, at http://127\.0\.0\.1:8080", where)
        assert err.splitlines() == [
            f"later: rejected: key 17: {REJECT.reason}: {REJECT.row}",
            "later: use --rejects DIR to write all rejected rows",
        ]

    def test_the_directory_of_all_such_rows_is_named(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = MANY_REJECTED
        assert bulk_exit_code("create", "in", "--job", "j", "--rejects", "out/rejects") == 1
        assert "later: all rejected rows are in out/rejects" in capsys.readouterr().err

    @pytest.mark.parametrize(("limit", "code"), [("11999", 1), ("12000", 0)])
    def test_more_rejects_than_allowed_are_a_failure(self, limit: str, code: int, spark: FakeSpark) -> None:
        spark.answer = MANY_REJECTED
        assert bulk_exit_code("create", "in", "--job", "j", "--max-rejects", limit) == code

    def test_a_dry_run_validates_only(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = MANY_REJECTED._replace(created=0)
        assert bulk_exit_code("create", "in", "--job", "j", "--dry-run", "--rejects", "out") == 1
        assert spark.call is not None
        assert (spark.call[0], spark.call[2][0].runs_of) == ("validate", "out")
        assert capsys.readouterr().out.startswith("1,000,000 rows: 988,000 valid, 12,000 rejected; ")
        assert bulk_exit_code("create", "in", "--job", "j", "--dry-run", "--json") == 1
        assert json.loads(capsys.readouterr().out)["counts"]["valid"] == 988_000

    @pytest.mark.parametrize("job_existed", [True, False])
    def test_rows_with_the_same_key_are_reported_if_the_job_is_new(
        self, job_existed: bool, spark: FakeSpark, capsys: Capture
    ) -> None:
        spark.answer = NONE_REJECTED._replace(job_existed=job_existed)
        assert bulk_exit_code("create", "in", "--job", "j") == 0
        warning = (
            "later: 2 already existed, although the job is new: rows with the same key are one task, and another run "
            "of the job may have created tasks meanwhile\n"
        )
        assert capsys.readouterr().err == ("" if job_existed else warning)

    def test_an_empty_input_is_not_an_error(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = CreateReport(0, 0, 0, 0, 0.0, [])
        assert bulk_exit_code("create", "in", "--job", "j") == 0
        assert capsys.readouterr().out.startswith("0 rows: ")

    def test_ignored_columns_are_named(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.ignored_columns = ["Topic", "note"]
        assert bulk_exit_code("create", "in", "--job", "j") == 0
        assert capsys.readouterr().err == "later: ignored columns (not task fields): Topic, note\n"

    def test_a_rejected_row_neither_moves_the_cursor_nor_fills_the_terminal(
        self, spark: FakeSpark, capsys: Capture
    ) -> None:
        row = b'{"content":"\x1b[2J\xe2\x80\xa8' + b"x" * 9999
        unprintable = build_reject(row, b"\x1b[2J\n", Refused("\x07"))
        spark.answer = MANY_REJECTED._replace(examples=[unprintable])
        bulk_exit_code("create", "in", "--job", "j")
        line = capsys.readouterr().err.splitlines()[0]
        assert line.isprintable()
        assert len(line) < 300

    def test_a_row_without_a_key_is_shown_without_one(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = MANY_REJECTED._replace(examples=[REJECT._replace(key=None)])
        bulk_exit_code("create", "in", "--job", "j")
        assert capsys.readouterr().err.startswith("later: rejected: delay: expected")

    def test_tasks_that_the_store_has_lost_are_a_failure(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = NONE_REJECTED._replace(rows=500, created=439, existing=0, lost=61)
        assert bulk_exit_code("create", "in", "--job", "j") == 5
        out, err = capsys.readouterr()
        assert out.startswith("500 rows: 439 created, 0 already there, 61 lost, 0 rejected; ")
        assert err == (
            "later: the store has lost at least 61 tasks that it had confirmed as created: find their rows with `later "
            "bulk verify`, and run the same command again\n"
        )

    def test_a_store_that_cannot_be_asked_at_the_end_is_a_failure(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = NONE_REJECTED._replace(uncounted="the store cannot be reached")
        assert bulk_exit_code("create", "in", "--job", "j") == 3
        assert "the store's own count is unknown: the store cannot be reached; check them" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (LaterError("Spark's Java has ended"), 1),
            (Refused("key: expected", "key"), 2),
            (InputUnreadable("Path does not exist"), 2),
            (NotReached("http://h did not answer (tried 9 times)"), 3),
            (Unavailable("http://h did not answer"), 3),
            (CallFailed("is this the URL of later?", 200), 3),
            (StoreDown("the store cannot be reached"), 3),
            (TargetFull(f"{STORE_FULL_REASON} (tried 9 times)"), 4),
            (StoreDown(STORE_FULL_REASON), 4),
        ],
        ids=repr,
    )
    def test_an_error_is_one_line(self, error: Exception, code: int, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = error
        assert bulk_exit_code("create", "in", "--job", "j") == code
        assert capsys.readouterr() == ("", f"later: {error}\n")


class TestProgress:
    def test_a_problem_is_reported_once_until_it_is_over(self, spark: FakeSpark, capsys: Capture) -> None:
        def report_problems(run_id: str, rejects: object, progress: run.JobProgress) -> CreateReport:
            for reason in ("it is away", "it is away", "it is full"):
                progress.report_problem(reason)
            progress.update_counts(CreateCounts(1))
            progress.report_problem("it is full")
            return NONE_REJECTED

        spark.answer = report_problems
        assert bulk_exit_code("create", "in", "--job", "j") == 0
        away, full = "later: it is away; the workers try again\n", "later: it is full; the workers try again\n"
        assert capsys.readouterr().err == away + full + full

    @pytest.mark.parametrize(
        "words", [["create"], ["create", "--dry-run"], ["verify"], ["cancel", "--yes"]], ids=" ".join
    )
    def test_on_a_terminal_a_bar_shows_the_progress(
        self, words: list[str], spark: FakeSpark, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def report_partitions(*rest: Any) -> Any:
            progress = rest[-1]
            (progress.update_partitions if words == ["create"] else progress)(3, 12)
            return NONE_REJECTED if words[0] == "create" else NONE_MISSING

        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(spark_input, "row_count", lambda session, given: 70)
        spark.answer = report_partitions
        assert bulk_exit_code(words[0], "in", "--job", "j", *words[1:]) == 0
        err = capsys.readouterr().err
        assert "3/12" in err
        assert "partitions" in err
        assert ("0/70" in err) == (words == ["create"])

    def test_a_job_that_ends_early_reports_what_it_created(self, spark: FakeSpark, capsys: Capture) -> None:
        def fail_early(run_id: str, rejects: object, progress: run.JobProgress) -> CreateReport:
            progress.update_counts(CreateCounts(60_000, 5, 1))
            raise LaterError("Unexpected end of input stream")

        spark.answer = fail_early
        assert bulk_exit_code("create", "in", "--job", "j") == 1
        assert capsys.readouterr().err == (
            "later: at least 60,000 tasks were created; run the same command again to continue\n"
            "later: Unexpected end of input stream\n"
        )


class TestVerify:
    def test_the_counts_and_the_first_missing_rows_are_printed(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = SOME_MISSING
        assert bulk_exit_code("verify", "in", "--job", "j") == 1
        out, err = capsys.readouterr()
        assert out.splitlines() == [
            "10 rows: 4 pending, 2 ended, 1 dead, 2 missing, 1 without a key or corrupt; 1.3 s",
            "job j, at http://127.0.0.1:8080",
        ]
        assert err.splitlines() == [
            'later: missing: key 17: j:x: {"topic":"order"}',
            "later: use --missing DIR to write all rows without a task",
        ]

    def test_the_directory_of_all_such_rows_is_named(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = SOME_MISSING
        assert bulk_exit_code("verify", "in", "--job", "j", "--missing", "out") == 1
        assert spark.call is not None
        assert (spark.call[0], spark.call[2][0]) == ("verify", Output("out"))
        assert "later: all rows without a task are in out" in capsys.readouterr().err

    @pytest.mark.parametrize(("limit", "code"), [("3", 0), ("2", 1)])
    def test_more_missing_rows_than_allowed_are_a_failure(self, limit: str, code: int, spark: FakeSpark) -> None:
        spark.answer = NONE_MISSING._replace(missing=2, unfit=1)
        assert bulk_exit_code("verify", "in", "--job", "j", "--max-missing", limit) == code

    def test_a_hint_is_printed_if_no_row_has_a_task(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = NONE_MISSING._replace(pending=0, dead=0, ended=0, missing=3)
        for words, job_exists, code in (
            (["verify"], True, 1), (["cancel", "--yes"], False, 1), (["cancel", "--yes"], True, 0),
        ):  # fmt: skip
            spark.answer = spark.answer._replace(job_exists=job_exists)
            assert bulk_exit_code(words[0], "in", "--job", "j", *words[1:]) == code
            assert "later: none of the rows has a task: --job and the key's column" in capsys.readouterr().err

    @pytest.mark.parametrize(("missing", "unfit", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
    def test_a_row_without_a_task_is_a_failure(self, missing: int, unfit: int, code: int, spark: FakeSpark) -> None:
        spark.answer = NONE_MISSING._replace(missing=missing, unfit=unfit)
        assert bulk_exit_code("verify", "in", "--job", "j") == code


class TestCancel:
    def test_the_counts_are_printed_and_those_in_flight_apart(self, spark: FakeSpark, capsys: Capture) -> None:
        spark.answer = SOME_MISSING._replace(pending=3, in_flight=1)
        assert bulk_exit_code("cancel", "in", "--job", "j", "--yes") == 0
        out, err = capsys.readouterr()
        assert out.startswith(
            "10 rows: 3 cancelled, 1 in flight, 2 ended, 1 dead, 2 missing, 1 without a key or corrupt; 1.3 s\n"
        )
        assert err == "later: in flight when cancelled: 1; their receivers may get the attempt under way\n"

    @pytest.mark.parametrize(("answer", "code", "called"), [(True, 0, True), (False, 1, False)])
    def test_it_asks_for_confirmation(
        self, answer: bool, code: int, called: bool, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        asked: list[str] = []

        def confirm(text: str, *, err: bool) -> bool:
            asked.append(text)
            return answer

        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.confirm", confirm)
        spark.answer = NONE_MISSING
        assert bulk_exit_code("cancel", "in", "--job", "j") == code
        assert asked == ["delete the pending tasks of the job j, of all rows of in?"]
        assert (spark.session is not None) is called
        assert ("nothing was cancelled" in capsys.readouterr().err) is not called

    def test_without_a_terminal_it_requires_yes(self, spark: FakeSpark, capsys: Capture) -> None:
        assert bulk_exit_code("cancel", "in", "--job", "j") == 2
        assert "use --yes to cancel without asking" in capsys.readouterr().err
        assert spark.session is None

    @pytest.mark.parametrize("option", ["--spread", "--allow-duplicates", "--dry-run", "--rejects"])
    @pytest.mark.parametrize("name", ["verify", "cancel"])
    def test_options_of_create_are_refused(self, name: str, option: str, spark: FakeSpark) -> None:
        assert bulk_exit_code(name, "in", "--job", "j", option) == 2


@each_case("name", ["create", "verify", "cancel"])
def test_help_describes_the_command(name: str, capsys: Capture) -> None:
    assert bulk_exit_code(name, "--help") == 0
    assert f"Usage: later bulk {name} [OPTIONS] INPUT" in capsys.readouterr().out


@each_case(
    ("fields", "why"),
    [
        ({"columns": {"hook": "x"}}, "hook: unknown field; expected topic, callback, "),
        ({"constants": {"id": "x"}}, "id: unknown field; expected topic, callback, "),
        ({"constants": {"key": "x"}}, "key: expected a column, because rows with the same key are one task"),
        ({"path": "/dev/null"}, "/dev/null: expected a file or a directory"),
        ({"path": "file:///dev/null"}, "file:///dev/null: expected a file or a directory"),
    ],
)
def test_a_wrong_input_is_refused_before_anything_is_read(fields: dict[str, Any], why: str) -> None:
    no_session: Any = None
    job_input = JobInput(**({"path": "in", "format": "csv", "options": {}, "columns": {}, "constants": {}} | fields))
    with pytest.raises(Refused, match=f"^{why}"):
        spark_input.read_input(no_session, job_input, "j")
