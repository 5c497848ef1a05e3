"""`bulk report` without Spark: its tables, its JSON, its options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from later.bulk.report import build as report_build
from later.bulk.report.build import ReportCounts, ReportRequest
from later.bulk.report.counts import DeadCounts, DeadGroup, RejectCounts, RejectGroup, Report
from later.bulk.report.forecast import DueCounts, TopicLimit, forecast_topics
from later.cli.bulk.report_view import print_text, report_json
from later.cli.program import run
from tests.bulk.report.builders import (
    EIGHT,
    HOUR,
    NO_DEAD,
    build_due_forecast,
    build_load,
    build_report,
    build_window,
    export_counts,
)
from tests.cases import each_case

Capture = pytest.CaptureFixture[str]
PrintOnTerminal = Callable[[Report, int], list[str]]


def print_lines(report: Report, capsys: Capture, *, wide: bool = False) -> list[str]:
    """Print to a file; return the lines, their words separated by one space."""
    print_text(report, wide=wide)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


# The table of hours


def test_each_hour_has_its_due_tasks_and_the_backlog_at_its_end(capsys: Capture) -> None:
    order, mail = build_load(3700, 0, 0, overdue=40, later=7), build_load(5, 0, 1200, topic="mail")

    lines = print_lines(build_report(build_due_forecast(order, mail, limits={"order": TopicLimit(1)})), capsys)

    assert "due all topics order mail backlog" in lines
    assert "overdue 40 40 - -" in lines
    assert "Sat 21 08:00 3,705 >3,700 5 140" in lines
    assert "Sat 21 10:00 1,200 - 1,200 -" in lines
    assert "later 7 7 - -" in lines
    assert not [line for line in lines if "09:00" in line]
    assert "Hours in which nothing is due are left out." in lines


@each_case(
    ("wide", "header", "first"),
    [
        (False, "due all topics t0 t1 others", "Sat 21 08:00 48 10 9 29"),
        (True, "due all topics t0 t1 t2 t3 others", "Sat 21 08:00 48 10 9 8 7 14"),
    ],
)
def test_topics_without_a_column_are_summed(wide: bool, header: str, first: str, capsys: Capture) -> None:
    topics = tuple(build_load(10 - number, 0, topic=f"t{number}") for number in range(6))
    due = DueCounts(build_window(2), topics, build_load(3, 4, topic="others", overdue=1), 1234)

    lines = print_lines(build_report(forecast_topics(due, {})), capsys, wide=wide)

    assert header in lines
    assert first in lines
    assert "1,234 others 1 7 Sat 21 09:00 4" in lines


def test_a_topic_with_nothing_due_has_a_row_and_no_column(capsys: Capture) -> None:
    topics = (build_load(7200, 0), build_load(0, 0, topic="nosuch"))

    lines = print_lines(build_report(build_due_forecast(*topics, limits={"nosuch": TopicLimit(5)})), capsys)

    assert "due order backlog" in lines
    assert "nosuch - - 5/s - - -" in lines


# The table of topics


@pytest.fixture
def four_topics() -> Report:
    topics = (
        build_load(7200, 0, 0),
        build_load(9, 9, 9, topic="mail"),
        build_load(9, 9, 8, topic="sms"),
        build_load(1, 0, 0, topic="x"),
    )
    limits = {"order": TopicLimit(1), "mail": TopicLimit(50, paused=True), "sms": TopicLimit(0)}
    return build_report(build_due_forecast(*topics, limits=limits))


def test_each_topic_has_its_rate_and_its_backlog(four_topics: Report, capsys: Capture) -> None:
    lines = print_lines(four_topics, capsys)

    assert "topic overdue in hours rate over backlog worked off" in lines
    assert "order - 7,200 1/s 1 h 3,600 Sat 21 10:00" in lines
    assert "mail - 27 paused 3 h 27 not by then" in lines
    assert "sms - 26 no limit - - -" in lines
    assert "x - 1 - - - -" in lines
    assert "all topics - 7,254 - - - -" in lines


def test_a_wide_report_has_also_the_busiest_hour_of_each_topic(four_topics: Report, capsys: Capture) -> None:
    lines = print_lines(four_topics, capsys, wide=True)

    assert "topic overdue in hours busiest hour due in it rate over backlog worked off" in lines
    assert "order - 7,200 Sat 21 08:00 7,200 1/s 1 h 3,600 Sat 21 10:00" in lines
    assert "all topics - 7,254 Sat 21 08:00 7,219 - - - -" in lines


def test_without_any_rate_there_are_no_columns_of_rates(capsys: Capture) -> None:
    lines = print_lines(build_report(build_due_forecast(build_load(5, 6), limits={})), capsys)

    assert "due order" in lines
    assert "topic overdue in hours busiest hour due in it" in lines


def test_a_long_topic_keeps_both_its_ends_and_moves_no_cursor(capsys: Capture) -> None:
    topic = "shop/\x1b[2J" + "x" * 200 + "-reminders"

    print_text(build_report(build_due_forecast(build_load(5, topic=topic), limits={})), wide=False)

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 120
    assert "reminders " in out


# Dead tasks and rejects


def test_dead_tasks_are_listed_by_reason_and_host(capsys: Capture) -> None:
    groups = (DeadGroup("exhausted", "a.example", 1200, EIGHT, 503), DeadGroup("expired", "", 30, None, None))
    report = build_report(dead=DeadCounts({"exhausted": 1205, "expired": 30}, groups, 2, 5))

    lines = print_lines(report, capsys)

    assert "dead 1,235: 1,205 exhausted, 30 expired" in lines
    assert "dead reason host of the callback last answer" in lines
    assert "1,200 exhausted a.example mostly 503" in lines
    assert "30 expired - mostly none" in lines
    assert "5 2 others - -" in lines
    wide = print_lines(report, capsys, wide=True)
    assert "dead reason host of the callback last answer latest death" in wide
    assert "1,200 exhausted a.example mostly 503 2026-11-21T08:00:00Z" in wide
    assert "30 expired - mostly none -" in wide


def test_rejects_are_listed_by_field_and_reason(capsys: Capture) -> None:
    groups = (RejectGroup("delay", "expected a number", 1200, "row-7"), RejectGroup("", "expected JSON", 30, None))

    lines = print_lines(build_report(rejected=RejectCounts(groups, 2, 5)), capsys)

    assert "rejects 1,235" in lines
    assert "1,200 delay expected a number row-7" in lines
    assert "30 - expected JSON -" in lines
    assert "5 2 others - -" in lines


def test_an_empty_export_is_reported_as_such(capsys: Capture) -> None:
    due = DueCounts(build_window(2), (), build_load(0, 0, topic="others"), 0)
    report = build_report(forecast_topics(due, {}), NO_DEAD)._replace(states={})

    lines = print_lines(report, capsys)

    assert "tasks 0" in lines
    assert "due 0 overdue, 0 in the hours shown, 0 later" in lines
    assert "dead 0" in lines


# On a terminal


@pytest.fixture
def print_on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> PrintOnTerminal:
    """Print on a terminal of a width in characters; return the lines as they are."""

    def lines(report: Report, width: int) -> list[str]:
        for name, value in {"COLUMNS": str(width), "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"}.items():
            monkeypatch.setenv(name, value)
        with monkeypatch.context() as patched:
            patched.setattr(sys.stdout, "isatty", lambda: True)
            print_text(report, wide=width > 80)
        return capsys.readouterr().out.splitlines()

    return lines


def a_large_report(factor: int = 1) -> Report:
    names = ("order", "mail/reminders", "[red]voices", "tenant-27/jobs")
    topics = [
        build_load((15_068 - 5000 * n) * factor, 100_000 * factor, topic=topic, overdue=factor, later=29_920 * factor)
        for n, topic in enumerate(names)
    ]
    due = DueCounts(build_window(2), tuple(topics), build_load(1, 1, topic="others"), 1234)
    hosts = ("127.0.0.1", "ip-10-0-0-1.eu-west-1.compute.internal", "[/x]." + "y" * 80)
    groups = tuple(DeadGroup("exhausted", host, 1_234_567, EIGHT, None) for host in hosts)
    dead = DeadCounts({"exhausted": 3_703_701}, groups, 0, 0)
    rejects = (RejectGroup("delay", "expected a number " * 9, 1200, "row-7"),)
    return build_report(forecast_topics(due, {"order": TopicLimit(3)}), dead, RejectCounts(rejects, 0, 0))


@pytest.mark.parametrize("factor", [1, 1000])
def test_the_report_fits_into_80_columns_with_its_numbers_whole(
    factor: int, print_on_terminal: PrintOnTerminal
) -> None:
    lines = print_on_terminal(a_large_report(factor), 80)

    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if line.startswith("Sat 21 09:00")]
    numbers = (400_000 * factor + 1, 100_000 * factor, 100_000 * factor, 200_000 * factor + 1)
    assert [cell.lstrip(">") for cell in row[3:7]] == [f"{number:,}" for number in numbers]


def test_a_wide_report_fits_into_120_columns(print_on_terminal: PrintOnTerminal) -> None:
    lines = print_on_terminal(a_large_report(), 120)

    assert max(map(len, lines)) <= 120
    words = [" ".join(line.split()) for line in lines]
    assert "due all topics order mail/r…nders [red]voices tenant…/jobs others backlog" in words
    assert "Sat 21 08:00 30,273 >15,068 10,068 5,068 68 1 4,269" in words


def test_a_narrow_terminal_cuts_no_number(print_on_terminal: PrintOnTerminal) -> None:
    report = a_large_report()

    assert print_on_terminal(report, 40)[3:] == print_on_terminal(report, 80)[3:]


def test_numbers_are_right_aligned(print_on_terminal: PrintOnTerminal) -> None:
    lines = print_on_terminal(a_large_report(), 80)

    header = next(line for line in lines if line.startswith("due ") and "all topics" in line)
    end = header.index("all topics") + len("all topics")
    rows = [line for line in lines if line.startswith(("overdue", "Sat 21", "later"))]
    assert len(rows) == 4
    assert all(row[end - 1] != " " and row[end : end + 2] == "  " for row in rows)


def test_names_are_no_markup_and_a_long_host_continues_on_further_lines(print_on_terminal: PrintOnTerminal) -> None:
    lines = print_on_terminal(a_large_report(), 80)

    assert [line for line in lines if line.startswith("[red]voices ")]
    assert [line for line in lines if "[/x].yyy" in line]
    assert sum(line.count("y" * 5) * 5 for line in lines) >= 75


# For programs


def test_json_has_the_whole_report() -> None:
    due = build_due_forecast(
        build_load(7200, 0, overdue=1, later=2), build_load(1, 0, topic="mail"), limits={"order": TopicLimit(1)}
    )
    dead = DeadCounts({"gone": 2}, (DeadGroup("gone", "h", 2, EIGHT, 410),), 0, 0)
    rejected = RejectCounts((RejectGroup("f", "r", 1, "k"),), 0, 0)

    result = report_json(build_report(due, dead, rejected))

    assert json.loads(json.dumps(result)) == result
    assert result["now"] == "2026-11-21T08:00:00Z"
    assert result["tasks"] == {"delay": 90, "dead": 10}
    order, mail = result["due"]["topics"]
    assert order == {
        "topic": "order", "rate": 1, "paused": False, "left": 1, "worked_off_at": None, "overdue": 1,
        "in_hours": 7200, "later": 2, "hours": [
            {"hour": "2026-11-21T08:00:00Z", "due": 7200, "over": True, "backlog": 3601},
            {"hour": "2026-11-21T09:00:00Z", "due": 0, "over": False, "backlog": 1},
        ],
    }  # fmt: skip
    assert mail["rate"] is None
    assert result["due"]["all"]["hours"][0] == {"hour": "2026-11-21T08:00:00Z", "due": 7201}
    assert result["dead"] == {
        "tasks": 2, "reasons": {"gone": 2}, "others": {"groups": 0, "tasks": 0},
        "groups": [{"reason": "gone", "host": "h", "tasks": 2, "latest": "2026-11-21T08:00:00Z", "status": 410}],
    }  # fmt: skip
    assert result["rejects"]["groups"] == [{"field": "f", "reason": "r", "rows": 1, "key": "k"}]


# The command


def report_exit_code(*arguments: str) -> int:
    return run(["bulk", "report", *arguments]).code


StubCount = Callable[[ReportCounts], list[tuple[ReportRequest, dict[str, float]]]]


@pytest.fixture
def stub_count(monkeypatch: pytest.MonkeyPatch) -> StubCount:
    """Make the command count these tables without Spark; return the list of its calls."""

    def stub(counts: ReportCounts) -> list[tuple[ReportRequest, dict[str, float]]]:
        calls: list[tuple[ReportRequest, dict[str, float]]] = []

        def count(request: ReportRequest, rates: dict[str, float], master: str, conf: dict[str, str]) -> ReportCounts:
            calls.append((request, rates))
            return counts

        monkeypatch.setattr(report_build, "count_tables", count)
        return calls

    return stub


@pytest.mark.parametrize(("written_at", "is_old"), [(EIGHT - 3 * HOUR, True), (EIGHT - 60_000, False), (None, False)])
def test_an_old_export_is_reported_as_old(
    written_at: int | None, is_old: bool, stub_count: StubCount, capsys: Capture
) -> None:
    stub_count(export_counts(written_at))

    assert report_exit_code("--export", "x", "--json") == 0

    assert capsys.readouterr().err.startswith("later: the export is 3 h old: ") is is_old


def test_named_topics_without_tasks_are_reported(stub_count: StubCount, capsys: Capture) -> None:
    counts = export_counts()
    assert counts.exported is not None
    stub_count(counts._replace(exported=counts.exported._replace(missing_topics=("nosuch", "ordr"))))

    assert report_exit_code("--export", "x", "--json") == 0

    assert capsys.readouterr().err == (
        "later: the export has no task of these topics, named by --topic or --rate: nosuch, ordr\n"
    )


def test_a_picture_is_drawn_beside_the_text(stub_count: StubCount, tmp_path: Path, capsys: Capture) -> None:
    stub_count(export_counts())

    assert report_exit_code("--export", "x", "--rate", "order=0.001", "--plot", str(tmp_path / "a.png")) == 0

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "order" in capsys.readouterr().out


@each_case(
    ("arguments", "error"),
    [
        ((), "Nothing to report on: expected --export, --rejects, or both."),
        (("--export", "x", "--days", "0"), "0 is not in the range"),
        (("--export", "x", "--topic", "/"), "expected a string of 1 to 255 bytes"),
        (("--export", "x", "--rate", "order"), "order: expected TOPIC=PER_SECOND"),
        (("--export", "x", "--rate", "order=fast"), "order=fast: expected a number"),
        (("--export", "x", "--rate", "order=-1"), "order=-1: expected a rate of 0, or from 0.0001 to 1000000"),
        (("--export", "x", "--plot", "x.svg"), "x.svg: expected the name of a file that ends in .png"),
        (("--export", "x", "--plot", "/nope/x.png"), "/nope/x.png: no such directory: /nope"),
        (("--export", "x", "--url", "redis://h"), "later: --url redis://h: expected an http or https URL"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    arguments: tuple[str, ...], error: str, capsys: Capture
) -> None:
    assert report_exit_code(*arguments) == 2

    assert error in capsys.readouterr().err


def test_a_rate_is_read_after_the_last_equals_sign(stub_count: StubCount) -> None:
    calls = stub_count(export_counts())
    arguments = ["--export", "x", "--rate", "a=b=50/s", "--rate", "default/mail=0", "--topic", "default/mail"]

    assert report_exit_code(*arguments) == 0

    ((request, rates),) = calls
    assert (request.topics, rates) == (("mail",), {"a=b": 50, "mail": 0})


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def find_all_but_matplotlib(name: str, *package: Any) -> ModuleSpec | None:
        return None if name == "matplotlib" else find_spec(name, *package)

    monkeypatch.setattr("importlib.util.find_spec", find_all_but_matplotlib)

    assert report_exit_code("--export", "x", "--plot", "x.png") == 1
    assert capsys.readouterr().err == "later: --plot needs matplotlib: pip install 'later[spark]'\n"
