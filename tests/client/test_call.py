"""One call as values: when it may be sent again, and what each answer means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import UNSET

from later.client import calls, consumer_calls, topic_calls
from later.client.answers import Enqueued
from later.client.batch_call import BatchCall, BatchRun
from later.client.call import MAX_PAUSE_S, Call, attempt_timeout_s, pause, read
from later.core.errors import (
    CallFailed,
    Conflict,
    CrossSite,
    DurabilityMissed,
    Exists,
    InFlight,
    LaterError,
    NotAllowed,
    NotFound,
    NotKnown,
    Refused,
    TooLarge,
    Unavailable,
)
from later.core.policy_scopes import namespace_scope
from tests.cases import each_case

NOW = 1_800_000_000_000
AT = datetime(2027, 1, 15, 9, tzinfo=timezone(timedelta(hours=1)))
CALL = Call("/x", lambda body: body, {}, task_id="a")


def a_call(*, safe: bool) -> Call[bytes]:
    return Call("/create", lambda body: body, {}, safe=safe)


# Again, or not


@each_case(
    ("status", "unknown", "if_safe", "if_not"),
    [
        (None, False, 0.1, 0.1),  # the connection was refused
        (None, True, 0.1, None),  # no answer in time, or a broken one
        (429, False, 0.1, 0.1),
        (502, True, 0.1, None),
        (503, False, 0.1, None),
        (503, True, 0.1, None),
        (504, True, 0.1, None),
        (200, True, 0.1, None),  # an answer of something else
        (500, True, None, None),
        (408, False, None, None),
    ],
)
def test_a_call_is_sent_again_if_that_is_safe_and_may_help(
    status: int | None, unknown: bool, if_safe: float | None, if_not: float | None
) -> None:
    error = Unavailable("away", status, unknown)
    assert [pause(0, error, a_call(safe=safe), 1.0) for safe in (True, False)] == [if_safe, if_not]


@each_case("error", [Refused("no"), TooLarge("no"), NotFound("a"), Conflict("no"), Exists("no"), CallFailed("no", 418)])
def test_a_call_that_is_wrong_is_not_sent_again(error: LaterError) -> None:
    assert pause(0, error, a_call(safe=True), 1.0) is None


@each_case(
    ("attempt", "chance", "retry_after_ms", "wait_s"),
    [
        (0, 1.0, None, 0.1),
        (3, 1.0, None, 0.8),
        (3, 0.5, None, 0.4),
        (3, 0.0, None, 0.0),
        (9, 1.0, None, MAX_PAUSE_S),
        (10_000, 1.0, None, MAX_PAUSE_S),
        (0, 0.0, 2500, 2.5),
        (9, 0.5, 0, 0.0),
    ],
)
def test_the_pauses_double_with_full_jitter_unless_the_server_names_one(
    attempt: int, chance: float, retry_after_ms: int | None, wait_s: float
) -> None:
    error = Unavailable("away", 429, retry_after_ms=retry_after_ms)
    assert pause(attempt, error, a_call(safe=True), chance) == pytest.approx(wait_s)


def test_the_first_attempt_of_a_safe_call_leaves_time_for_another() -> None:
    waiting = Call("/claim", lambda body: body, {}, safe=True, wait_s=20)
    tries = [attempt_timeout_s(left_s, call) for left_s, call in ((10, CALL), (10, a_call(safe=True)), (10, waiting))]
    assert tries == [10, 5, 25]
    assert attempt_timeout_s(-1, CALL) > 0
    assert attempt_timeout_s(120, waiting) == 30


# Answers


def problem(detail: str = "why", type: str = "refused", **more: object) -> bytes:
    return json.dumps({"type": f"/problems/{type}", "title": "x", "detail": detail, **more}).encode()


def error_from(status: int, body: bytes, retry_after: str | None = None, call: Call[Any] = CALL) -> LaterError:
    with pytest.raises(LaterError) as raised:
        read(call, status, retry_after, body, NOW)
    return raised.value


@each_case(
    ("status", "body", "kind", "text"),
    [
        (400, problem(field="delay"), Refused, "why"),
        (401, problem(type="no-key"), NotKnown, "why"),
        (403, problem(type="not-allowed"), NotAllowed, "why"),
        (403, problem(type="cross-site"), CrossSite, "why"),
        (404, problem(type="no-such-task"), NotFound, "no task has the id 'a'"),
        (404, problem(type="no-such-task", ended=True), NotFound, "no task has the id 'a': it has ended"),
        (409, problem(type="in-flight"), InFlight, "why"),
        (409, problem(type="exists"), Exists, "why"),
        (409, problem(type="changed"), Conflict, "why"),
        (413, problem(type="too-large"), TooLarge, "why"),
        (415, problem(type="unsupported"), Refused, "why"),
        (418, b"<html>", CallFailed, "answered 418 I'm a Teapot: is this the URL of later?"),
        (413, b"<html>", TooLarge, "answered 413 Request Entity Too Large"),
        (502, b"<html>", Unavailable, "answered 502 Bad Gateway"),
        (599, b"", Unavailable, "answered 599"),
        (429, b"", Unavailable, "answered 429 Too Many Requests"),
    ],
)
def test_an_error_is_that_of_the_daemon_in_its_words(
    status: int, body: bytes, kind: type[LaterError], text: str
) -> None:
    error = error_from(status, body)
    assert (type(error), str(error)) == (kind, text)


def test_a_refusal_names_its_field() -> None:
    error = error_from(400, problem(field="delay"))
    assert isinstance(error, Refused)
    assert error.field == "delay"


def test_a_path_that_is_not_laters_asks_for_the_url() -> None:
    error = error_from(404, problem("there is nothing at this path", type="x"), call=Call("/x?y", bytes))
    assert str(error) == "there is nothing at this path"
    blank = json.dumps({"type": "about:blank", "detail": "there is nothing at this path"}).encode()
    error = error_from(404, blank, call=Call("/x?y", bytes))
    assert str(error) == "/x: there is nothing at this path: is this the URL of later?"


@each_case(
    ("status", "body", "unknown"),
    [
        (503, problem(type="store-away"), False),
        (503, problem(type="store-away", unknown=True), True),
        (503, b"<html>", True),
        (500, problem(type="fault"), True),
        (502, b"", True),
        (429, problem(type="too-often"), False),
    ],
)
def test_an_error_says_whether_the_call_may_have_been_carried_out(status: int, body: bytes, unknown: bool) -> None:
    error = error_from(status, body, "3")
    assert isinstance(error, Unavailable)
    assert (error.status, error.unknown, error.retry_after_ms) == (status, unknown, 3000)


@each_case("body", [b"", b"<html>", b"[]", b'{"id": 5}', b"\xff", b"[" * 100_000])
def test_an_answer_of_something_else_may_come_from_a_server_on_the_way(body: bytes) -> None:
    error = error_from(200, body, call=calls.query("a"))
    assert isinstance(error, Unavailable)
    assert (error.status, error.unknown) == (200, True)


# What is sent


def sent(call: Call[Any]) -> tuple[str, str, Any]:
    return call.method, call.path, None if call.body is None else json.loads(call.body)


@each_case(
    ("call", "method", "path", "body"),
    [
        (calls.update("a", delay="1h30m", ttl=None), "POST", "/update", {"id": "a", "delay": 5400, "ttl": None}),
        (calls.update("a", at=AT), "POST", "/update", {"id": "a", "execute_time": "2027-01-15T08:00:00+00:00"}),
        (calls.update("a", retry=0, ttl=UNSET), "POST", "/update", {"id": "a", "retry": 0}),
        (calls.job("j/1", "r&1"), "GET", "/jobs/j%2F1?run=r%261", None),
        (topic_calls.topic("shop/ä b"), "GET", "/topics/shop%2F%C3%A4%20b", None),
        (topic_calls.policy(namespace_scope("shop")), "GET", "/namespaces/shop/policy?applied=true", None),
        (
            topic_calls.set_policy("a", {"max_delay": "7d", "rate": 5, "ttl": timedelta(hours=1), "retry": None}),
            "PATCH",
            "/topics/a/policy",
            {"max_delay": 604_800, "rate": 5, "ttl": 3600, "retry": None},
        ),
        (topic_calls.unset_policy("a", ["rate"]), "PATCH", "/topics/a/policy", {"rate": None}),
        (topic_calls.unset_policy("a", []), "DELETE", "/topics/a/policy", None),
        (topic_calls.topics("shop"), "GET", "/topics?limit=500&namespace=shop", None),
        (
            consumer_calls.claim("jobs", None, lease=None, wait="1m"),
            "POST",
            "/claim",
            {"topics": ["jobs"], "wait": 60},
        ),
        (
            consumer_calls.claim({"a": 2}, 3, lease=60, wait=0),
            "POST",
            "/claim",
            {"topics": {"a": 2}, "max": 3, "lease": 60, "wait": 0},
        ),
        (consumer_calls.ack("token"), "POST", "/ack", {"leases": ["token"]}),
        (
            consumer_calls.nack(["x"], delay="5m", message="m", reason=None, dead=False, busy=True),
            "POST",
            "/nack",
            {"leases": ["x"], "delay": 300, "message": "m", "busy": True},
        ),
    ],
)
def test_a_call_is_made_of_its_arguments(call: Call[Any], method: str, path: str, body: Any) -> None:
    assert sent(call) == (method, path, body)


def test_a_create_without_an_id_gets_one_and_has_it_remembered() -> None:
    items = [calls.create_item(calls.draft("order", "hi", delay="15m"), NOW) for _ in range(2)]
    first, second = (json.loads(item.body) for item in items)
    assert first == {"topic": "order", "content": "hi", "delay": 900, "id": items[0].task_id, "remember": 900}
    assert second["id"] > first["id"]
    assert calls.create(items[0]).safe


def test_a_create_with_an_id_is_sent_as_it_is() -> None:
    item = calls.create_item(calls.draft("order", id="a", remember="1d", headers={"x": "y"}), NOW)
    fields = {"topic": "order", "content": "", "id": "a", "remember": 86_400, "headers": {"x": "y"}}
    assert json.loads(item.body) == fields


def test_a_create_whose_first_answer_was_lost_has_created_its_task() -> None:
    answer = b'{"id": "a", "created": false, "due_at": "2027-01-15T08:00:00.000Z"}'
    own, made = (calls.create_item(calls.draft("order", id=id), NOW) for id in ("a", None))
    due_at = datetime(2027, 1, 15, 8, tzinfo=UTC)
    assert own.decode(answer) == Enqueued(id="a", created=False, due_at=due_at)
    assert made.decode(answer) == Enqueued(id="a", created=True, due_at=due_at)


@each_case(
    ("arguments", "text"),
    [
        ({"delay": 5, "at": AT}, "at: expected either delay or at, got both"),
        ({"at": datetime(2027, 1, 15)}, 'at: expected a time with its zone, got "2027-01-15T00:00:00"'),
        ({"delay": "soon"}, 'delay: expected a duration, like 15, 500ms, 15s, 10m, 2h or 7d, got "soon"'),
        ({"delay": float("nan")}, "delay: expected a number of seconds, got nan"),
        ({"ttl": float("inf")}, "ttl: expected a number of seconds, got inf"),
    ],
)
def test_what_json_cannot_say_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused) as refused:
        calls.draft("order", **arguments)
    assert (str(refused.value), refused.value.field) == (text, text.partition(":")[0])


def test_a_text_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"^content: expected Unicode text"):
        calls.create_item(calls.draft("order", "\ud800"), NOW)


# Batches


def a_run(*ids: str) -> BatchRun[Any]:
    return BatchRun.of_batch("/query/batch", [calls.query_item(id) for id in ids])


def next_of(run: BatchRun[Any]) -> BatchCall[Any]:
    call = run.next()
    assert call is not None
    return call


def ids_in(call: Call[Any]) -> list[str]:
    return [json.loads(line)["id"] for line in (call.body or b"").splitlines()]


def results(*given: dict[str, Any]) -> bytes:
    return json.dumps({"results": given}).encode()


def info(id: str) -> dict[str, Any]:
    return {"id": id, "topic": "order", "state": "delay", "attempts": 0, "has_retry": 0}


def failed(status: int, detail: str = "why") -> dict[str, Any]:
    return {"error": {"status": status, "detail": detail}}


def test_a_batch_sends_again_only_the_items_that_failed() -> None:
    run = a_run("a", "b", "c", "d")
    call = next_of(run)
    error = error_from(200, results(info("a"), failed(503), failed(404), failed(503)), call=call)
    assert pause(0, error, call, 1.0) == 0.1
    assert ids_in(call) == ["b", "d"]
    read(call, 200, None, results(info("b"), info("d")), NOW)
    assert run.next() is None
    assert [type(result).__name__ for result in run.results()] == ["Info", "Info", "NotFound", "Info"]
    assert [getattr(result, "id", None) for result in run.results()] == ["a", "b", None, "d"]


def test_tasks_that_do_not_fit_in_an_answer_are_asked_for_again_at_once() -> None:
    run = a_run("a", "b")
    call = next_of(run)
    error = error_from(200, results(info("a"), failed(413)), call=call)
    assert pause(5, error, call, 1.0) == 0
    assert ids_in(call) == ["b"]
    read(call, 200, None, results(failed(413)), NOW)  # one that fits in no answer
    assert isinstance(run.results()[1], TooLarge)


def test_a_batch_that_is_too_large_for_a_server_on_the_way_is_sent_in_halves() -> None:
    run = a_run("a", "b", "c")
    next_of(run)
    run.note_failure(TooLarge("too large"))
    for ids in (["a"], ["b", "c"]):
        call = next_of(run)
        assert ids_in(call) == ids
        read(call, 200, None, results(*map(info, ids)), NOW)
    assert run.next() is None
    assert [getattr(result, "id", result) for result in run.results()] == ["a", "b", "c"]


def test_an_item_that_is_too_large_alone_does_not_stop_the_others() -> None:
    run = a_run("a", "b")
    next_of(run)
    run.note_failure(TooLarge("too large"))
    next_of(run)
    run.note_failure(TooLarge("too large"))
    read(next_of(run), 200, None, results(info("b")), NOW)
    assert run.next() is None
    assert isinstance(run.results()[0], TooLarge)


def test_a_batch_of_which_a_part_fails_has_the_error_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.batch_split.BATCH_BYTES", 20)
    run = a_run("aaaa", "bbbb", "cccc")
    read(next_of(run), 200, None, results(info("aaaa")), NOW)
    next_of(run)
    error = Unavailable("away", 503)
    run.note_failure(error)
    assert run.next() is None
    assert run.results()[1:] == [error, error]


def test_a_batch_of_which_nothing_could_be_sent_raises_the_error() -> None:
    run = a_run("a", "b")
    next_of(run)
    run.note_failure(Unavailable("away", 503))
    assert run.next() is None
    with pytest.raises(Unavailable):
        run.results()


def test_an_answer_to_another_batch_is_no_answer() -> None:
    assert isinstance(error_from(200, results(info("a")), call=next_of(a_run("a", "b"))), Unavailable)


# Durability


def test_a_level_that_was_missed_is_told_with_the_id_and_may_be_asked_for_again() -> None:
    problem = {
        "type": "/problems/not-durable", "title": "x", "status": 503, "detail": "stored, but not there",
        "id": "a", "stored": True, "durability": "primary",
    }  # fmt: skip
    with pytest.raises(DurabilityMissed) as missed:
        read(CALL, 503, "1", json.dumps(problem).encode(), NOW)

    error = missed.value
    assert (error.id, error.reached, error.unknown, error.retry_after_ms) == ("a", "primary", True, 1000)
    assert pause(0, error, a_call(safe=True), 1.0) == 1
    assert pause(0, error, a_call(safe=False), 1.0) is None


def test_a_redrive_of_a_topic_that_missed_its_level_does_not_move_more_tasks_by_itself() -> None:
    redrive = calls.redrive(
        id=None, topic="orders", reason=None, died_after=None, died_before=None, rate=1, durability="replica", now=NOW
    )
    missed = DurabilityMissed("stored, but not there", None, "primary", retry_after_ms=1000)

    assert pause(0, missed, redrive, 1.0) is None
    assert pause(0, Unavailable("lost", None, unknown=True), redrive, 1.0) is not None


def test_calls_ask_for_a_level() -> None:
    draft = calls.draft("orders", durability="replica")
    create = calls.create(calls.create_item(draft, NOW))
    others: list[Call[Any]] = [
        calls.update("a", content="x", durability="replica"),
        calls.delete("a", "replica"),
        calls.run_now("a", "replica"),
    ]
    many = next_of(BatchRun.of_ids("/redrive", [calls.due_item(id) for id in ("a", "b")], "replica"))
    assert [json.loads(call.body or b"")["durability"] for call in (create, *others, many)] == ["replica"] * 5
    assert [json.loads(half.body or b"")["durability"] for half in many.halves()] == ["replica"] * 2
    assert create.decode(b'{"id": "a", "durability": "replica"}').durability == "replica"
