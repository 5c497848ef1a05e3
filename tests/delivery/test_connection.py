"""A connection of later's own client: what comes in the turn in which a call ends."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from later.core.origin import Origin
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.connection import Connection
from later.delivery.deadlines import Deadlines
from later.delivery.http_client import LocalFault
from later.delivery.own_client import OwnClient
from later.delivery.request import CallbackRequest
from tests.builders import NO_GUARD
from tests.cases import each_case
from tests.receivers import DONE, Receiver, answers, never_answers

pytestmark = pytest.mark.usefixtures("own_client")

BODY = b'{"code": 100}'


@asynccontextmanager
async def a_connection(receiver: Receiver) -> AsyncIterator[Connection]:
    """Open a connection to the receiver, which is kept nowhere."""
    loop = asyncio.get_running_loop()
    origin = Origin.of(receiver.url)
    transport, connection = await loop.create_connection(
        lambda: Connection(origin, Deadlines(loop), lambda _: None, lambda _: None), origin.host, origin.port
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
        client = OwnClient(max_lookups=1, max_idle=1, guard=NO_GUARD)
        await client.start()
        await client.close()
        with pytest.raises(LocalFault, match="the client was closed"):
            await client.post(CallbackRequest(Origin.of(receiver.url), "/", b"", b""), 60, Ack.AUTO)
