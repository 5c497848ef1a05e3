"""The commands `list` and `dead list`."""

from __future__ import annotations

import json

import pytest

from tests.cli.api_stub import ERROR_JSON, NOW_S, ApiStub, Capture, dead_task, exit_code_of, listed_task, tasks_page


def test_tasks_are_listed_page_by_page_up_to_the_limit(api: ApiStub, capsys: Capture) -> None:
    api.replies = [
        tasks_page(listed_task("n1"), listed_task("n2\x1b", attempts=1, last_error=ERROR_JSON), cursor="c"),
        tasks_page(listed_task("n3", callback=None), listed_task("n4"), cursor="d"),
    ]
    assert exit_code_of("list", "order", "--state", "error", "--limit", "3") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "id      next attempt              attempts  last error            callback",
        "n1      2027-01-15T08:00:00.000Z  0         -                     http://a/",
        "n2\\x1b  2027-01-15T08:00:00.000Z  1         status: answered 503  http://a/",
        "n3      2027-01-15T08:00:00.000Z  0         -                     -",
    ]
    assert err == "later: these are the first 3; use --limit to list more\n"
    first_request = {"topic": "order", "state": "error", "limit": 4}
    assert [(request.path, request.json) for request in api.requests] == [
        ("/list", first_request),
        ("/list", {**first_request, "cursor": "c"}),
    ]


def test_list_prints_one_json_object_per_line(api: ApiStub, capsys: Capture) -> None:
    tasks = [listed_task("n1"), listed_task("n2")]
    api.replies = [tasks_page(*tasks)]
    assert (
        exit_code_of("list", "order", "--json", "--due-after", "1800000000", "--due-before", "2027-01-16T00:00Z") == 0
    )
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == tasks
    assert err == ""
    assert api.requests[0].json == {
        "topic": "order", "state": "delay", "due_after": 1_800_000_000, "due_before": 1_800_057_600, "limit": 51,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "header"), [("delay", "due"), ("unack", "lease ends"), ("error", "next attempt"), ("dead", "died")]
)
def test_the_header_of_a_list_names_its_times(state: str, header: str, api: ApiStub, capsys: Capture) -> None:
    api.replies = [tasks_page()]
    assert exit_code_of("list", "order", "--state", state) == 0
    assert capsys.readouterr().out == f"id  {header}  attempts  last error  callback\n"


def test_dead_tasks_are_listed_with_their_reasons(now: float, api: ApiStub, capsys: Capture) -> None:
    api.replies = [
        tasks_page(dead_task("n1"), dead_task("n2", "gone", status=410, message="answered 410"), cursor="c"),
        tasks_page(dead_task("n3", "expired", status=None, message="its ttl ended")),
    ]
    assert exit_code_of("dead", "list", "order", "--died-before", "2h") == 0
    assert capsys.readouterr().out.splitlines() == [
        "id  died                      attempts  reason     status  message",
        "n1  2027-01-15T09:00:00.000Z  4         exhausted  503     answered 503",
        "n2  2027-01-15T09:00:00.000Z  4         gone       410     answered 410",
        "n3  2027-01-15T09:00:00.000Z  4         expired    -       its ttl ended",
    ]
    assert api.requests[0].json == {
        "topic": "order", "state": "dead", "died_before": NOW_S - 7200, "limit": 51,
    }  # fmt: skip


def test_dead_tasks_of_one_reason_are_asked_for_and_an_empty_page_is_not_the_last(
    api: ApiStub, capsys: Capture
) -> None:
    api.replies = [
        tasks_page(dead_task("n2", "gone"), cursor="c"),
        tasks_page(cursor="d"),
        tasks_page(dead_task("n4", "gone")),
    ]
    assert exit_code_of("dead", "list", "order", "--reason", "gone", "--limit", "2", "--json") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["n2", "n4"]
    assert err == ""
    asked = {"topic": "order", "state": "dead", "reason": "gone", "limit": 3}
    assert [request.json for request in api.requests] == [asked, {**asked, "cursor": "c"}, {**asked, "cursor": "d"}]


def test_pending_tasks_are_listed_with_their_states(api: ApiStub, capsys: Capture) -> None:
    api.replies = [tasks_page(listed_task("n1", state="unack"), listed_task("n2", state="delay"))]
    assert exit_code_of("list", "order", "--state", "pending") == 0
    assert capsys.readouterr().out.splitlines() == [
        "state  id  due                       attempts  last error  callback",
        "unack  n1  2027-01-15T08:00:00.000Z  0         -           http://a/",
        "delay  n2  2027-01-15T08:00:00.000Z  0         -           http://a/",
    ]
    assert api.requests[0].json == {"topic": "order", "state": "pending", "limit": 51}
