"""`bulk create`, `verify` and `cancel` as a shell sees them: what they take, what they say, how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from later.bulk.input import reader
from later.bulk.input.payload import Reject
from later.bulk.input.reader import InputFrame, JobInput
from later.bulk.input.table import Table
from later.bulk.jobs import run
from later.bulk.jobs.output import Output
from later.bulk.jobs.run import Created, Missing, Standings
from later.bulk.spark import session
from later.bulk.transport.target import Target
from later.cli.bulk.input_options import format_of
from later.cli.main import run as command
from later.client.transport import Counts
from later.core.errors import LaterError, Refused

Capture = pytest.CaptureFixture[str]

REJECT = Reject("17", '{"topic":"order","delay":-5}', "delay", "delay: expected a number of seconds ≥ 0, got -5")
CAME = Created(rows=1_000_000, created=988_000, existing=0, rejected=12_000, seconds=8.0, examples=[REJECT])
GOOD = Created(rows=3, created=1, existing=2, rejected=0, seconds=0.5, examples=[])
STANDINGS = Standings(
    rows=10, pending=4, dead=1, ended=2, missing=2, unfit=1, seconds=1.26,
    examples=[Missing("17", "j:x", '{"topic":"order"}')],
)  # fmt: skip
THERE = Standings(rows=3, pending=1, dead=1, ended=1, missing=0, unfit=0, seconds=1.0, examples=[])


class Spark:
    """In place of Spark and of what runs in it: what it was asked for, and what it answers."""

    def __init__(self) -> None:
        self.session: tuple[str, dict[str, str], str] | None = None
        self.given: JobInput | None = None
        self.called: tuple[str, Target, tuple[Any, ...]] | None = None
        self.answer: Any = GOOD
        self.unused: list[str] = []

    @contextmanager
    def open(self, master: str, conf: dict[str, str], name: str) -> Iterator[Any]:
        self.session = (master, conf, name)
        yield self

    def read(self, spark: Any, given: JobInput, job: str) -> InputFrame:
        self.given = given
        frame: Any = SimpleNamespace(sparkSession=spark)
        return InputFrame(frame, Table(job=job), self.unused)

    def call(self, name: str) -> Any:
        def called(found: InputFrame, target: Target, *rest: Any) -> Any:
            self.called = (name, target, rest)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer(*rest) if callable(self.answer) else self.answer

        return called


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Spark:
    monkeypatch.chdir(tmp_path)
    spark = Spark()
    monkeypatch.setattr(session, "open_session", spark.open)
    monkeypatch.setattr(reader, "read_input", spark.read)
    for name in ("create", "judge", "find", "cancel"):
        monkeypatch.setattr(run, name, spark.call(name))
    return spark


def status(*arguments: str) -> int:
    return command(["bulk", *arguments]).code


class TestWhatIsTaken:
    def test_what_is_not_said_is_what_it_mostly_is(self, spark: Spark) -> None:
        assert status("create", "in.parquet", "--job", "j") == 0
        assert spark.session == ("local[*,4]", {}, "later bulk j")
        assert spark.given == JobInput(path="in.parquet", format="parquet", options={}, columns={}, constants={})
        assert spark.called is not None
        assert spark.called[:2] == ("create", Target(url="http://127.0.0.1:8080", batch=1000, retries=8))

    def test_all_that_is_said_is_taken(self, spark: Spark) -> None:
        said = [
            "--format", "csv", "--column", "key=id", "--column", "callback=a=b", "--set", "topic=order",
            "--set", "content=", "--option", "sep=;", "--spread", "6h", "--allow-duplicates", "--ignore-others",
            "--batch", "7", "--retries", "0", "--url", "redis://h/1", "--prefix", "mine", "--store-timeout", "3s",
            "--master", "spark://h:7077", "--conf", "spark.a=1", "--rejects", "out", "--overwrite",
        ]  # fmt: skip
        assert status("create", "in", "--job", "j", *said) == 0
        assert spark.session == ("spark://h:7077", {"spark.a": "1"}, "later bulk j")
        assert spark.given == JobInput(
            path="in", format="csv", options={"sep": ";"}, columns={"key": "id", "callback": "a=b"},
            constants={"topic": "order", "content": ""}, spread_s=21_600, allow_duplicates=True,
            send_unknown_fields=False,
        )  # fmt: skip
        assert spark.called is not None
        name, target, (rejects, _) = spark.called
        assert (name, rejects) == ("create", Output("out", replaces=True))
        assert target == Target(url="redis://h/1", prefix="mine", timeout_s=3, batch=7, retries=0)

    @pytest.mark.parametrize(
        ("path", "format"),
        [("a.csv", "csv"), ("a.CSV.gz", "csv"), ("a.json", "json"), ("a.ndjson.zst", "ndjson"), ("a.jsonl", "ndjson"),
         ("a.orc", "orc"), ("a.parquet", "parquet"), ("a.csv.parquet", "parquet"), ("a.snappy.parquet", "parquet"),
         ("s3a://lake/orders/", "parquet"), ("s3a://lake/v1.json/part", "parquet"), ("a.json.d/*.csv", "csv")],
    )  # fmt: skip
    def test_a_format_is_known_by_the_paths_ending(self, path: str, format: str) -> None:
        assert format_of(path) == format

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ([], "Missing option '--job'"),
            (["--job", "a b"], "expected 1 to 107 characters"),
            (["--job", "x" * 108], "expected 1 to 107 characters"),
            (["--job", "j", "--set", "topic"], "topic: expected NAME=VALUE"),
            (["--job", "j", "--column", "=x"], "=x: expected NAME=VALUE"),
            (["--job", "j", "--set", "topic=a", "--set", "topic=b"], "topic is given twice"),
            (["--job", "j", "--set", "topic=a", "--column", "topic=b"], "topic: either --column or --set"),
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
    def test_what_is_wrong_is_wrong_usage(self, said: list[str], why: str, spark: Spark, capsys: Capture) -> None:
        assert status("create", "in", *said) == 2
        assert why in capsys.readouterr().err
        assert spark.session is None

    @pytest.mark.parametrize("name", ["create", "verify", "cancel"])
    def test_a_password_is_not_taken(self, name: str, spark: Spark, capsys: Capture) -> None:
        assert status(name, "in", "--job", "j", "--url", "redis://:hush@h") == 2
        assert "hush" not in capsys.readouterr().err


class TestCreating:
    def test_the_sums_are_told_and_the_first_of_what_was_rejected(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = CAME
        assert status("create", "in", "--job", "j") == 1
        out, err = capsys.readouterr()
        assert out == "1,000,000 rows: 988,000 created, 0 already there, 12,000 rejected; 8.0 s, 125,000/s\n"
        assert err.splitlines() == [
            f"later: rejected: key 17: {REJECT.reason}: {REJECT.row}",
            "later: all of them: --rejects DIR writes them as a table",
        ]

    def test_where_all_of_them_are_is_told(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = CAME
        assert status("create", "in", "--job", "j", "--rejects", "out/rejects") == 1
        assert "later: all of them: out/rejects" in capsys.readouterr().err

    @pytest.mark.parametrize(("most", "ends"), [("11999", 1), ("12000", 0)])
    def test_more_of_them_than_there_may_be_are_a_failure(self, most: str, ends: int, spark: Spark) -> None:
        spark.answer = CAME
        assert status("create", "in", "--job", "j", "--max-rejects", most) == ends

    def test_a_machine_gets_one_object(self, spark: Spark, capsys: Capture) -> None:
        assert status("create", "in", "--job", "j", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {
            "job": "j", "rows": 3, "created": 1, "existing": 2, "rejected": 0, "seconds": 0.5, "rows_per_second": 6,
        }  # fmt: skip

    def test_a_dry_run_judges_and_says_so(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = CAME._replace(created=0)
        assert status("create", "in", "--job", "j", "--dry-run", "--rejects", "out") == 1
        assert spark.called is not None
        assert (spark.called[0], spark.called[2][0]) == ("judge", Output("out"))
        assert capsys.readouterr().out.startswith("1,000,000 rows: 988,000 valid, 12,000 rejected; ")
        assert status("create", "in", "--job", "j", "--dry-run", "--json") == 1
        assert json.loads(capsys.readouterr().out)["valid"] == 988_000

    @pytest.mark.parametrize("known", [True, False])
    def test_rows_of_the_same_key_are_told_of_where_the_job_is_new(
        self, known: bool, spark: Spark, capsys: Capture
    ) -> None:
        spark.answer = GOOD._replace(known=known)
        assert status("create", "in", "--job", "j") == 0
        told = "later: 2 were there already, though the job is new: rows that have the same key are one task\n"
        assert capsys.readouterr().err == ("" if known else told)

    def test_no_rows_in_no_time_are_no_error(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = Created(0, 0, 0, 0, 0.0, [])
        assert status("create", "in", "--job", "j") == 0
        assert capsys.readouterr().out.startswith("0 rows: ")

    def test_columns_that_are_not_used_are_named(self, spark: Spark, capsys: Capture) -> None:
        spark.unused = ["Topic", "note"]
        assert status("create", "in", "--job", "j") == 0
        assert capsys.readouterr().err == "later: columns that are no task's, and are not used: Topic, note\n"

    def test_what_a_row_holds_does_not_move_the_terminals_cursor_nor_fill_it(
        self, spark: Spark, capsys: Capture
    ) -> None:
        hostile = Reject("\x1b[2J\n", '{"content":"\x1b[2J\u2028' + "x" * 9999, None, "\x07")
        spark.answer = CAME._replace(examples=[hostile])
        status("create", "in", "--job", "j")
        line = capsys.readouterr().err.splitlines()[0]
        assert line.isprintable()
        assert len(line) < 300

    def test_a_row_without_a_key_is_told_without_one(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = CAME._replace(examples=[REJECT._replace(key=None)])
        status("create", "in", "--job", "j")
        assert capsys.readouterr().err.startswith("later: rejected: delay: expected")

    @pytest.mark.parametrize(
        "error", [LaterError("the store is gone (tried 6 times)"), Refused("key: expected", "key")]
    )
    def test_what_goes_wrong_is_one_line(self, error: Exception, spark: Spark, capsys: Capture) -> None:
        spark.answer = error
        assert status("create", "in", "--job", "j") == 1
        assert capsys.readouterr() == ("", f"later: {error}\n")


class TestHowItGoes:
    def test_trouble_is_said_once_until_it_is_over(self, spark: Spark, capsys: Capture) -> None:
        def troubled(rejects: object, audience: run.Audience) -> Created:
            for reason in ("it is away", "it is away", "it is full"):
                audience.trouble(reason)
            audience.hear(Counts(1))
            audience.trouble("it is full")
            return GOOD

        spark.answer = troubled
        assert status("create", "in", "--job", "j") == 0
        away, full = "later: it is away; the workers try again\n", "later: it is full; the workers try again\n"
        assert capsys.readouterr().err == away + full + full

    @pytest.mark.parametrize(
        "words", [["create"], ["create", "--dry-run"], ["verify"], ["cancel", "--yes"]], ids=" ".join
    )
    def test_on_a_terminal_a_bar_says_how_far_spark_is(
        self, words: list[str], spark: Spark, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def goes(*rest: Any) -> Any:
            told = rest[-1]
            (told.parts if words == ["create"] else told)(3, 12)
            return GOOD if words[0] == "create" else THERE

        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(reader, "row_count", lambda session, given: 70)
        spark.answer = goes
        assert status(words[0], "in", "--job", "j", *words[1:]) == 0
        err = capsys.readouterr().err
        assert "3/12" in err
        assert "parts" in err
        assert ("0/70" in err) == (words == ["create"])

    def test_a_job_that_ends_too_early_says_what_it_did(self, spark: Spark, capsys: Capture) -> None:
        def stopped(rejects: object, audience: run.Audience) -> Created:
            audience.hear(Counts(60_000, 5, 1))
            raise LaterError("Unexpected end of input stream")

        spark.answer = stopped
        assert status("create", "in", "--job", "j") == 1
        assert capsys.readouterr().err == (
            "later: 60,000 tasks or more were created; the same command goes on where this ended\n"
            "later: Unexpected end of input stream\n"
        )


class TestVerifying:
    def test_the_sums_are_told_and_the_first_of_what_is_missing(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = STANDINGS
        assert status("verify", "in", "--job", "j") == 1
        out, err = capsys.readouterr()
        assert out == "10 rows: 4 pending, 2 ended, 1 dead, 2 missing, 1 without a key or corrupt; 1.3 s\n"
        assert err.splitlines() == [
            'later: missing: key 17: j:x: {"topic":"order"}',
            "later: all of them: --missing DIR writes them as a table",
        ]

    def test_where_all_of_them_are_is_told(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = STANDINGS
        assert status("verify", "in", "--job", "j", "--missing", "out") == 1
        assert spark.called is not None
        assert (spark.called[0], spark.called[2][0]) == ("find", Output("out"))
        assert "later: all of them: out" in capsys.readouterr().err

    @pytest.mark.parametrize(("most", "ends"), [("3", 0), ("2", 1)])
    def test_so_many_may_be_missing_as_it_is_told(self, most: str, ends: int, spark: Spark) -> None:
        spark.answer = THERE._replace(missing=2, unfit=1)
        assert status("verify", "in", "--job", "j", "--max-missing", most) == ends

    def test_where_no_row_has_a_task_a_hint_is_given(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = THERE._replace(pending=0, dead=0, ended=0, missing=3)
        for words, known, ends in (
            (["verify"], True, 1), (["cancel", "--yes"], False, 1), (["cancel", "--yes"], True, 0),
        ):  # fmt: skip
            spark.answer = spark.answer._replace(known=known)
            assert status(words[0], "in", "--job", "j", *words[1:]) == ends
            assert "later: none of the rows has a task: --job and the column" in capsys.readouterr().err

    @pytest.mark.parametrize(("missing", "unfit", "ends"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
    def test_a_row_that_has_no_task_is_a_failure(self, missing: int, unfit: int, ends: int, spark: Spark) -> None:
        spark.answer = THERE._replace(missing=missing, unfit=unfit)
        assert status("verify", "in", "--job", "j") == ends

    def test_a_machine_gets_one_object(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = STANDINGS
        assert status("verify", "in", "--job", "j", "--json") == 1
        out, err = capsys.readouterr()
        assert json.loads(out) == {
            "rows": 10, "pending": 4, "dead": 1, "ended": 2, "missing": 2, "unfit": 1, "seconds": 1.26,
        }  # fmt: skip
        assert err == ""


class TestCancelling:
    def test_the_sums_are_told(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = STANDINGS
        assert status("cancel", "in", "--job", "j", "--yes") == 0
        assert capsys.readouterr().out == (
            "10 rows: 4 cancelled, 2 ended, 1 dead, 2 missing, 1 without a key or corrupt; 1.3 s\n"
        )

    def test_a_machine_gets_one_object(self, spark: Spark, capsys: Capture) -> None:
        spark.answer = THERE
        assert status("cancel", "in", "--job", "j", "--yes", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["cancelled"], "pending" in told) == (1, False)

    @pytest.mark.parametrize(("answer", "ends", "called"), [(True, 0, True), (False, 1, False)])
    def test_it_asks_first(
        self, answer: bool, ends: int, called: bool, spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        asked: list[str] = []

        def confirm(text: str, *, err: bool) -> bool:
            asked.append(text)
            return answer

        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.confirm", confirm)
        spark.answer = THERE
        assert status("cancel", "in", "--job", "j") == ends
        assert asked == ["delete the pending tasks of the job j, of all rows of in?"]
        assert (spark.session is not None) is called
        assert ("nothing was cancelled" in capsys.readouterr().err) is not called

    def test_where_there_is_nobody_to_ask_it_wants_to_be_told(self, spark: Spark, capsys: Capture) -> None:
        assert status("cancel", "in", "--job", "j") == 2
        assert "--yes to cancel unasked" in capsys.readouterr().err
        assert spark.session is None

    @pytest.mark.parametrize("option", ["--spread", "--allow-duplicates", "--dry-run", "--rejects"])
    @pytest.mark.parametrize("name", ["verify", "cancel"])
    def test_what_only_creating_has_is_not_taken(self, name: str, option: str, spark: Spark) -> None:
        assert status(name, "in", "--job", "j", option) == 2


@pytest.mark.parametrize("name", ["create", "verify", "cancel"])
def test_help_says_what_a_command_does(name: str, capsys: Capture) -> None:
    assert status(name, "--help") == 0
    assert f"Usage: later bulk {name} [OPTIONS] INPUT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"columns": {"hook": "x"}}, "hook: unknown field; expected topic, callback, "),
        ({"constants": {"id": "x"}}, "id: unknown field; expected topic, callback, "),
        ({"constants": {"key": "x"}}, "key: expected a column, because rows with the same key are one task"),
        ({"path": "/dev/null"}, "/dev/null: expected a file or a directory"),
        ({"path": "file:///dev/null"}, "file:///dev/null: expected a file or a directory"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(said: dict[str, Any], why: str) -> None:
    nobody: Any = None
    given = JobInput(**({"path": "in", "format": "csv", "options": {}, "columns": {}, "constants": {}} | said))
    with pytest.raises(Refused, match=f"^{why}"):
        reader.read_input(nobody, given, "j")
