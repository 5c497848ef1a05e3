"""The channel between a supervisor and a process: every question ends, in an answer or in none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from later.core.errors import StoreDown
from later.processes.rpc import MAX_UNREAD_BYTES, Channel, Handlers, RpcError, open_channel

LARGE = "x" * 5_000_000


async def echo(about: Any) -> Any:
    return about


async def never(about: object) -> None:
    await asyncio.Event().wait()


async def refuse(about: object) -> None:
    raise StoreDown("the store is away")


async def fail(about: object) -> None:
    raise ZeroDivisionError


@asynccontextmanager
async def two_ends(first: Handlers, second: Handlers) -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    ends = (await open_channel(one, first), await open_channel(other, second))
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


@asynccontextmanager
async def an_end(answers: Handlers | None = None) -> AsyncIterator[tuple[Channel, socket.socket]]:
    """One end, and the socket that is the other one."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    end = await open_channel(ours, answers or {})
    with theirs:
        yield end, theirs
        end.close()


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    """One end; the other one answers."""
    async with two_ends({}, {"echo": echo, "never": never, "refuse": refuse, "fail": fail}) as (end, _):
        yield end


async def sent(data: bytes, end: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(end, data)


async def received(end: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(end, 1024)


@pytest.mark.parametrize("about", [None, 0, "", "ü\n\u2028", [1, {"a": None}], 1.5, True])
async def test_an_answer_is_what_was_said(channel: Channel, about: object) -> None:
    assert await channel.call("echo", about) == about


async def test_large_questions_get_large_answers(channel: Channel) -> None:
    assert await channel.call("echo", LARGE, timeout_s=30) == LARGE


async def test_each_question_gets_its_own_answer_in_whatever_order(channel: Channel) -> None:
    hanging = asyncio.create_task(channel.call("never", timeout_s=30))
    assert await asyncio.gather(*(channel.call("echo", i) for i in range(100))) == list(range(100))
    assert not hanging.done()
    hanging.cancel()


async def test_either_end_may_ask_while_it_answers() -> None:
    async def ask_back(about: object) -> Any:
        return await right.call("echo", about)

    async with two_ends({"echo": echo}, {"ask back": ask_back}) as (left, right):
        assert await left.call("ask back", 7) == 7


async def test_an_answer_that_comes_in_pieces_is_put_together() -> None:
    async with an_end() as (end, other):
        asking = asyncio.create_task(end.call("anything"))
        assert await received(other) == b'{"number":0,"ask":"anything"}\n'
        for piece in (b'{"num', b'ber":0,"abo', b'ut":[1', b"]}", b"\n"):
            await sent(piece, other)
            await asyncio.sleep(0)
        assert await asking == [1]


async def test_several_lines_in_one_piece_are_taken_apart() -> None:
    async with an_end({"echo": echo}) as (_, other):
        await sent(b'{"number":5,"ask":"echo","about":1}\n{"number":6,"ask":"echo"}\n', other)
        answers = b""
        while answers.count(b"\n") < 2:
            answers += await received(other)
        assert answers == b'{"number":5,"about":1}\n{"number":6}\n'


async def test_a_reason_why_not_is_handed_on(channel: Channel) -> None:
    with pytest.raises(RpcError, match="the store is away"):
        await channel.call("refuse")


@pytest.mark.parametrize("what", ["fail", "no such question"])
async def test_a_fault_is_logged_where_it_is_and_is_no_answer(channel: Channel, what: str) -> None:
    with capture_logs() as logs, pytest.raises(RpcError, match="fault of later's own"):
        await channel.call(what)
    assert [(event["event"], event["question"]) for event in logs] == [("question failed", what)]
    assert await channel.call("echo", 1) == 1


async def test_nobody_waits_longer_than_he_said(channel: Channel) -> None:
    with pytest.raises(RpcError, match="no answer within 0 s: never"):
        await channel.call("never", timeout_s=0)


async def test_an_answer_that_comes_too_late_is_let_go() -> None:
    async with an_end() as (end, other):
        with pytest.raises(RpcError):
            await end.call("late", timeout_s=0)
        await sent(b'{"number":0,"about":"late"}\n{"number":1,"about":"in time"}\n', other)
        assert await end.call("next") == "in time"


async def test_who_waits_when_the_other_end_goes_is_told() -> None:
    async with an_end() as (end, other):
        asking = [asyncio.create_task(end.call("anything", timeout_s=30)) for _ in range(3)]
        await received(other)
        other.close()
        told = await asyncio.gather(*asking, return_exceptions=True)
    assert [(type(error), str(error)) for error in told if isinstance(error, BaseException)] == [
        (RpcError, "the other end is gone")
    ] * 3


async def test_an_end_that_is_gone_is_noticed_and_not_asked() -> None:
    async with an_end() as (end, other):
        other.close()
        await asyncio.wait({end.closed})
        with pytest.raises(RpcError, match="nobody is there"):
            await end.call("anything", timeout_s=30)


@pytest.mark.parametrize("cut", [b'{"number":0,"about":"ha', b'{"number":0,"about":"whole"}'])
async def test_half_a_line_is_no_answer(cut: bytes) -> None:
    async with an_end() as (end, other):
        asking = asyncio.create_task(end.call("anything", timeout_s=30))
        await received(other)
        await sent(cut, other)
        other.close()
        with pytest.raises(RpcError, match="the other end is gone"):
            await asking


@pytest.mark.parametrize("nonsense", [b"\n", b"{}\n", b"\xff\xff\n", b'{"number":"one"}\n', b"[]\n"])
async def test_an_end_that_talks_nonsense_is_left(nonsense: bytes) -> None:
    async with an_end() as (end, other):
        with capture_logs() as logs:
            await sent(nonsense, other)
            await asyncio.wait({end.closed})
        assert [event["event"] for event in logs] == ["channel failed"]
        assert await received(other) == b""


async def test_an_end_that_reads_nothing_is_asked_no_more() -> None:
    async with an_end() as (end, _):
        with pytest.raises(RpcError, match="no answer within"):
            await end.call("anything", "x" * 2 * MAX_UNREAD_BYTES, timeout_s=0)
        with pytest.raises(RpcError, match="nobody is there"):
            await end.call("anything", timeout_s=30)


async def test_what_is_being_answered_ends_with_the_channel() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def answer(about: object) -> None:
        began.set()
        try:
            await never(about)
        finally:
            ended.set()

    async with an_end({"anything": answer}) as (_, other):
        await sent(b'{"number":0,"ask":"anything"}\n', other)
        await began.wait()
        other.close()
        await ended.wait()


async def test_whoever_closes_his_end_ends_the_other() -> None:
    async with two_ends({}, {}) as (one, other):
        one.close()
        await asyncio.wait({other.closed})
        with pytest.raises(RpcError):
            await one.call("anything", timeout_s=30)
