"""The commands of consumers."""

from __future__ import annotations

import json
from typing import Any

from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of, problem_reply

TASK: dict[str, Any] = {
    "id": "a", "topic": "jobs", "content": "hello", "headers": {}, "attempt": 1, "last_error": None, "lease": "AQ1",
}  # fmt: skip


def test_claim_prints_tasks_with_their_leases(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"tasks": [TASK], "lost": []})]
    assert exit_code_of("claim", "urgent", "jobs", "--max", "5", "--lease", "10m", "--poll", "20s") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "lease         AQ1" in lines
    assert "last_error" not in "".join(lines)
    assert api.requests[0].json == {"topics": ["urgent", "jobs"], "max": 5, "lease": 600, "wait": 20}


def test_claim_prints_json_lines_and_says_by_its_exit_status_that_nothing_is_due(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"tasks": [TASK, TASK], "lost": []}), Reply(200, {"tasks": [], "lost": []})]
    assert exit_code_of("claim", "jobs", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [TASK, TASK]
    assert exit_code_of("claim", "jobs", "--json") == 1
    assert capsys.readouterr().out == ""
    assert api.requests[1].json == {"topics": ["jobs"], "max": 1, "wait": 0}


@each_case(
    ("arguments", "sent", "answer", "printed"),
    [
        (["ack", "x", "y"], {"leases": ["x", "y"]}, {"acked": 2, "lost": []}, "acked 2\n"),
        (["release", "x"], {"leases": ["x"]}, {"released": 1, "lost": []}, "released 1\n"),
        (["extend", "x"], {"leases": ["x"]}, {"extended": 1, "lost": []}, "extended 1\n"),
        (
            ["extend", "x", "--lease", "1h"],
            {"leases": ["x"], "lease": 3600},
            {"extended": 1, "lost": []},
            "extended 1\n",
        ),
        (["nack", "x"], {"leases": ["x"]}, {"nacked": 1, "lost": []}, "nacked 1\n"),
        (
            ["nack", "x", "--delay", "10m", "--message", "no disk", "--reason", "disk", "--busy"],
            {"leases": ["x"], "delay": 600, "message": "no disk", "reason": "disk", "busy": True},
            {"nacked": 1, "lost": []},
            "nacked 1\n",
        ),
        (["nack", "x", "--dead"], {"leases": ["x"], "dead": True}, {"nacked": 1, "lost": []}, "nacked 1\n"),
        (["ack", "x", "--json"], {"leases": ["x"]}, {"acked": 1, "lost": []}, '{"acked": 1, "lost": []}\n'),
    ],
)
def test_a_call_about_leases_says_how_many(
    api: ApiStub, capsys: Capture, arguments: list[str], sent: object, answer: object, printed: str
) -> None:
    api.replies = [Reply(200, answer)]
    assert exit_code_of(*arguments) == 0
    assert capsys.readouterr() == (printed, "")
    request = api.requests.pop()
    assert (request.path, request.json) == (f"/{arguments[0]}", sent)


def test_a_lost_lease_is_named(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"acked": 1, "lost": ["y"]})]
    assert exit_code_of("ack", "x", "y") == 1
    assert capsys.readouterr() == ("acked 1\n", "later: y: the lease was lost\n")


def test_a_refusal_is_one_line(api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(409, "the tasks of the topic 'jobs' are delivered")]
    assert exit_code_of("claim", "jobs") == 1
    assert capsys.readouterr().err == "later: the tasks of the topic 'jobs' are delivered\n"


@each_case("answer", [{}, {"tasks": [{"id": "a"}]}, {"tasks": [5]}])
def test_an_answer_that_is_not_laters_is_an_error(api: ApiStub, capsys: Capture, answer: object) -> None:
    api.replies = [Reply(200, answer)]
    assert exit_code_of("claim", "jobs") == 1
    capsys.readouterr()


@each_case(
    "arguments",
    [["claim"], ["ack"], ["claim", "jobs", "--max", "501"], ["work", "jobs"], ["work", "-n", "0", "j", "x"]],
)
def test_wrong_usage_is_refused_before_the_api_is_called(api: ApiStub, capsys: Capture, arguments: list[str]) -> None:
    assert exit_code_of(*arguments) == 2
    assert api.requests == []
    capsys.readouterr()
