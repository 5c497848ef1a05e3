"""A connection of later's own client: what comes in the turn in which a call ends."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from later.core.origin import Origin
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.client_settings import ClientSettings
from later.delivery.connection import Connection
from later.delivery.deadlines import Deadlines
from later.delivery.http_client import LocalFault
from later.delivery.large_reads import PIECE_BYTES, LargeReads
from later.delivery.own_client import OwnClient
from later.delivery.request import CallbackRequest
from tests.builders import NO_GUARD
from tests.cases import each_case
from tests.receivers import DONE, Receiver, answers, never_answers

pytestmark = pytest.mark.usefixtures("own_client")

BODY = b'{"code": 100}'
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def a_connection(receiver: Receiver, large_reads: LargeReads | None = None) -> AsyncIterator[Connection]:
    """Open a connection to the receiver, which is kept nowhere."""
    loop = asyncio.get_running_loop()
    large_reads = large_reads or LargeReads(loop)
    origin = Origin.of(receiver.url)
    transport, connection = await loop.create_connection(
        lambda: Connection(origin, Deadlines(loop), large_reads, lambda _: None, lambda _: None),
        origin.host,
        origin.port,
    )
    try:
        yield connection
    finally:
        transport.abort()


async def begin_call(connection: Connection) -> asyncio.Task[Reply]:
    """Return a call that waits for its reply."""
    deadline = asyncio.get_running_loop().time() + 60
    call = asyncio.create_task(connection.exchange(b"POST / HTTP/1.1\r\n\r\n", b"", deadline, decided_by_status=False))
    await asyncio.sleep(0)
    return call


class TestCancelledCall:
    async def test_a_reply_that_completes_in_the_same_turn_is_returned(self) -> None:
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            call.cancel()
            connection.data_received(DONE)
            assert await call == Reply(status=200, body=BODY)

    async def test_a_reply_that_has_just_come_is_returned(self) -> None:
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.data_received(DONE)
            call.cancel()
            assert await call == Reply(status=200, body=BODY)

    async def test_a_large_reply_that_has_come_is_parsed_to_its_end_and_returned(self) -> None:
        """The receiver has done the task: a stop must not give it back."""
        body = BODY.ljust(60_000)
        head = b"HTTP/1.1 200 OK\r\nX: %s\r\nContent-Length: %d\r\n\r\n" % (b"x" * 30_000, len(body))
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.data_received(head + body)
            call.cancel()
            assert await call == Reply(status=200, body=body)

    async def test_the_end_of_a_connection_without_an_answer_is_no_outcome(self) -> None:
        """Otherwise the call would begin anew, on another connection, and outlive the stop that cancelled it."""
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.eof_received()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


@each_case("number", [errno.ENOBUFS, errno.ENOMEM])
async def test_a_request_for_which_this_machine_has_no_memory_is_a_local_fault(number: int) -> None:
    async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
        call = await begin_call(connection)
        connection.connection_lost(OSError(number, os.strerror(number)))
        with pytest.raises(LocalFault, match=os.strerror(number)):
            await call


async def test_a_closed_client_opens_no_connection() -> None:
    async with Receiver(answers(DONE)).listen() as receiver:
        client = OwnClient(ClientSettings(max_lookups=1, max_idle=1, guard=NO_GUARD))
        await client.start()
        await client.close()
        with pytest.raises(LocalFault, match="the client was closed"):
            await client.post(CallbackRequest(Origin.of(receiver.url), "/", b"POST / HTTP/1.1\r\n", b""), 60, Ack.AUTO)


MAX_READ = 256_000
"""The most that uvloop reads at once."""


class TestLargeReads:
    @each_case(
        ("start", "piece"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            (b"", b"\r\n"),
            (OK, b"X: x\r\n"),
            (CHUNKED, b"1\r\nx\r\n"),
            (CHUNKED, b"0"),
            (CHUNKED + b"0\r\n", b"X: x\r\n"),
        ],
    )
    async def test_fifty_replies_without_an_end_hold_up_no_turn_of_the_event_loop_for_5_ms(
        self, start: bytes, piece: bytes
    ) -> None:
        sent = (start + piece * MAX_READ)[:MAX_READ]
        async with Receiver(never_answers).listen() as receiver:
            for _ in range(3):  # another program may have slowed this one down
                longest_turn_s = await measure_longest_turn_s(receiver, sent)
                if longest_turn_s < 0.005:
                    break
        assert longest_turn_s < 0.005

    async def test_a_large_reply_is_read_whole(self) -> None:
        body = b'{"code": 100}'.ljust(60_000)
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        async with Receiver(answers(*[reply] * 3)).listen() as receiver:
            client = OwnClient(ClientSettings(max_lookups=1, max_idle=1, guard=NO_GUARD))
            await client.start()
            head = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
            request = CallbackRequest(Origin.of(receiver.url), "/", head, b"")
            for _ in range(3):
                assert await client.post(request, 60, Ack.AUTO) == Reply(status=200, body=body)
            assert receiver.connections == 1
            await client.close()

    async def test_no_more_is_read_of_a_connection_before_what_has_come_is_parsed(self) -> None:
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            transport = connection._transport
            assert transport is not None
            connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n".ljust(60_000))
            was_reading = transport.is_reading()
            for _ in range(60_000 // PIECE_BYTES):
                await asyncio.sleep(0)
            assert (was_reading, transport.is_reading()) == (False, True)
            call.cancel()

    async def test_what_follows_a_large_reply_closes_its_connection(self) -> None:
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.data_received(DONE + b" " * 2 * PIECE_BYTES)
            assert await call == Reply(status=200, body=BODY)
            assert not connection.is_open

    async def test_a_large_read_before_the_end_of_the_connection_is_parsed_before_it(self) -> None:
        reply = (b"HTTP/1.1 200 OK\r\n\r\n" + BODY).ljust(60_000)
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.data_received(reply)
            connection.eof_received()
            assert (await call).body == BODY.ljust(60_000 - 19)

    async def test_a_call_that_ends_before_its_large_read_is_parsed_leaves_nothing_behind(self) -> None:
        async with Receiver(never_answers).listen() as receiver, a_connection(receiver) as connection:
            call = await begin_call(connection)
            connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n".ljust(200_000))
            connection.on_deadline()
            with pytest.raises(TimeoutError):
                await call
            assert not connection.parse_piece()


async def measure_longest_turn_s(receiver: Receiver, sent: bytes) -> float:
    """Return the CPU time of the longest turn of the event loop, if `sent` comes on fifty connections at once."""
    large_reads = LargeReads(asyncio.get_running_loop())
    async with AsyncExitStack() as opened:
        connections = [await opened.enter_async_context(a_connection(receiver, large_reads)) for _ in range(50)]
        calls = [await begin_call(connection) for connection in connections]
        began, longest_s = time.thread_time(), 0.0
        for connection in connections:
            connection.data_received(sent)
        while True:
            await asyncio.sleep(0)
            ended = time.thread_time()
            began, longest_s = ended, max(longest_s, ended - began)
            unread = [connection for connection in connections if connection._unread]
            if not unread:
                break
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return longest_s
