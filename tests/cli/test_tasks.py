"""The commands about single tasks."""

from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each_case
from tests.cli.api_stub import ERROR_JSON, TASK_JSON, ApiStub, Capture, Reply, exit_code_of, problem_reply


def test_create_sends_the_fields_and_prints_the_id(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1"})]
    assert exit_code_of(
        "create", "--topic", "order", "--callback", "http://a/", "--delay", "1.5m", "--retry", "2", "--content", "ü",
        "--header", "X-A: b: c", "--header", "X-B:", "--ttl", "7d", "--id", "n1",
        "--context", "tenant=a=b", "--context", "none=",
        "--remember", "15m", "--if-exists", "update",
    ) == 0  # fmt: skip
    assert capsys.readouterr().out == "n1\n"
    (request,) = api.requests
    assert request.path == "/create"
    assert request.headers["User-Agent"] == "later/0.1.0"
    assert request.json == {
        "topic": "order", "callback": "http://a/", "delay": 90, "retry": 2, "content": "ü",
        "headers": {"X-A": "b: c", "X-B": ""}, "ttl": 604_800, "id": "n1", "context": {"tenant": "a=b", "none": ""},
        "remember": 900, "if_exists": "update",
    }  # fmt: skip


def test_create_prints_the_answer_as_json_and_keeps_the_path_of_the_url(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1", "created": True})]
    create = ("create", "--topic", "o", "--callback", "http://a/", "--execute-time", "1.5")
    assert exit_code_of(*create, "--json", "--url", f"{api.url}/later/") == 0
    assert json.loads(capsys.readouterr().out) == {"id": "n1", "created": True}
    assert api.requests[0].path == "/later/create"
    assert api.requests[0].json["execute_time"] == 1.5


def test_create_reports_an_existing_id_and_a_warning(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1", "created": False, "warning": "ttl is less than delay"})]
    assert exit_code_of("create", "--topic", "o", "--callback", "http://a/", "--id", "n1") == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        "n1\n",
        "later: a task with this id exists already: nothing was created\nlater: ttl is less than delay\n",
    )


def test_create_reports_a_task_that_it_has_updated(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1", "created": False, "updated": True})]
    assert exit_code_of("create", "--topic", "o", "--callback", "http://a/", "--id", "n1", "--if-exists", "update") == 0
    assert capsys.readouterr() == ("n1\n", "later: a task with this id exists already: it was updated\n")


def test_content_comes_from_a_file_or_standard_input(
    api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    api.replies = [Reply(200, {"id": "a"}), Reply(200, {"id": "b"})]
    create = ("create", "--topic", "o", "--callback", "http://a/", "--content-file")
    Path("c").write_text("from ä file\n", "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert (exit_code_of(*create, "c"), exit_code_of(*create, "-")) == (0, 0)
    assert [request.json["content"] for request in api.requests] == ["from ä file\n", "from stdin"]
    Path("c").write_bytes(b"\xff")
    assert (exit_code_of(*create, "c"), exit_code_of(*create, "none")) == (1, 1)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("later: --content-file c: not UTF-8")
    assert second == "later: none: No such file or directory"


@pytest.mark.parametrize("option", ["--execute-time", "--at"])
@pytest.mark.parametrize(("text", "value"), [("2027-01-15T08:00:00.007+01:00",) * 2, ("1800000000.5", 1_800_000_000.5)])
def test_a_due_time_is_rfc_3339_or_unix_seconds(api: ApiStub, option: str, text: str, value: object) -> None:
    api.replies = [Reply(200, {"id": "n1"}), Reply(200, TASK_JSON)]
    assert exit_code_of("create", "--topic", "o", "--callback", "http://a/", option, text) == 0
    assert exit_code_of("update", "n1", option, text) == 0
    assert [request.json["execute_time"] for request in api.requests] == [value, value]


@each_case(
    ("arguments", "message"),
    [
        (["--callback", "http://a/"], "Missing option '--topic'."),
        (["--at", "2027-01-15T08:00:00"], "2027-01-15T08:00:00: expected a time with its zone, as in 2027-01-15T08"),
        (["--at", "10m"], "'--at': 10m: expected a number of Unix seconds or an RFC 3339 time"),
        (["--topic", "o", "--callback", "x", "--content", "", "--content-file", "x"], "Give either --content or"),
        (["--topic", "o", "--callback", "x", "--job", "j"], "--job needs --from."),
        (["--from", "x", "--topic", "o"], "--from reads all fields of the tasks from the file"),
        (["--delay", "soon"], "'--delay': soon: expected a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (["--ttl", "11000d"], "'--ttl': 11000d: expected a duration of at most ten years"),
        (["--context", "hunter2"], "expected name=value"),
        (["--context", "=hunter2"], "expected name=value"),
        (["--context", "a=hunter2", "--context", "a=hunter2"], "a is given twice"),
        (["--header", "hunter2"], "expected 'Name: value'"),
        (["--header", "A: hunter2", "--header", "a: hunter2"], "a is given twice"),
    ],
)
def test_wrong_usage_of_create(arguments: list[str], message: str, capsys: Capture) -> None:
    assert exit_code_of("create", *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "hunter2" not in err


CREATE = ("create", "--topic", "o", "--callback", "http://a/")


def test_a_refusal_is_printed_in_the_words_of_the_server(api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(400, "delay: expected a number of seconds ≥ 0,\n got -5")]
    assert exit_code_of(*CREATE) == 1
    assert capsys.readouterr() == ("", "later: delay: expected a number of seconds ≥ 0, got -5\n")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(502, b"<html>"), "{url} answered 502 Bad Gateway"),
        (Reply(302, b""), "{url} answered 302 Found"),
        (Reply(200, b"<html>"), "expected JSON from {url}, got something else: is this the URL of later?"),
        (Reply(200, [1]), "expected a JSON object as the answer, got something else: is this the URL of later?"),
        (Reply(200, {"id": "x"}, lost=True), "{url} did not answer: IncompleteRead(11 bytes read, 1 more expected)"),
    ],
)
def test_an_answer_of_another_server_is_reported(api: ApiStub, reply: Reply, message: str, capsys: Capture) -> None:
    api.replies = [reply]
    assert exit_code_of(*CREATE) == 1
    assert capsys.readouterr().err == f"later: {message.format(url=api.url)}\n"


def test_a_refused_connection_is_reported_in_one_line(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert exit_code_of(*CREATE, "--url", f"http://127.0.0.1:{port}") == 1
    assert capsys.readouterr().err == f"later: http://127.0.0.1:{port} did not answer: Connection refused\n"


def test_a_missing_answer_is_reported_after_wait(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert exit_code_of(*CREATE, "--url", url, "--wait", "0.1") == 1
    assert capsys.readouterr().err == f"later: {url} did not answer within 0.1 s\n"


def test_proxies_of_the_environment_are_not_used(api: ApiStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    api.replies = [Reply(200, {"id": "n1"})]
    assert exit_code_of(*CREATE) == 0


def test_delete_says_that_a_task_was_in_flight_or_had_ended(api: ApiStub, capsys: Capture) -> None:
    answers = [{"id": "a"}, {"id": "b", "in_flight": True}, {"id": "c", "ended": True}]
    api.replies.extend([Reply(200, answer) for answer in answers] * 2)
    assert exit_code_of("delete", "a", "b", "c") == 0
    out, err = capsys.readouterr()
    assert out == "a\nb\nc\n"
    assert err == (
        "later: b was in flight: its receiver may have got that attempt, or may still get it\n"
        "later: c had ended: there was no task to delete, and the id is forgotten\n"
    )
    assert exit_code_of("delete", "a", "b", "c", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == answers


def test_query_prints_a_field_per_line_and_escapes_control_characters(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK_JSON)]
    assert exit_code_of("query", "n1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "id            n1",
        "topic         order",
        "state         delay",
        "content       a\\x1b[2J\\nb",
        "attempts      0",
        "",
    ]


def test_query_prints_one_json_object_per_line(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK_JSON), Reply(200, TASK_JSON)]
    assert exit_code_of("query", "--json", "n1", "n1") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [TASK_JSON, TASK_JSON]


@pytest.mark.parametrize("command", ["query", "delete"])
def test_an_unknown_id_exits_with_1_after_the_other_ids(command: str, api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(404, "no task has the id 'x'"), Reply(200, {"id": "n1"})]
    assert exit_code_of(command, "x", "n1") == 1
    out, err = capsys.readouterr()
    assert err == "later: no task has the id 'x'\n"
    assert "n1" in out
    assert [(request.path, request.json) for request in api.requests] == [
        (f"/{command}", {"id": "x"}),
        (f"/{command}", {"id": "n1"}),
    ]


def test_an_unavailable_store_ends_a_query(api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(503, "the store is away")]
    assert exit_code_of("query", "a", "b") == 1
    assert capsys.readouterr().err == "later: the store is away\n"
    assert len(api.requests) == 1


EXPLAINED = {
    "sentence": "its topic is paused; due for 4 s\x1b", "id": "n1", "topic": "order", "due_in_s": -4.0,
    "oldest_lateness_s": 4.0, "expires_at": None, "counts": {"delay": 2, "dead": 0}, "paused": True,
    "policy": {"rate": 50, "concurrency": 0, "ttl": 5400, "delay_mode": "honor"}, "last_error": ERROR_JSON,
}  # fmt: skip


def test_explain_prints_a_sentence_and_its_values(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, EXPLAINED)]
    assert exit_code_of("explain", "n1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "its topic is paused; due for 4 s\\x1b",
        "",
        "id                n1",
        "topic             order",
        "due_in_s          -4.0",
        "oldest_lateness_s 4.0",
        "counts            delay 2, dead 0",
        "paused            true",
        "policy            rate 50/s, concurrency 0 (no limit), ttl 90m, delay_mode honor",
        "last_error        reason status, status 503, message answered 503, at 2027-01-15T08:00:00.000Z",
        "",
    ]


def test_explain_prints_json_for_a_task_or_a_topic(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, EXPLAINED)] * 2
    assert exit_code_of("explain", "n1", "--json") == 0
    assert exit_code_of("explain", "--topic", "order", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [EXPLAINED] * 2
    assert [(request.path, request.json) for request in api.requests] == [
        ("/explain", {"id": "n1"}),
        ("/explain", {"topic": "order"}),
    ]


def test_update_sends_the_fields_given_and_prints_the_task(api: ApiStub, capsys: Capture) -> None:
    Path("c").write_text("ü\n", "utf-8")
    api.replies = [Reply(200, TASK_JSON)] * 3
    options = ("--delay", "10m", "--callback", "http://b/", "--header", "X-A: b", "--retry", "0", "--ttl", "1h")
    assert exit_code_of("update", "n1", *options, "--content", "") == 0
    assert "state         delay" in capsys.readouterr().out
    assert exit_code_of("update", "n1", "--execute-time", "1800000000.5", "--content-file", "c", "--json") == 0
    assert json.loads(capsys.readouterr().out) == TASK_JSON
    assert exit_code_of("update", "n1", "--ttl", "0") == 0
    assert [(request.path, request.json) for request in api.requests] == [
        ("/update", {"id": "n1", "delay": 600, "callback": "http://b/", "headers": {"X-A": "b"}, "retry": 0,
                     "ttl": 3600, "content": ""}),
        ("/update", {"id": "n1", "execute_time": 1_800_000_000.5, "content": "ü\n"}),
        ("/update", {"id": "n1", "ttl": None}),
    ]  # fmt: skip


def moves(*results: str | dict[str, Any]) -> Reply:
    """Return the answer to several ids: the id of a task that was moved, or an error."""
    due_at = "2027-01-15T08:00:00.000Z"
    return Reply(
        200, {"results": [{"id": r, "due_at": due_at} if isinstance(r, str) else {"error": r} for r in results]}
    )


@pytest.mark.parametrize("command", [("run-now",), ("dead", "redrive")])
def test_a_task_that_cannot_be_made_due_exits_with_1_after_the_others(
    command: tuple[str, ...], api: ApiStub, capsys: Capture
) -> None:
    api.replies = [
        moves({"status": 404, "detail": "no task has the id 'a'"}, {"status": 409, "detail": "it is in flight"}, "c")
    ]
    assert exit_code_of(*command, "a", "b", "c") == 1
    assert capsys.readouterr() == ("c\n", "later: no task has the id 'a'\nlater: it is in flight\n")
    assert [(request.path, request.json) for request in api.requests] == [(f"/{command[-1]}", {"ids": ["a", "b", "c"]})]


@pytest.mark.parametrize("command", [("run-now",), ("dead", "redrive")])
def test_a_thousand_tasks_are_made_due_by_one_call(command: tuple[str, ...], api: ApiStub, capsys: Capture) -> None:
    ids = [f"n{n}" for n in range(1001)]
    api.replies = [moves(*ids[:1000]), moves(*ids[1000:])]
    assert exit_code_of(*command, *ids) == 0
    assert capsys.readouterr().out.split() == ids
    assert [len(request.json["ids"]) for request in api.requests] == [1000, 1]


@pytest.mark.parametrize("command", [("run-now",), ("dead", "redrive")])
def test_a_task_that_failed_ends_the_command_after_the_results_of_its_call(
    command: tuple[str, ...], api: ApiStub, capsys: Capture
) -> None:
    api.replies = [moves("a", {"status": 503, "detail": "this shard is unavailable"}, "c")]
    assert exit_code_of(*command, "a", "b", "c") == 1
    assert capsys.readouterr() == ("a\nc\n", "later: this shard is unavailable\n")


@pytest.mark.parametrize("answer", [{}, {"results": []}, {"redriven": 1}])
def test_an_answer_without_a_result_for_each_id_is_none_of_later(answer: dict[str, Any], api: ApiStub) -> None:
    api.replies = [Reply(200, answer)]
    assert exit_code_of("run-now", "a") == 1


def test_run_now_and_redrive_print_json(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK_JSON), moves("n1")]
    assert (exit_code_of("run-now", "n1", "--json"), exit_code_of("dead", "redrive", "n1", "--json")) == (0, 0)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        TASK_JSON,
        {"id": "n1", "redriven": 1},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "Missing argument 'TOPIC'."),
        (["list", "order", "--state", "done"], "'done' is not one of 'delay', 'unack', 'error', 'dead', 'pending'."),
        (["list", "order", "--limit", "0"], "0 is not in the range 1<=x<=1000000000."),
        (["explain"], "Give either an ID or --topic."),
        (["explain", "n1", "--topic", "order"], "Give either an ID or --topic."),
        (["update", "n1"], "Nothing to change: give at least one option, as in --delay 10m."),
        (["update", "n1", "--json"], "Nothing to change"),
        (
            ["update", "n1", "--content", "a", "--content-file", "b"],
            "Give either --content or --content-file, not both.",
        ),
        (["update", "n1", "--delay", "soon"], "'--delay': soon: expected a duration"),
        (["run-now"], "Missing argument 'ID...'."),
        (["dead", "list"], "Missing argument 'TOPIC'."),
        (["dead", "list", "order", "--reason", "status"], "'status' is not one of 'exhausted', 'gone',"),
        (["dead", "redrive"], "Give either IDs or --topic."),
        (["dead", "redrive", "n1", "--topic", "order"], "Give either IDs or --topic."),
        (["dead", "redrive", "n1", "--reason", "gone"], "--rate and --dry-run need --topic."),
        (["dead", "redrive", "n1", "--dry-run"], "--rate and --dry-run need --topic."),
        (["dead", "redrive", "--topic", "order", "--rate", "0"], "--rate: expected more than 0 per second."),
        (["dead", "redrive", "--topic", "order", "--rate", "fast"], "fast: expected a number, like 50, 0.5 or 50/s"),
        (["dead", "purge"], "Missing option '--topic'."),
        (["topics", "purge", "order", "--state", "unack"], "'unack' is not one of 'delay', 'error', 'dead'."),
        (["topics", "pause"], "Missing argument 'TOPIC'."),
    ],
)
def test_wrong_usage_of_task_commands(arguments: list[str], message: str, api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of(*arguments) == 2
    assert message in capsys.readouterr().err
    assert api.requests == []


def test_create_asks_for_a_level_and_tells_the_id_where_it_was_missed(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(503, {"detail": "stored, but not on a replica", "stored": True, "id": "a"})]
    status = exit_code_of("create", "--topic", "o", "--durability", "replica", "--wait", "0.1s")
    assert status != 0
    assert api.requests[0].json["durability"] == "replica"
    assert "its id is a" in capsys.readouterr().err
