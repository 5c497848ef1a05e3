"""The commands of the group `schedules`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import pytest

from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of, problem_reply

REPORT: dict[str, Any] = {
    "id": "report", "topic": "shop/report", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin",
    "start": "2027-01-14T12:00:00.250Z", "catch_up": "one", "jitter": 90, "paused": False, "callback": None,
    "content": "a\x1b", "headers": ["x-a"], "created_at": "2027-01-14T12:00:00.250Z",
    "next": ["2027-01-15T08:00:00.000Z", "2027-03-29T07:00:00.000Z"],
    "last": {"time": "2027-01-14T08:00:00.000Z", "task_id": "s:report:1799913600"},
    "last_error": {"time": "2027-01-13T08:00:00.000Z", "message": "callback: expected none"}, "refused": 1,
}  # fmt: skip
CLEANUP: dict[str, Any] = {
    "id": "cleanup", "topic": "cleanup", "every": 5400, "zone": "UTC", "paused": True, "next": [], "last": None,
    "last_error": None,
}  # fmt: skip

if "Europe/Berlin" not in available_timezones():
    pytest.skip("this machine has no time zones: times are shown in UTC", allow_module_level=True)


def page(*schedules: dict[str, Any], cursor: str | None = None) -> Reply:
    return Reply(200, {"schedules": list(schedules), "cursor": cursor})


def test_a_schedule_is_put_with_the_options_that_are_given(api: ApiStub, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "content").write_text("hello", encoding="utf-8")
    api.replies = [Reply(200, {"id": "report", "created": True, "next": REPORT["next"]})] * 2
    assert exit_code_of(
        "schedules", "put", "a/b", "--cron", "0 9 * * 1-5", "--zone", "Europe/Berlin", "--topic", "report",
        "--callback", "http://a/", "--content-file", "content", "--start", "2027-01-15T08:00:00Z",
        "--end", "1800000000",
        "--catch-up", "all", "--jitter", "90s", "--paused", "off", "--retry", "5", "--ttl", "1h", "--header", "x-a: 1",
        "--context", "tenant=t", "--remember", "1d",
    ) == 0  # fmt: skip
    assert capsys.readouterr().out == "the schedule report fires next at Fri 2027-01-15 09:00:00+01:00\n"
    assert api.calls == [("PUT", "/schedules/a%2Fb")]
    assert api.requests[0].json == {
        "cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "topic": "report", "callback": "http://a/", "content": "hello",
        "start": "2027-01-15T08:00:00Z", "end": 1800000000.0, "catch_up": "all", "jitter": 90.0, "paused": False,
        "retry": 5, "ttl": 3600.0, "headers": {"x-a": "1"}, "context": {"tenant": "t"}, "remember": 86400.0,
    }  # fmt: skip
    assert exit_code_of("schedules", "put", "report", "--every", "1h30m", "--topic", "report", "--json") == 0
    assert json.loads(capsys.readouterr().out)["created"] is True
    assert api.requests[1].json == {"every": 5400.0, "topic": "report"}


def test_a_schedule_that_is_put_and_never_fires_says_so(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "report", "created": False, "next": []})]
    assert exit_code_of("schedules", "put", "report", "--every", "1h", "--topic", "report", "--end", "1700000000") == 0
    assert capsys.readouterr().out == "the schedule report fires no more\n"


def test_a_refusal_is_one_line(api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(400, "cron: expected either cron or every, got neither")]
    assert exit_code_of("schedules", "put", "report", "--topic", "report") == 1
    assert capsys.readouterr().err == "later: cron: expected either cron or every, got neither\n"


def test_a_schedule_is_shown_with_its_times_in_its_zone(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, REPORT)] * 2
    assert exit_code_of("schedules", "get", "report") == 0
    assert capsys.readouterr().out.splitlines() == [
        "field       value",
        "id          report",
        "topic       shop/report",
        "cron        0 9 * * 1-5",
        "zone        Europe/Berlin",
        "start       Thu 2027-01-14 13:00:00.250+01:00",
        "catch_up    one",
        "jitter      90s",
        "paused      off",
        "content     a\\x1b",
        'headers     ["x-a"]',
        "created_at  Thu 2027-01-14 13:00:00.250+01:00",
        "next        Fri 2027-01-15 09:00:00+01:00",
        "next        Mon 2027-03-29 09:00:00+02:00",
        "last        Thu 2027-01-14 09:00:00+01:00: s:report:1799913600",
        "last_error  Wed 2027-01-13 09:00:00+01:00: callback: expected none",
        "refused     1",
    ]
    assert exit_code_of("schedules", "get", "report", "--json") == 0
    assert json.loads(capsys.readouterr().out) == REPORT


def test_schedules_are_listed_page_by_page(api: ApiStub, capsys: Capture) -> None:
    api.replies = [page(REPORT, cursor="x"), page(CLEANUP)]
    assert exit_code_of("schedules", "list", "--namespace", "a/ü") == 0
    assert capsys.readouterr().out.splitlines() == [
        "id       topic        fires                      next                           last",
        "report   shop/report  0 9 * * 1-5 Europe/Berlin  Fri 2027-01-15 09:00:00+01:00  "
        "Thu 2027-01-14 09:00:00+01:00 (refused)",
        "cleanup  cleanup      every 90m                  paused                         -",
    ]
    assert [path for _, path in api.calls] == [
        "/schedules?limit=500&namespace=a%2F%C3%BC",
        "/schedules?limit=500&namespace=a%2F%C3%BC&cursor=x",
    ]


def test_no_more_schedules_are_listed_than_the_limit(api: ApiStub, capsys: Capture) -> None:
    api.replies = [page(REPORT, CLEANUP, cursor="x")] * 2
    assert exit_code_of("schedules", "list", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["… and more"]
    assert exit_code_of("schedules", "list", "--limit", "1", "--json") == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["report"]
    assert len(api.requests) == 2


def test_the_next_times_are_shown_in_the_zone_of_the_schedule_and_in_utc(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, schedule) for schedule in (REPORT, CLEANUP, {**CLEANUP, "paused": False}, REPORT)]
    assert exit_code_of("schedules", "next", "report") == 0
    assert capsys.readouterr() == (
        "Europe/Berlin                  UTC\n"
        "Fri 2027-01-15 09:00:00+01:00  Fri 2027-01-15 08:00:00+00:00\n"
        "Mon 2027-03-29 09:00:00+02:00  Mon 2027-03-29 07:00:00+00:00\n",
        "",
    )
    assert exit_code_of("schedules", "next", "cleanup") == 0
    assert "the schedule cleanup is paused" in capsys.readouterr().err
    assert exit_code_of("schedules", "next", "cleanup") == 0
    assert capsys.readouterr() == ("UTC\n", "later: the schedule cleanup fires no more\n")
    assert exit_code_of("schedules", "next", "report", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"id": "report", "zone": "Europe/Berlin", "next": REPORT["next"]}


def test_times_are_in_utc_where_the_zone_is_not_known(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {**CLEANUP, "paused": False, "next": ["2027-01-15T08:00:00.000Z"], "zone": zone})
                   for zone in ("Mars/Base", "", "../etc")]  # fmt: skip
    for _ in range(3):
        assert exit_code_of("schedules", "next", "x") == 0
        assert "Fri 2027-01-15 08:00:00+00:00" in capsys.readouterr().out


@each_case(
    ("words", "reply", "sent", "printed"),
    [
        ("delete", {"id": "a"}, ("DELETE", "/schedules/a"), "a"),
        ("pause", {"id": "a", "paused": True}, ("POST", "/schedules/a/pause"), "the schedule a is paused"),
        ("resume", {"id": "a", "paused": False}, ("POST", "/schedules/a/resume"), "the schedule a is not paused"),
        ("run-now", {"id": "s:a:now-1"}, ("POST", "/schedules/a/run-now"), "s:a:now-1"),
    ],
)
def test_a_schedule_is_deleted_paused_resumed_and_run(
    api: ApiStub, capsys: Capture, words: str, reply: dict[str, Any], sent: tuple[str, str], printed: str
) -> None:
    api.replies = [Reply(200, reply), Reply(200, reply), problem_reply(404, "no schedule has the id 'a'")]
    api.requests.clear()
    assert exit_code_of("schedules", words, "a") == 0
    assert capsys.readouterr().out == f"{printed}\n"
    assert exit_code_of("schedules", words, "a", "--json") == 0
    assert json.loads(capsys.readouterr().out) == reply
    assert exit_code_of("schedules", words, "a") == 1
    assert capsys.readouterr() == ("", "later: no schedule has the id 'a'\n")
    assert api.calls == [sent] * 3
