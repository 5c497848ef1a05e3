"""The deadline of a call, in each of its phases."""

from __future__ import annotations

import asyncio

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.delivery.http_client import LocalFault
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.receivers import DONE, SHORT_TIMEOUT_MS, Connection, Receiver, a_sender, deliver_to, never_answers

pytestmark = pytest.mark.usefixtures("client")

TIMEOUT_MS = 50
"""Of calls that are never answered: nothing needs to happen in time."""


@each_case(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n"],
    ids=["status", "headers", "body"],
)
async def test_a_slow_reply_ends_at_the_deadline(start: bytes) -> None:
    async def drip(connection: Connection) -> None:
        await connection.read_request()
        await connection.write(start)
        while True:
            await connection.write(b"\r\n" if not start else b"x")
            await asyncio.sleep(0.01)

    outcome = await deliver_to(drip, timeout_ms=TIMEOUT_MS)
    assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="timeout", message="no complete answer within 0.05 s")


async def test_a_receiver_that_never_answers_is_a_timeout() -> None:
    assert (await deliver_to(never_answers, timeout_ms=TIMEOUT_MS)).reason == "timeout"


async def test_a_receiver_that_reads_nothing_is_a_timeout() -> None:
    never = asyncio.Event()

    async def read_nothing(_connection: Connection) -> None:
        await never.wait()

    assert (await deliver_to(read_nothing, timeout_ms=TIMEOUT_MS, content="x" * 20_000_000)).reason == "timeout"


async def test_an_endless_tls_handshake_is_a_timeout() -> None:
    async with Receiver(never_answers).listen() as receiver, a_sender(TIMEOUT_MS) as sender:
        outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
    assert outcome.reason == "timeout"


async def test_a_timeout_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def record(connection: Connection) -> None:
        await connection.wait_closed()
        closed.set()

    async with Receiver(record).listen() as receiver, a_sender(SHORT_TIMEOUT_MS) as sender:
        await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert await asyncio.wait_for(closed.wait(), 5)


async def test_a_cancelled_call_closes_the_connection() -> None:
    called, closed = asyncio.Event(), asyncio.Event()

    async def record(connection: Connection) -> None:
        await connection.read_request()
        called.set()
        await connection.wait_closed()
        closed.set()

    async with Receiver(record).listen() as receiver, a_sender() as sender:
        call = asyncio.create_task(sender.send(a_task(callback=receiver.url), 1, NOW))
        await called.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.wait_for(closed.wait(), 5)


CALL_PHASES = {
    "request": b"",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "status": b"HTTP/1.1 20",
    "headers": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nx",
}
"""The part of an answer that a receiver has sent when its call is cancelled."""


async def cancel_call(
    receiver: Receiver, reached: asyncio.Event, *, scheme: str = "http", calls_before: int = 0
) -> None:
    """Cancel a call when the receiver has set `reached`, and wait until its connection is closed."""
    async with a_sender() as sender:
        for _ in range(calls_before):
            await sender.send(a_task(callback=receiver.url), 1, NOW)
        task = a_task(callback=receiver.url.replace("http", scheme), content="x" * 300_000)
        call = asyncio.create_task(sender.send(task, 1, NOW))
        await reached.wait()
        await asyncio.sleep(0.01)  # the beginning of the answer arrives
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await receiver.wait_no_connection()


@each_case("calls_before", [0, 1], ids=["new", "kept"])
@each_case("phase", CALL_PHASES)
async def test_a_call_that_is_cancelled_in_any_phase_has_no_outcome_and_closes_its_connection(
    phase: str, calls_before: int
) -> None:
    """A stop gives the task of such a call back."""
    reached = asyncio.Event()

    async def stop_in_phase(connection: Connection) -> None:
        for _ in range(calls_before):
            await connection.read_request()
            await connection.write(DONE)
        await connection.read_head()
        await connection.write(CALL_PHASES[phase])
        reached.set()
        await connection.wait_closed()

    async with Receiver(stop_in_phase).listen() as receiver:
        await cancel_call(receiver, reached, calls_before=calls_before)


async def test_a_call_that_is_cancelled_during_the_handshake_closes_its_connection() -> None:
    reached = asyncio.Event()

    async def read_hello(connection: Connection) -> None:
        await connection.read_some()
        reached.set()
        await connection.wait_closed()

    async with Receiver(read_hello).listen() as receiver:
        await cancel_call(receiver, reached, scheme="https")


async def test_a_call_that_is_cancelled_after_a_decisive_status_still_has_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()

    async def begin_answer(connection: Connection) -> None:
        await connection.read_request()
        await connection.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 5\r\n\r\n")
        answered.set()
        await connection.wait_closed()

    monkeypatch.setattr("later.delivery.aiohttp_client.LINGER_S", 60)
    monkeypatch.setattr("later.delivery.connection.LINGER_S", 60)
    async with Receiver(begin_answer).listen() as receiver, a_sender() as sender:
        call = asyncio.create_task(sender.send(a_task(callback=receiver.url), 1, NOW))
        await answered.wait()
        await asyncio.sleep(0.05)  # the status arrives
        call.cancel()
        assert (await call).kind is OutcomeKind.GONE


async def test_closing_the_sender_ends_its_calls_without_an_outcome() -> None:
    called = asyncio.Event()

    async def record(connection: Connection) -> None:
        await connection.read_request()
        called.set()
        await connection.wait_closed()

    async with Receiver(record).listen() as receiver, a_sender() as sender:
        call = asyncio.create_task(sender.send(a_task(callback=receiver.url), 1, NOW))
        await called.wait()
        await sender.close()
        with pytest.raises(LocalFault):
            await call
