"""The answers of a receiver, which knows no framework."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from later.core.policy import Ack
from later.core.reply import Reply, parse_reply
from later.core.retry import Outcome, OutcomeKind
from later.core.signing import Secret
from later.handlers.control import Busy, Dead, Hold, Retry
from later.handlers.registry import Handlers
from later.handlers.task import Task
from later.receiver.callback import Answer, format_outcome, read_call
from tests.cases import each_case
from tests.receiver.calls import build_call, build_receiver

CONTROLS = [
    Retry("größer: 100%\nno", after=300),
    Retry("x" * 300),
    Busy("later", after=0.5),
    Busy(),
    Hold("90.2s", "r"),
]
DEEP = b'{"id":"t1","topic":"order","more":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
OUTCOMES = [*(control.to_outcome() for control in [*CONTROLS, Dead("no such order")]), Outcome(kind=OutcomeKind.DONE)]


async def call(handlers: Handlers, topic: str = "order", **headers: Any) -> Answer:
    return await build_receiver(handlers).answer("POST", *build_call(topic, **headers))


@each_case("outcome", OUTCOMES)
def test_the_daemon_reads_the_outcome_that_was_meant(outcome: Outcome) -> None:
    answer = format_outcome(outcome)
    reply = Reply(
        status=answer.status,
        body=answer.body or None,
        retry_after=answer.headers.get("retry-after"),
        later_after=answer.headers.get("later-after"),
        later_reason=answer.headers.get("later-reason"),
    )
    for ack in Ack:
        read = parse_reply(reply, 0, ack)
        assert read.kind is outcome.kind
        if read.kind is not OutcomeKind.DONE:
            assert read.message == " ".join(outcome.message[:200].split())
            assert read.later_after_ms == outcome.later_after_ms
        if read.kind is OutcomeKind.BUSY and outcome.retry_after_ms:
            assert read.retry_after_ms == 91_000


async def test_the_handler_gets_the_task_and_its_attempt() -> None:
    handlers, seen = Handlers(), list[Task[Any]]()

    @handlers.handler
    async def order(payload: int, task: Task[str]) -> None:
        seen.append(task)

    headers, body = build_call(
        content="7",
        later_attempt="3", later_due="2026-11-23T10:00:00.250Z", later_created="2026-11-22T10:00:00.000Z",
        later_timeout="30", later_failures="2", later_max_retry="5", x_tenant="t",
    )  # fmt: skip
    answer = await build_receiver(handlers, state="state").answer("POST", headers, body)
    assert answer == (200, {"content-type": "application/json"}, b'{"code":100}')
    [task] = seen
    assert (task.id, task.topic, task.attempt, task.failures, task.retries_left) == ("t1", "order", 3, 2, 3)
    assert task.due_at == datetime(2026, 11, 23, 10, 0, 0, 250_000, UTC)
    assert task.created_at == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert (task.headers["x-tenant"], task.state) == ("t", "state")
    assert 20 < task.time_left() <= 30
    with pytest.raises(RuntimeError, match="cannot be extended"):
        await task.extend()


def test_a_call_without_the_headers_of_later_has_defaults() -> None:
    huge = {"later-attempt": "9" * 400, "later-timeout": "9" * 400}
    body = b'{"id": "t1", "topic": "order", "context": {"request": "r-1"}, "further": [1]}'
    wrong = {"later-attempt": "x", "later-timeout": "nan", "later-due": "soon", "later-failures": "-1"}
    for headers in ({}, wrong, huge):
        task, content = read_call(headers, body, 0, None)
        assert (task.attempt, task.created_at, task.failures, task.retries_left, content) == (1, None, None, None, "")
        assert task.context == {"request": "r-1"}


@each_case(
    "method, headers, body, status",
    [
        ("GET", {}, b"", 405),
        ("POST", {}, None, 413),
        ("POST", {}, b'{"id":"t1","topic":"order"}', 401),
        ("POST", build_call(age_s=400)[0], build_call()[1], 401),
        ("POST", build_call(secret=Secret(b"x" * 32))[0], build_call()[1], 401),
    ],
)
async def test_calls_that_are_not_answered_by_a_handler(
    method: str, headers: dict[str, str], body: bytes | None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()

    @handlers.handler
    async def order() -> None:
        pytest.fail("the handler ran")

    assert (await build_receiver(handlers).answer(method, headers, body)).status == status
    assert "topic" not in caplog.text


@each_case("body", [b"", b"{}", b"[]", b'{"id":"t1","topic":1}', b"\xff", b'{"id":"\xff"}', b'{"id":"t1"', DEEP])
async def test_a_body_that_is_no_call_is_400(body: bytes) -> None:
    assert (await build_receiver(Handlers(), signed=False).answer("POST", {}, body)).status == 400


def test_a_receiver_without_keys_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build_receiver(Handlers(), signed=False)
    assert caplog.text.count("calls are not verified") == 1


async def test_later_verify_asks_for_the_topics_and_runs_nothing() -> None:
    handlers = Handlers()

    @handlers.handler("shop/größe", aliases=["old"])
    async def order() -> None:
        pytest.fail("the handler ran")

    answer = await call(handlers, later_verify="1")
    assert (answer.status, answer.headers) == (204, {"later-topics": "shop/gr%C3%B6%C3%9Fe,old"})


async def test_a_topic_without_handler_is_busy_for_a_rolling_deploy() -> None:
    answer = await call(Handlers(), "new")
    assert (answer.status, answer.headers) == (503, {"later-reason": "no handler for new in this app"})


async def test_the_deadline_of_a_call_ends_its_handler_in_time() -> None:
    handlers = Handlers()

    @handlers.handler
    async def order() -> None:
        await asyncio.Event().wait()

    answer = await call(handlers, later_timeout="0.51")
    assert (answer.status, answer.headers["later-reason"][:15]) == (500, "not done within")


async def test_a_call_waits_for_a_slot_and_is_busy_if_none_comes_free() -> None:
    handlers, begun, end = Handlers(), asyncio.Event(), asyncio.Event()

    @handlers.handler(concurrency=1)
    async def order() -> None:
        begun.set()
        await end.wait()

    receiver = build_receiver(handlers)
    first = asyncio.create_task(receiver.answer("POST", *build_call()))
    await begun.wait()
    assert (await receiver.answer("POST", *build_call(later_timeout="0.02"))).status == 503
    waiting = asyncio.create_task(receiver.answer("POST", *build_call(later_timeout="60")))
    await asyncio.sleep(0)
    end.set()
    assert [(await answer).status for answer in (first, waiting)] == [200, 200]
