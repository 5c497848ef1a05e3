"""The limits that later adds to aiohttp's client."""

from __future__ import annotations

from later.core.retry import Outcome, OutcomeKind
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.client_settings import ClientSettings
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.delivery.hostile_replies import ENDLESS
from tests.delivery.scripted_receiver import End, ScriptedReceiver, ScriptedReply
from tests.receivers import BUSY, Receiver, a_sender, answers


async def outcomes_of(*replies: ScriptedReply) -> list[Outcome]:
    """Return the outcomes of calls that are answered with these replies, one after the other."""
    client = AiohttpClient(ClientSettings(max_lookups=1, max_idle=1, guard=NO_GUARD))
    async with ScriptedReceiver().listen() as receiver, a_sender(client=client) as sender:
        outcomes = []
        for number, reply in enumerate(replies):
            outcomes.append(await sender.send(a_task(callback=receiver.url(f"/{number}", reply)), 1, NOW))
            await receiver.wait_idle()
        return outcomes


@each_case("reply", ENDLESS.values(), ids=ENDLESS)
async def test_an_endless_reply_is_cut_off(reply: ScriptedReply) -> None:
    [outcome] = await outcomes_of(reply._replace(end=End.KEEP))
    assert outcome.reason != "timeout"


async def test_an_endless_chunked_body_is_done_as_a_long_one_is() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = ScriptedReply(head + b"1;" + b"x" * 60_000 + b"\r\ny\r\n" + b"1\r\ny\r\n" * 60_000)
    assert await outcomes_of(endless) == [Outcome(kind=OutcomeKind.DONE, status=200)]


async def test_endless_interim_responses_are_a_broken_reply() -> None:
    endless = ScriptedReply(b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000)
    message = "no complete answer: it is longer than a reply may be"
    assert await outcomes_of(endless) == [Outcome(kind=OutcomeKind.FAILED, reason="reply", message=message)]


async def test_bytes_that_come_between_two_calls_are_not_the_next_reply() -> None:
    gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"
    with_another = ScriptedReply(BUSY + gone, cuts=(len(BUSY),))
    outcomes = await outcomes_of(with_another, ScriptedReply(BUSY))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.BUSY, OutcomeKind.BUSY]


async def test_no_more_idle_connections_are_kept_than_its_limit() -> None:
    client = AiohttpClient(ClientSettings(max_lookups=1, max_idle=1, guard=NO_GUARD))
    receivers = [Receiver(answers(BUSY, BUSY)) for _ in range(2)]
    async with receivers[0].listen(), receivers[1].listen(), a_sender(client=client) as sender:
        for receiver in (*receivers, *receivers):
            await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert [receiver.connections for receiver in receivers] == [1, 2]


async def test_broken_chunks_do_not_wait_for_the_deadline() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    broken = ScriptedReply(head + b"2\r\nno\r\n0\r\nContent-Length: 3\r\n\r\n", cuts=(len(head),), end=End.CLOSE)
    assert [outcome.reason for outcome in await outcomes_of(broken)] == ["reply"]
