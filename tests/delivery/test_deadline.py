"""A call ends at its deadline, wherever it is by then; and it hangs up."""

from __future__ import annotations

import asyncio

import pytest

from later.core.retry import Outcome, OutcomeKind
from tests.builders import NOW, a_task
from tests.receivers import SHORT_MS, Receiver, Wire, a_sender, outcome_of, says_nothing


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n"],
    ids=["status", "headers", "body"],
)
async def test_a_reply_that_drips_is_cut_off(start: bytes) -> None:
    async def drips(wire: Wire) -> None:
        await wire.request()
        await wire.say(start)
        while True:
            await wire.say(b"\r\n" if not start else b"x")
            await asyncio.sleep(0.01)

    outcome = await outcome_of(drips, timeout_ms=SHORT_MS)
    assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="timeout", message="no complete answer within 0.15 s")


async def test_a_receiver_that_says_nothing_is_given_up() -> None:
    assert (await outcome_of(says_nothing, timeout_ms=SHORT_MS)).reason == "timeout"


async def test_a_receiver_that_does_not_read_is_given_up() -> None:
    waits = asyncio.Event()

    async def reads_nothing(_wire: Wire) -> None:
        await waits.wait()

    assert (await outcome_of(reads_nothing, timeout_ms=SHORT_MS, content="x" * 20_000_000)).reason == "timeout"


async def test_a_tls_handshake_that_does_not_end_is_given_up() -> None:
    async with Receiver(says_nothing).listen() as receiver, a_sender(SHORT_MS) as sender:
        outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
    assert outcome.reason == "timeout"


async def test_a_call_that_is_given_up_is_hung_up() -> None:
    hung_up = asyncio.Event()

    async def notices(wire: Wire) -> None:
        await wire.closed()
        hung_up.set()

    async with Receiver(notices).listen() as receiver, a_sender(SHORT_MS) as sender:
        await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert await asyncio.wait_for(hung_up.wait(), 5)


async def test_a_call_that_is_cancelled_is_hung_up() -> None:
    called, hung_up = asyncio.Event(), asyncio.Event()

    async def notices(wire: Wire) -> None:
        await wire.request()
        called.set()
        await wire.closed()
        hung_up.set()

    async with Receiver(notices).listen() as receiver, a_sender() as sender:
        call = asyncio.create_task(sender.send(a_task(callback=receiver.url), 1, NOW))
        await called.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.wait_for(hung_up.wait(), 5)


async def test_a_sender_that_is_closed_fails_its_calls() -> None:
    called = asyncio.Event()

    async def notices(wire: Wire) -> None:
        await wire.request()
        called.set()
        await wire.closed()

    async with Receiver(notices).listen() as receiver, a_sender() as sender:
        call = asyncio.create_task(sender.send(a_task(callback=receiver.url), 1, NOW))
        await called.wait()
        await sender.close()
        assert (await call).kind is OutcomeKind.FAILED
