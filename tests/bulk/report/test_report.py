"""`bulk report` without Spark: the forecast, what topics are allowed, and how it is told."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from later.bulk.report.counts import (
    DeadCounts,
    DeadGroup,
    ExportCounts,
    RejectCounts,
    RejectGroup,
    Report,
    describe_missing_columns,
    reject_group,
)
from later.bulk.report.forecast import (
    OVERDUE,
    DueCounts,
    DueForecast,
    Load,
    ReportWindow,
    TopicForecast,
    TopicLimit,
    forecast_topic,
    loads_from_counts,
    next_days,
)
from later.bulk.report.forecast import forecast_topics as outlook_of
from later.bulk.report.plot import draw
from later.cli import loads, run
from later.cli.bulk.report_view import as_json, print_text
from later.cli.loads import Found, allowed_of, tell
from later.client.http import Client
from tests.api.front import Front, a_front

Capture = pytest.CaptureFixture[str]
Drawn = Callable[[Report, int], list[str]]

HOUR = 3_600_000
EIGHT = 1_795_248_000_000
"""Sat 21 Nov 2026 08:00 UTC."""
NOTHING_DIED = DeadCounts({}, (), 0, 0)


def a_window(hours: int = 4, past_ms: int = 0) -> ReportWindow:
    """From 08:00 on, so much of the hour being over."""
    return ReportWindow(EIGHT + past_ms, hours)


def a_load(*hours: int, topic: str = "order", overdue: int = 0, later: int = 0) -> Load:
    return Load(topic, overdue, hours, later)


def a_forecast(
    *hours: int, rate: float | None, overdue: int = 0, past_ms: int = 0, paused: bool = False
) -> TopicForecast:
    allowed = None if rate is None else TopicLimit(rate, paused)
    return forecast_topic(a_window(len(hours), past_ms), a_load(*hours, overdue=overdue), allowed)


def an_outlook(*topics: Load, limits: Mapping[str, TopicLimit], window: ReportWindow | None = None) -> DueForecast:
    window = window or a_window(len(topics[0].hours))
    return outlook_of(DueCounts(window, topics, a_load(*([0] * window.hours), topic="others"), 0), limits)


def a_report(
    outlook: DueForecast | None = None, dead: DeadCounts | None = None, rejected: RejectCounts | None = None
) -> Report:
    states = None if outlook is None else {"delay": 90, "dead": 10}
    return Report(a_window(), states, outlook, dead, rejected)


def printed(told: Report, capsys: Capture) -> list[str]:
    """Each line, whatever stands between its words."""
    print_text(told)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


# Hours


def test_the_first_hour_is_what_is_left_of_this_one() -> None:
    window = next_days(EIGHT + 45 * 60_000, days=3)

    assert (window.hours, window.begins(0), window.starts(0), window.seconds(0)) == (
        *(72, EIGHT),
        *(EIGHT + 45 * 60_000, 900),
    )
    assert (window.starts(1), window.seconds(1), window.end) == (EIGHT + HOUR, 3600, EIGHT + 72 * HOUR)


def test_counts_become_loads_with_most_to_do_first() -> None:
    counts = [("a", 0, 1), ("b", OVERDUE, 5), ("b", 2, 7), ("c", 3, 90), ("a", 1, 2), ("b", 3, 4)]

    assert loads_from_counts(counts, a_window(3)) == [
        Load("b", 5, (0, 0, 7), 4),
        Load("a", 0, (1, 2, 0), 0),
        Load("c", 0, (0, 0, 0), 90),
    ]


# The forecast


def test_what_an_hour_cannot_deliver_is_carried_over() -> None:
    assert a_forecast(3600, 7200, 0, 100, rate=1).backlog == (0, 3600, 0, 0)


def test_what_is_overdue_is_carried_into_the_first_hour() -> None:
    assert a_forecast(3600, 0, 0, overdue=5000, rate=1).backlog == (5000, 1400, 0)


def test_of_an_hour_that_has_begun_its_rest_counts() -> None:
    assert a_forecast(1000, 0, past_ms=HOUR * 3 // 4, rate=1).backlog == (100, 0)


def test_the_hours_with_more_than_the_rate_delivers_are_told() -> None:
    assert a_forecast(3600, 3601, 0, 7200, rate=1).hours_over_rate == [1, 3]


@pytest.mark.parametrize(
    ("hours", "overdue", "expected_s"),
    [
        ((0, 0), 1800, 1800),  # half an hour of work
        ((1800, 0), 900, 1800),  # half of the rate goes into what falls due meanwhile
        ((7200, 0, 0), 0, 7200),  # what is left of an hour takes the whole of the next
        ((7200, 1800, 0), 0, 2 * 3600 + 1800),
        ((7200, 0, 5400, 0), 0, 3 * 3600 + 1800),  # of two backlogs the last counts
    ],
)
def test_a_backlog_is_worked_off_by_what_the_rate_leaves(hours: tuple[int, ...], overdue: int, expected_s: int) -> None:
    assert a_forecast(*hours, rate=1, overdue=overdue).worked_off_at == EIGHT + expected_s * 1000


def test_where_nothing_is_left_over_nothing_is_worked_off() -> None:
    assert a_forecast(3600, 10, rate=1).worked_off_at is None


def test_a_backlog_may_outlast_the_hours() -> None:
    told = a_forecast(3600, 9000, rate=1)

    assert (told.final_backlog, told.worked_off_at) == (5400, None)


def test_a_topic_without_a_limit_has_no_backlog() -> None:
    told = a_forecast(10**9, 0, rate=0, overdue=10**9)

    assert (told.backlog, told.hours_over_rate, told.is_limited, told.worked_off_at) == ((0, 0), [], False, EIGHT)


def test_a_paused_topic_delivers_nothing() -> None:
    assert a_forecast(5, 0, 7, rate=50, overdue=1, paused=True).backlog == (6, 6, 13)


def test_nothing_is_foreseen_of_a_topic_whose_rate_nobody_knows() -> None:
    told = a_forecast(10**9, 0, rate=None)

    assert (told.backlog, told.hours_over_rate, told.final_backlog, told.worked_off_at) == ((), [], 0, None)


def test_the_backlogs_of_topics_add_up() -> None:
    topics = (a_load(7200, 0), a_load(3700, 0, topic="mail"), a_load(50, 0, topic="sms"))

    told = an_outlook(*topics, limits={"order": TopicLimit(1), "mail": TopicLimit(1)})

    assert [told.backlog(slot) for slot in range(2)] == [3700, 0]
    assert told.total == Load("all topics", 0, (10_950, 0), 0)


# What a topic is allowed


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with a_front() as built:
        yield built


def a_client(front: Front) -> Client:
    return Client(str(front.http.make_url("/")).rstrip("/"), 10, time.time)


async def test_rates_are_those_of_the_policies_as_applied(front: Front) -> None:
    await front.ask("PATCH", "/namespaces/shop/policy", {"rate": 12.5})
    await front.ask("PATCH", "/topics/mail/policy", {"rate": 3, "paused": True})

    allowed = await asyncio.to_thread(allowed_of, ["shop/order", "mail", "other"], {}, a_client(front))

    assert allowed == {"shop/order": TopicLimit(12.5), "mail": TopicLimit(3, True), "other": TopicLimit(0)}


async def test_a_rate_that_is_given_counts_before_the_policy(front: Front) -> None:
    await front.ask("PATCH", "/topics/mail/policy", {"rate": 3})

    assert await asyncio.to_thread(allowed_of, ["mail"], {"mail": 50.0}, a_client(front)) == {"mail": TopicLimit(50)}


def test_a_daemon_that_cannot_be_reached_is_one_line_and_no_error(capsys: Capture) -> None:
    client = Client("http://127.0.0.1:1", 1, time.time)

    assert allowed_of(["order", "mail"], {"mail": 5.0}, client) == {"mail": TopicLimit(5)}
    said = capsys.readouterr().err
    assert said.startswith("later: not every topic's rate is known: http://127.0.0.1:1 did not answer")
    assert said.count("\n") == 1


# What a table lacks


def test_what_a_table_lacks_is_told_by_name() -> None:
    expected = {"topic": "string", "due_at": "timestamp", "state": "string"}

    assert describe_missing_columns(expected, expected | {"id": "string"}) == ""
    assert describe_missing_columns(expected, {"topic": "string"}) == "no column due_at, state"
    assert (
        describe_missing_columns(expected, expected | {"due_at": "timestamp_ntz"})
        == "due_at is a timestamp_ntz, not a timestamp"
    )


def test_a_refusal_is_told_without_its_field() -> None:
    assert reject_group("delay", "delay: expected a number", 3, "k") == RejectGroup(
        "delay", "expected a number", 3, "k"
    )
    assert reject_group("", "expected JSON", 3, None) == RejectGroup("", "expected JSON", 3, None)


# For a person


def test_each_hour_tells_what_is_due_and_what_is_left(capsys: Capture) -> None:
    order, mail = a_load(3700, 0, 0, overdue=40, later=7), a_load(5, 0, 1200, topic="mail")

    lines = printed(a_report(an_outlook(order, mail, limits={"order": TopicLimit(1)})), capsys)

    assert "due all topics order mail backlog" in lines
    assert "overdue 40 40 - -" in lines
    assert "Sat 21 08:00 3,705 >3,700 5 140" in lines
    assert "Sat 21 10:00 1,200 - 1,200 -" in lines
    assert "later 7 7 - -" in lines
    assert not [line for line in lines if "09:00" in line]
    assert "Hours in which nothing is due are left out." in lines


def test_each_topic_tells_its_rate_and_what_becomes_of_it(capsys: Capture) -> None:
    topics = (
        a_load(7200, 0, 0),
        a_load(9, 9, 9, topic="mail"),
        a_load(9, 9, 8, topic="sms"),
        a_load(1, 0, 0, topic="x"),
    )
    limits = {"order": TopicLimit(1), "mail": TopicLimit(50, paused=True), "sms": TopicLimit(0)}

    lines = printed(a_report(an_outlook(*topics, limits=limits)), capsys)

    assert "order - 7,200 Sat 21 08:00 7,200 1/s 1 h 3,600 Sat 21 10:00" in lines
    assert "mail - 27 Sat 21 08:00 9 paused 3 h 27 not by then" in lines
    assert "sms - 26 Sat 21 08:00 9 no limit - - -" in lines
    assert "x - 1 Sat 21 08:00 1 - - - -" in lines
    assert "all topics - 7,254 Sat 21 08:00 7,219 - - - -" in lines


def test_a_topic_with_nothing_due_has_a_row_and_no_column(capsys: Capture) -> None:
    topics = (a_load(7200, 0), a_load(0, 0, topic="nosuch"))

    lines = printed(a_report(an_outlook(*topics, limits={"nosuch": TopicLimit(5)})), capsys)

    assert "due order backlog" in lines
    assert "nosuch - - - - 5/s - - -" in lines


def test_without_any_rate_no_column_tells_of_one(capsys: Capture) -> None:
    lines = printed(a_report(an_outlook(a_load(5, 6), limits={})), capsys)

    assert "due order" in lines
    assert "topic overdue in hours busiest hour due in it" in lines


def test_topics_that_are_not_told_apart_are_summed(capsys: Capture) -> None:
    topics = tuple(a_load(10 - number, 0, topic=f"t{number}") for number in range(6))
    due = DueCounts(a_window(2), topics, a_load(3, 4, topic="others", overdue=1), 1234)

    lines = printed(a_report(outlook_of(due, {})), capsys)

    assert "due all topics t0 t1 t2 t3 others" in lines
    assert "Sat 21 08:00 48 10 9 8 7 14" in lines
    assert "1,234 others 1 7 Sat 21 09:00 4" in lines


def test_a_long_topic_keeps_both_its_ends_and_moves_no_cursor(capsys: Capture) -> None:
    print_text(a_report(an_outlook(a_load(5, topic="shop/\x1b[2J" + "x" * 200 + "-reminders"), limits={})))

    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) < 120
    assert "reminders " in said


def test_the_dead_are_told_by_reason_and_host(capsys: Capture) -> None:
    groups = (DeadGroup("exhausted", "a.example", 1200, EIGHT, 503), DeadGroup("expired", "", 30, None, None))

    lines = printed(a_report(dead=DeadCounts({"exhausted": 1205, "expired": 30}, groups, 2, 5)), capsys)

    assert "dead 1,235: 1,205 exhausted, 30 expired" in lines
    assert "dead reason host of the callback last answer latest death" in lines
    assert "1,200 exhausted a.example mostly 503 2026-11-21T08:00:00Z" in lines
    assert "30 expired - mostly none -" in lines
    assert "5 2 others - - -" in lines


def test_rejects_are_told_by_field_and_reason(capsys: Capture) -> None:
    groups = (RejectGroup("delay", "expected a number", 1200, "row-7"), RejectGroup("", "expected JSON", 30, None))

    lines = printed(a_report(rejected=RejectCounts(groups, 2, 5)), capsys)

    assert "rejects 1,235" in lines
    assert "1,200 delay expected a number row-7" in lines
    assert "30 - expected JSON -" in lines
    assert "5 2 others - -" in lines


def test_an_export_of_nothing_is_told_as_such(capsys: Capture) -> None:
    told = a_report(outlook_of(DueCounts(a_window(2), (), a_load(0, 0, topic="others"), 0), {}), NOTHING_DIED)

    lines = printed(told._replace(states={}), capsys)

    assert "tasks 0" in lines
    assert "due 0 overdue, 0 in the hours shown, 0 later" in lines
    assert "dead 0" in lines


# On a terminal


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Drawn:
    """Prints on a terminal so many columns wide; each line, whatever stands between its words."""

    def lines(told: Report, width: int) -> list[str]:
        for name, value in {"COLUMNS": str(width), "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"}.items():
            monkeypatch.setenv(name, value)
        with monkeypatch.context() as patched:
            patched.setattr(sys.stdout, "isatty", lambda: True)
            print_text(told)
        printed = capsys.readouterr().out.splitlines()
        assert max(map(len, printed)) <= width
        return [" ".join(line.split()) for line in printed]

    return lines


def a_wide_report() -> Report:
    topics = [
        a_load(15_068 - 5000 * n, 100_000, topic=topic, later=29_920)
        for n, topic in enumerate(("order", "mail/reminders", "invoices", "tenant-27/jobs"))
    ]
    due = DueCounts(a_window(2), tuple(topics), a_load(1, 1, topic="others"), 1234)
    hosts = ("127.0.0.1", "ip-10-0-0-1.eu-west-1.compute.internal")
    groups = tuple(DeadGroup("exhausted", host, 1_234_567, EIGHT, None) for host in hosts)
    return a_report(outlook_of(due, {"order": TopicLimit(3)}), DeadCounts({"exhausted": 2_469_134}, groups, 0, 0))


@pytest.mark.parametrize(
    ("width", "heads", "first"),
    [
        (
            120,
            "due all topics order mail/r…inders invoices tenant…7/jobs others backlog",
            "Sat 21 08:00 30,273 >15,068 10,068 5,068 68 1 4,268",
        ),
        (80, "due all topics order mail/r…inders others backlog", "Sat 21 08:00 30,273 >15,068 10,068 5,137 4,268"),
        (60, "due all topics order others backlog", "Sat 21 08:00 30,273 >15,068 15,205 4,268"),
        (40, "due all topics backlog", "Sat 21 08:00 30,273 4,268"),
    ],
)
def test_a_narrow_terminal_has_fewer_topics_side_by_side_and_whole_figures(
    width: int, heads: str, first: str, drawn: Drawn
) -> None:
    lines = drawn(a_wide_report(), width)

    assert heads in lines
    assert first in lines


def test_limits_stand_below_the_loads_where_there_is_no_room_beside_them(
    drawn: Drawn,
) -> None:
    lines = drawn(a_wide_report(), 80)

    assert "topic overdue in hours busiest hour due in it" in lines
    assert "mail/reminders - 110,068 Sat 21 09:00 100,000" in lines
    below = lines[lines.index("topic rate over backlog worked off") :]
    assert "order 3/s 2 h 93,468 not by then" in below
    assert not [line for line in below if line.startswith("invoices")]


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (120, "1,234,567 exhausted ip-10-0-0-1.eu-west-1.compute.internal mostly none 2026-11-21T08:00:00Z"),
        (80, "1,234,567 exhausted ip-10-0-…internal mostly none 2026-11-21T08:00:00Z"),
        (60, "1,234,567 exhausted ip-10…ernal 2026-11-21T08:00:00Z"),
        (40, "1,234,567 exhausted ip-10-0…ternal"),
    ],
)
def test_hosts_of_the_dead_give_way_and_then_whole_columns(width: int, row: str, drawn: Drawn) -> None:
    assert row in drawn(a_wide_report(), width)


# For a machine


def test_a_machine_is_told_all_of_it() -> None:
    groups = (DeadGroup("gone", "h", 2, EIGHT, 410),)
    outlook = an_outlook(
        a_load(7200, 0, overdue=1, later=2), a_load(1, 0, topic="mail"), limits={"order": TopicLimit(1)}
    )

    told = as_json(
        a_report(outlook, DeadCounts({"gone": 2}, groups, 0, 0), RejectCounts((RejectGroup("f", "r", 1, "k"),), 0, 0))
    )

    assert json.loads(json.dumps(told)) == told
    assert told["now"] == "2026-11-21T08:00:00Z"
    assert told["tasks"] == {"delay": 90, "dead": 10}
    order, mail = told["due"]["topics"]
    assert order == {
        "topic": "order", "rate": 1, "paused": False, "left": 1, "worked_off_at": None, "overdue": 1,
        "in_hours": 7200, "later": 2, "hours": [
            {"hour": "2026-11-21T08:00:00Z", "due": 7200, "over": True, "backlog": 3601},
            {"hour": "2026-11-21T09:00:00Z", "due": 0, "over": False, "backlog": 1},
        ],
    }  # fmt: skip
    assert mail["rate"] is None
    assert told["due"]["all"]["hours"][0] == {"hour": "2026-11-21T08:00:00Z", "due": 7201}
    assert told["dead"] == {
        "tasks": 2, "reasons": {"gone": 2}, "others": {"groups": 0, "tasks": 0},
        "groups": [{"reason": "gone", "host": "h", "tasks": 2, "latest": "2026-11-21T08:00:00Z", "status": 410}],
    }  # fmt: skip
    assert told["rejects"]["groups"] == [{"field": "f", "reason": "r", "rows": 1, "key": "k"}]


# All of it


def found(written_at: int | None) -> Found:
    due = DueCounts(a_window(2), (a_load(5, 6),), a_load(0, 0, topic="others"), 0)
    return Found(a_window(2), ExportCounts({"delay": 11}, due, NOTHING_DIED, written_at), None)


@pytest.mark.parametrize(("written_at", "told"), [(EIGHT - 3 * HOUR, True), (EIGHT - 60_000, False), (None, False)])
def test_an_export_that_is_old_is_said_to_be(written_at: int | None, told: bool, capsys: Capture) -> None:
    assert tell(found(written_at), {}, None, None, as_json=True) == 0

    assert capsys.readouterr().err.startswith("later: the export is 3 h old: ") is told


def test_topics_that_are_named_in_vain_are_said_to_be(capsys: Capture) -> None:
    told = found(None)
    assert told.exported is not None

    tell(told._replace(exported=told.exported._replace(absent=("nosuch", "ordr"))), {}, None, None, as_json=True)

    assert capsys.readouterr().err == (
        "later: --topic and --rate name topics of which the export has no task: nosuch, ordr\n"
    )


def test_a_picture_is_drawn_beside_the_text(tmp_path: Path, capsys: Capture) -> None:
    assert tell(found(None), {"order": 0.001}, None, tmp_path / "a.png", as_json=False) == 0

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "order" in capsys.readouterr().out


HOSTILE = ("_", "$x", "$", "注文", "\x1b[2J\ud800", "a" * 300, "")


@pytest.mark.parametrize("hours", [24, 744])
def test_whatever_names_there_are_can_be_drawn(hours: int, tmp_path: Path) -> None:
    window = a_window(hours)
    topics = [a_load(*([1000] * hours), topic=name, overdue=9) for name in HOSTILE]
    limits = {name: TopicLimit(rate) for name, rate in zip(HOSTILE, (0.1, 0, 1e6), strict=False)}
    dead = DeadCounts(dict.fromkeys(HOSTILE, 1), tuple(DeadGroup(name, name, 1, None, None) for name in HOSTILE), 3, 4)
    rejected = RejectCounts(tuple(RejectGroup(name, name, 1, name) for name in HOSTILE), 3, 4)

    draw(a_report(an_outlook(*topics, limits=limits, window=window), dead, rejected), tmp_path / "a.png")

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("rate", "is_drawn"), [(2, True), (3, False)])
def test_a_rate_is_a_line_only_where_its_topic_is_above_it(rate: float, is_drawn: bool, tmp_path: Path) -> None:
    topics = (a_load(9000, 0), a_load(5000, 0, topic="mail"))
    for name, limits in (("with", {"order": TopicLimit(rate)}), ("without", {"order": TopicLimit(0)})):
        draw(a_report(an_outlook(*topics, limits=limits)), tmp_path / name)

    assert ((tmp_path / "with").read_bytes() != (tmp_path / "without").read_bytes()) is is_drawn


def test_nothing_can_be_drawn_too(tmp_path: Path) -> None:
    draw(a_report(dead=NOTHING_DIED, rejected=RejectCounts((), 0, 0)), tmp_path / "a.png")

    assert (tmp_path / "a.png").exists()


# The command


def ended(*arguments: str) -> int:
    """The command's exit status."""
    return run(["bulk", "report", *arguments]).status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "What is it to be about? --export, --rejects, or both."),
        (("--export", "x", "--days", "0"), "0 is not in the range"),
        (("--export", "x", "--topic", "/"), "expected a string of 1 to 255 bytes"),
        (("--export", "x", "--rate", "order"), "order: expected TOPIC=PER_SECOND"),
        (("--export", "x", "--rate", "order=fast"), "order=fast: expected a number"),
        (("--export", "x", "--rate", "order=-1"), "order=-1: expected a rate of 0, or from 0.0001 to 1000000"),
        (("--export", "x", "--plot", "x.svg"), "x.svg: expected the name of a file that ends in .png"),
        (("--export", "x", "--plot", "/nope/x.png"), "/nope/x.png: there is no directory /nope"),
        (("--export", "x", "--url", "redis://h"), "later: --url redis://h: expected an http or https URL"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(arguments: tuple[str, ...], said: str, capsys: Capture) -> None:
    assert ended(*arguments) == 2

    assert said in capsys.readouterr().err


def test_a_rate_is_read_after_the_last_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def count(wanted: loads.Wanted, rates: dict[str, float], master: str, conf: dict[str, str]) -> Found:
        asked.update(rates=rates, topics=wanted.topics)
        return found(None)

    monkeypatch.setattr(loads, "count", count)
    arguments = ["--export", "x", "--rate", "a=b=50/s", "--rate", "default/mail=0", "--topic", "default/mail"]

    assert ended(*arguments) == 0
    assert asked == {"rates": {"a=b": 50, "mail": 0}, "topics": ("mail",)}


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def without(name: str) -> ModuleSpec | None:
        return None if name == "matplotlib" else find_spec(name)

    monkeypatch.setattr("importlib.util.find_spec", without)

    assert ended("--export", "x", "--plot", "x.png") == 1
    assert capsys.readouterr().err == "later: --plot needs matplotlib: pip install 'later[spark]'\n"
