"""The command `create --from`: each line becomes one task, whatever happens."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from later.cli.commands.create_file import InvalidLine, Line, read_lines
from later.client.batches import MAX_BODY_BYTES
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of, problem_reply


def write_ndjson(*tasks: dict[str, Any] | str) -> str:
    """Write one line per task, and return the file's name."""
    lines = [task if isinstance(task, str) else json.dumps(task) for task in tasks]
    Path("tasks.ndjson").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return "tasks.ndjson"


def task_fields(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"topic": "order", "callback": "http://a/", "id": f"n{i}", **fields} for i in range(count)]


def create_from(*arguments: str) -> int:
    return exit_code_of("create", "--from", *arguments)


def test_a_file_is_sent_in_batches_and_counted(api: ApiStub, capsys: Capture) -> None:
    api.existing_ids = {"n2"}
    assert create_from(write_ndjson(*task_fields(5)), "--batch", "2", "--job", "j:1") == 0
    assert capsys.readouterr() == ("4 created, 1 existing, 0 refused, 0 failed\n", "")
    assert [len(request.lines) for request in api.requests] == [2, 2, 1]
    assert api.requests[0].path == "/create/batch?job=j%3A1"
    assert api.requests[0].headers["Content-Type"] == "application/x-ndjson"
    assert [line for request in api.requests for line in request.lines] == task_fields(5)


def test_a_line_without_an_id_gets_one_and_is_otherwise_unchanged(api: ApiStub) -> None:
    assert create_from(write_ndjson('{"topic": "o", "delay": 1.50, "id": null}', '{"topic":"o"}')) == 0
    first, second = api.requests[0].lines
    assert b'"delay":1.50' in api.requests[0].body
    assert len({first["id"], second["id"]}) == 2
    assert len(first["id"]) == 36


def test_standard_input_may_have_blank_lines_crlf_and_a_byte_order_mark(
    api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = b'\xef\xbb\xbf{"topic":"o","id":"a"}\r\n\r\n   \n{"topic":"o","id":"b"}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert create_from("-", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"created": 2, "existing": 0, "refused": 0, "failed": 0}
    assert [line["id"] for line in api.requests[0].lines] == ["a", "b"]


def test_refused_lines_are_reported_by_number_and_the_others_are_created(api: ApiStub, capsys: Capture) -> None:
    good, bad = task_fields(1)[0], {"topic": "bad", "id": "x"}
    assert create_from(write_ndjson(good, bad, "nonsense", "[1]", {"topic": "o"})) == 1
    out, err = capsys.readouterr()
    assert out == "2 created, 0 existing, 3 refused, 0 failed\n"
    assert sorted(err.splitlines()) == [
        "later: line 2: topic: expected a good one",
        "later: line 3: expected a JSON object: JSON is malformed: invalid character (byte 4)",
        "later: line 4: expected a JSON object: Expected `object`, got `array`",
    ]


def test_only_the_first_refusals_are_reported_one_by_one(api: ApiStub, capsys: Capture) -> None:
    assert create_from(write_ndjson(*task_fields(25, topic="bad"))) == 1
    *reported, last = capsys.readouterr().err.splitlines()
    assert len(reported) == 20
    assert last == "later: … and 5 more lines"


def test_a_busy_server_is_called_again_after_retry_after(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [
        problem_reply(503, "the store is away", "7"),
        problem_reply(429, "too many"),
        problem_reply(503, "still", "9999"),
    ]
    assert create_from(write_ndjson(*task_fields(3))) == 0
    assert pauses == [7, 2, 60]
    out, err = capsys.readouterr()
    assert out == "3 created, 0 existing, 0 refused, 0 failed\n"
    assert err.splitlines()[0] == "later: the store is away; trying again in 7 s"
    assert [request.lines for request in api.requests] == [task_fields(3)] * 4


def test_a_lost_answer_creates_nothing_twice(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [lambda request: api.create_batch(request)._replace(lost=True)]
    assert create_from(write_ndjson({"topic": "o"}, {"topic": "o", "id": "mine"})) == 0
    first, second = api.requests
    assert first.body == second.body
    assert capsys.readouterr().out == "1 created, 1 existing, 0 refused, 0 failed\n"
    assert pauses == [1]


def test_items_that_failed_are_sent_again_alone(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    unavailable = {"error": {"status": 503, "detail": "a shard is away"}}
    api.replies = [
        Reply(200, {"results": [{"id": "n0", "created": True}, unavailable, {"id": "n2", "created": True}]}),
        Reply(200, {"results": [unavailable]}),
    ]
    assert create_from(write_ndjson(*task_fields(3))) == 0
    assert [[line["id"] for line in request.lines] for request in api.requests] == [["n0", "n1", "n2"], ["n1"], ["n1"]]
    assert capsys.readouterr().out == "3 created, 0 existing, 0 refused, 0 failed\n"
    assert pauses == [1, 2]


def test_items_that_keep_failing_are_counted_and_the_next_batch_is_sent(
    api: ApiStub, pauses: list[float], capsys: Capture
) -> None:
    unavailable = Reply(200, {"results": [{"error": {"status": 503, "detail": "a shard is away"}}]})
    api.replies = [unavailable, unavailable]
    assert create_from(write_ndjson(*task_fields(2)), "--batch", "1", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out == "1 created, 0 existing, 0 refused, 1 failed\n"
    assert err.splitlines()[-1] == "later: line 1: a shard is away"


def test_a_batch_that_keeps_failing_ends_the_command(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [api.create_batch, problem_reply(503, "full"), problem_reply(503, "full")]
    assert create_from(write_ndjson(*task_fields(6)), "--batch", "2", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out == "2 created, 0 existing, 0 refused, 2 failed\n"
    assert err.splitlines()[-1] == "later: lines 3 to 4: full (tried 2 times); the lines after them were not sent"
    assert len(api.requests) == 3


def test_a_batch_that_is_too_large_for_a_proxy_is_halved(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [Reply(413, b"")]
    assert create_from(write_ndjson(*task_fields(4))) == 0
    assert [len(request.lines) for request in api.requests] == [4, 2, 2]
    assert capsys.readouterr().out == "4 created, 0 existing, 0 refused, 0 failed\n"
    assert pauses == []


def test_a_half_that_is_repeated_does_not_change_the_tally_of_the_other(
    api: ApiStub, pauses: list[float], capsys: Capture
) -> None:
    api.replies = [Reply(413, b""), api.create_batch, problem_reply(503, "full")]
    assert create_from(write_ndjson(*task_fields(4))) == 0
    assert capsys.readouterr().out == "4 created, 0 existing, 0 refused, 0 failed\n"
    assert [len(request.lines) for request in api.requests] == [4, 2, 2, 2]


def test_a_half_that_does_not_get_through_alone_counts_as_failed(
    api: ApiStub, pauses: list[float], capsys: Capture
) -> None:
    api.replies = [Reply(413, b""), api.create_batch, problem_reply(503, "full")]
    assert create_from(write_ndjson(*task_fields(4)), "--retries", "0") == 1
    assert capsys.readouterr().out == "2 created, 0 existing, 0 refused, 2 failed\n"


@pytest.mark.parametrize("reply", [problem_reply(400, "job: no"), Reply(200, {"results": []}), Reply(200, b"x")])
def test_a_permanent_refusal_is_not_retried(api: ApiStub, reply: Reply, pauses: list[float]) -> None:
    api.replies = [reply]
    assert create_from(write_ndjson(*task_fields(2))) == 1
    assert (len(api.requests), pauses) == (1, [])


def test_a_missing_file_is_reported_in_one_line(capsys: Capture) -> None:
    assert create_from("none") == 1
    assert capsys.readouterr().err == "later: none: No such file or directory\n"


def test_a_line_too_long_for_a_request_is_skipped_without_being_read_whole() -> None:
    counted: list[int] = []
    file = io.BytesIO(b"x" * (2 * MAX_BODY_BYTES + 10) + b'\n{"id":"a"}\n')
    assert list(read_lines(file, counted.append)) == [
        InvalidLine(1, "the line is too long"),
        Line(2, b'{"id":"a"}', has_new_id=False),
    ]
    assert sum(counted) == len(file.getvalue())


def test_large_lines_make_small_batches(api: ApiStub) -> None:
    assert create_from(write_ndjson(*task_fields(3, content="x" * 5_000_000))) == 0
    assert [len(request.lines) for request in api.requests] == [1, 1, 1]
