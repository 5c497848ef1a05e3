"""The command `forecast`: its request, its table with bars, and what it says of a rate."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from later.cli.commands.forecast import MAX_ROWS
from later.cli.tables import format_bar
from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of

TOPIC: dict[str, Any] = {
    "topic": "sms\x1b", "at": "2027-01-15T08:07:00.000Z", "from": "2027-01-15T08:00:00.000Z", "step_s": 900, "due": 1,
    "counts": [0, 1000, 4, 0, 0], "rate": 2, "paused": False, "behind_from": "2027-01-15T08:15:00.000Z",
    "caught_up_at": "2027-01-15T08:23:20.000Z", "worst_lateness_s": 260.5,
}  # fmt: skip
ALL: dict[str, Any] = {
    "at": TOPIC["at"], "from": TOPIC["from"], "step_s": 450, "due": 3, "counts": [2, 1], "topics_left_out": 7,
    "counted_at": TOPIC["at"],
    "topics": [{"topic": "a", "due": 3, "counts": [2, 1]}, {"topic": "b", "due": 0, "counts": [0, 0]}],
}  # fmt: skip


def test_a_topic_is_shown_by_steps_with_what_its_rate_makes_of_them(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, TOPIC)]
    assert exit_code_of("forecast", "shop/sms") == 0
    assert api.calls == [("GET", "/topics/shop%2Fsms/forecast?hours=6&step=600")]
    assert capsys.readouterr().out.splitlines() == [
        "sms\\x1b: 1 task is due, 1,004 more within 6 h",
        "at 2/s tasks wait up to 4 min: from 2027-01-15 08:15:00 until 2027-01-15 08:23:20",
        "",
        "from              tasks",
        "2027-01-15 08:00      0",
        "2027-01-15 08:15  1,000  ████████████████████████████████",
        "2027-01-15 08:30      4  ▏",
    ]


@each_case(
    ("changes", "sentence"),
    [
        ({"caught_up_at": None}, "at 2/s tasks wait up to 4 min: from 2027-01-15 08:15:00 and for longer than 6 h"),
        ({"behind_from": None, "worst_lateness_s": 0.5}, "at 2/s no task waits for a second"),
        ({"worst_lateness_s": None, "rate": None}, "no rate holds its tasks"),
        (
            {"worst_lateness_s": None, "paused": True},
            "the topic is paused: nothing is delivered; --rate says how it would go on",
        ),
    ],
)
def test_what_a_rate_does_is_said(api: ApiStub, capsys: Capture, changes: dict[str, Any], sentence: str) -> None:
    api.replies = [Reply(200, {**TOPIC, **changes})]
    assert exit_code_of("forecast", "sms") == 0
    assert capsys.readouterr().out.splitlines()[1] == sentence


def test_all_topics_are_shown_together_and_each_with_its_busiest_step(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, ALL)]
    assert exit_code_of("forecast", "--hours", "12") == 0
    assert api.calls == [("GET", "/forecast?hours=12&step=900")]
    assert capsys.readouterr().out.splitlines() == [
        "3 tasks are due, 3 more within 12 h",
        "",
        "from                 tasks",
        "2027-01-15 08:00:00      2  ████████████████████████████████",
        "2027-01-15 08:07:30      1  ████████████████",
        "",
        "topic  due  in 12 h            most from",
        "a        3        3  2027-01-15 08:00:00",
        "b        0        0                    -",
        "… and 7 more topics, whose tasks are not counted",
    ]


def test_a_store_that_has_not_been_counted_says_so(api: ApiStub, capsys: Capture) -> None:
    nothing = {**ALL, "due": 0, "counts": [0, 0], "topics": [], "topics_left_out": 0, "counted_at": None}
    api.replies = [Reply(200, nothing)]
    assert exit_code_of("forecast") == 0
    captured = capsys.readouterr()
    assert captured.out == "0 tasks are due, 0 more within 6 h\n"
    assert captured.err == "later: the topics have not been counted yet; try again in a moment\n"


def test_the_answer_is_printed_as_json(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, TOPIC)]
    assert exit_code_of("forecast", "sms", "--step", "5m", "--rate", "0.5", "--json") == 0
    assert json.loads(capsys.readouterr().out) == TOPIC
    assert api.calls == [("GET", "/topics/sms/forecast?hours=6&step=300&rate=0.5")]


@each_case(("hours", "step_s"), [(1, 300), (4, 300), (5, 600), (24, 1800), (48, 3600), (168, 3600)])
def test_the_step_is_chosen_so_that_the_table_is_short(api: ApiStub, hours: int, step_s: int) -> None:
    api.replies = [Reply(200, ALL)]
    assert exit_code_of("forecast", "--hours", str(hours)) == 0
    assert api.calls[-1] == ("GET", f"/forecast?hours={hours}&step={step_s}")
    assert hours * 3600 <= max(MAX_ROWS * step_s, 168 * 3600)


def test_a_rate_needs_a_topic(api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of("forecast", "--rate", "2") == 2
    assert "--rate needs a TOPIC." in capsys.readouterr().err
    assert api.calls == []


def test_a_bar_is_as_long_as_its_value_and_never_hides_one() -> None:
    assert [format_bar(value, 1000, 4) for value in (0, 1, 250, 400, 1000)] == ["", "▏", "█", "█▋", "████"]
    assert format_bar(0, 0, 2) == ""


def test_bars_begin_in_one_column_on_a_terminal(api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    api.replies = [Reply(200, TOPIC)]
    assert exit_code_of("forecast", "sms") == 0
    full, short = [line for line in capsys.readouterr().out.splitlines() if "█" in line or "▏" in line]
    assert full.index("█") == short.index("▏")
