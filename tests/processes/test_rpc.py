"""Calls between a supervisor and a child process: every call ends, with an answer or an error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from later.address_types import Address
from later.config import load
from later.core.errors import StoreDown
from later.processes.rpc import (
    MAX_UNREAD_BYTES,
    Channel,
    Handlers,
    RpcError,
    decode_startup,
    encode_startup,
    open_channel,
)
from tests.cases import each_case

LARGE = "x" * 5_000_000
ADDRESSES = [Address("127.0.0.1", 8080), Address("::1", 8080)]
OPTIONS = {"redis": "redis://me:secret@a:1/2", "health": "[::1]:9000", "max_body": "2KiB", "retry_jitter": "0.5"}


async def echo(params: Any) -> Any:
    return params


async def never(params: object) -> None:
    await asyncio.Event().wait()


async def refuse(params: object) -> None:
    raise StoreDown("the store is down")


async def fail(params: object) -> None:
    raise ZeroDivisionError


async def an_open_channel(end: socket.socket, handlers: Handlers) -> Channel:
    channel = await open_channel(end)
    channel.serve(handlers)
    return channel


@asynccontextmanager
async def two_channels(left: Handlers, right: Handlers) -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    channels = (await an_open_channel(one, left), await an_open_channel(other, right))
    try:
        yield channels
    finally:
        for channel in channels:
            channel.close()


@asynccontextmanager
async def a_channel(handlers: Handlers | None = None) -> AsyncIterator[tuple[Channel, socket.socket]]:
    """Yield a channel, and the plain socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = await an_open_channel(ours, handlers or {})
    with theirs:
        yield channel, theirs
        channel.close()


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    """A channel whose peer has four methods."""
    async with two_channels({}, {"echo": echo, "never": never, "refuse": refuse, "fail": fail}) as (left, _):
        yield left


async def write(data: bytes, peer: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(peer, data)


async def read(peer: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(peer, 1024)


@pytest.mark.parametrize("params", [None, 0, "", "ü\n\u2028", [1, {"a": None}], 1.5, True])
async def test_an_answer_arrives_as_it_was_returned(channel: Channel, params: object) -> None:
    assert await channel.call("echo", params) == params


async def test_messages_may_be_large(channel: Channel) -> None:
    assert await channel.call("echo", LARGE, timeout_s=30) == LARGE


async def test_each_call_gets_its_own_answer_in_any_order(channel: Channel) -> None:
    pending = asyncio.create_task(channel.call("never", timeout_s=30))
    assert await asyncio.gather(*(channel.call("echo", i) for i in range(100))) == list(range(100))
    assert not pending.done()
    pending.cancel()


async def test_a_handler_may_call_back() -> None:
    async def call_back(params: object) -> Any:
        return await right.call("echo", params)

    async with two_channels({"echo": echo}, {"call back": call_back}) as (left, right):
        assert await left.call("call back", 7) == 7


async def test_an_answer_in_several_pieces_is_put_together() -> None:
    async with a_channel() as (channel, peer):
        answer = asyncio.create_task(channel.call("anything"))
        assert await read(peer) == b'{"number":0,"method":"anything"}\n'
        for piece in (b'{"num', b'ber":0,"dat', b'a":[1', b"]}", b"\n"):
            await write(piece, peer)
            await asyncio.sleep(0)
        assert await answer == [1]


async def test_several_messages_in_one_piece_are_split() -> None:
    async with a_channel({"echo": echo}) as (_, peer):
        await write(b'{"number":5,"method":"echo","data":1}\n{"number":6,"method":"echo"}\n', peer)
        answers = b""
        while answers.count(b"\n") < 2:
            answers += await read(peer)
        assert answers == b'{"number":5,"data":1}\n{"number":6}\n'


async def test_a_handlers_error_is_passed_on(channel: Channel) -> None:
    with pytest.raises(RpcError, match="the store is down"):
        await channel.call("refuse")


@pytest.mark.parametrize("method", ["fail", "no such method"])
async def test_a_bug_is_logged_where_it_is_and_the_call_fails(channel: Channel, method: str) -> None:
    with capture_logs() as logs, pytest.raises(RpcError, match=r"^internal error: "):
        await channel.call(method)
    assert [(event["event"], event["method"]) for event in logs] == [("call failed", method)]
    assert await channel.call("echo", 1) == 1


async def test_a_call_fails_after_its_timeout(channel: Channel) -> None:
    with pytest.raises(RpcError, match="no answer within 0 s: never"):
        await channel.call("never", timeout_s=0)


async def test_a_late_answer_is_dropped() -> None:
    async with a_channel() as (channel, peer):
        with pytest.raises(RpcError):
            await channel.call("late", timeout_s=0)
        await write(b'{"number":0,"data":"late"}\n{"number":1,"data":"in time"}\n', peer)
        assert await channel.call("next") == "in time"


async def test_pending_calls_fail_when_the_peer_is_gone() -> None:
    async with a_channel() as (channel, peer):
        calls = [asyncio.create_task(channel.call("anything", timeout_s=30)) for _ in range(3)]
        await read(peer)
        peer.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(error), str(error)) for error in results if isinstance(error, BaseException)] == [
        (RpcError, "the other process is gone")
    ] * 3


async def test_a_peer_that_is_gone_is_noticed_and_not_called() -> None:
    async with a_channel() as (channel, peer):
        peer.close()
        await asyncio.wait({channel.closed})
        with pytest.raises(RpcError, match="gone or reads nothing"):
            await channel.call("anything", timeout_s=30)


@each_case("part", [b'{"number":0,"data":"ha', b'{"number":0,"data":"whole"}'])
async def test_a_truncated_message_is_not_an_answer(part: bytes) -> None:
    async with a_channel() as (channel, peer):
        answer = asyncio.create_task(channel.call("anything", timeout_s=30))
        await read(peer)
        await write(part, peer)
        peer.close()
        with pytest.raises(RpcError, match="the other process is gone"):
            await answer


@each_case("garbage", [b"\n", b"{}\n", b"\xff\xff\n", b'{"number":"one"}\n', b"[]\n"])
async def test_a_peer_that_sends_garbage_is_disconnected(garbage: bytes) -> None:
    async with a_channel() as (channel, peer):
        with capture_logs() as logs:
            await write(garbage, peer)
            await asyncio.wait({channel.closed})
        assert [event["event"] for event in logs] == ["channel failed"]
        assert await read(peer) == b""


async def test_a_peer_that_reads_nothing_is_not_called_again() -> None:
    async with a_channel() as (channel, _):
        with pytest.raises(RpcError, match="no answer within"):
            await channel.call("anything", "x" * 2 * MAX_UNREAD_BYTES, timeout_s=0)
        with pytest.raises(RpcError, match="gone or reads nothing"):
            await channel.call("anything", timeout_s=30)


async def test_handlers_are_cancelled_with_the_channel() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(params: object) -> None:
        began.set()
        try:
            await never(params)
        finally:
            ended.set()

    async with a_channel({"anything": wait}) as (_, peer):
        await write(b'{"number":0,"method":"anything"}\n', peer)
        await began.wait()
        peer.close()
        await ended.wait()


async def test_closing_one_end_closes_the_other() -> None:
    async with two_channels({}, {}) as (one, other):
        one.close()
        await asyncio.wait({other.closed})
        with pytest.raises(RpcError):
            await one.call("anything", timeout_s=30)


@each_case("command", ["up", "serve", "worker"])
@each_case("flags", [{}, OPTIONS, {"health": "off", "data": "/var/lib/later"}])
def test_configuration_and_addresses_arrive_unchanged(command: str, flags: dict[str, str]) -> None:
    config = load(command, flags, {})
    sent = msgspec.json.encode(encode_startup(config, ADDRESSES))
    assert decode_startup(msgspec.json.decode(sent)) == (config, ADDRESSES)


def test_a_supervisor_of_another_version_is_refused() -> None:
    with pytest.raises(RpcError, match=r"the supervisor is later 0\.0\.9.*restart"):
        decode_startup({**encode_startup(load("up", {}, {}), []), "version": "0.0.9"})
