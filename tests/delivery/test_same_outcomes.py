"""Both HTTP clients read the same replies to the same outcomes, but for differences that have a name and a reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
import uvloop
from hypothesis import given, settings

from later.core.policy import Ack
from later.core.retry import Outcome, OutcomeKind
from later.delivery.client_settings import ClientSettings
from tests.builders import NO_GUARD, NOW, a_task
from tests.delivery.contract_replies import CONTRACT_REPLIES
from tests.delivery.hostile_replies import HOSTILE_REPLIES
from tests.delivery.reply_strategies import broken_replies, well_formed_replies
from tests.delivery.scripted_receiver import End, ScriptedReceiver, ScriptedReply
from tests.receivers import CLIENTS, PolicySender, a_sender

TIMEOUT_MS = 10_000
"""A timeout that no call reaches: each reply is complete, or its connection ends."""


class Difference(NamedTuple):
    """A difference between the outcomes of later's own client and of aiohttp's, and why it stays."""

    name: str
    reason: str
    applies: Callable[[ScriptedReply, Outcome, Outcome], bool]


def only_own_refuses(pattern: bytes) -> Callable[[ScriptedReply, Outcome, Outcome], bool]:
    """Return True for a reply with such bytes that later's own client alone takes for broken."""
    found = re.compile(pattern).search

    def applies(reply: ScriptedReply, own: Outcome, other: Outcome) -> bool:
        return own.reason == "reply" != other.reason and found(reply.raw) is not None

    return applies


def has_chunk_that_ends_in_cr(raw: bytes) -> bool:
    """Return True if there is a chunk whose size covers the CR behind it."""
    sizes = re.finditer(rb"\r\n([0-9a-fA-F]+)[^\r\n]*\r\n", raw)
    return any(raw[size.end() + int(size[1], 16) - 1 :].startswith(b"\r\n") for size in sizes)


DIFFERENCES = (
    Difference(
        "a line feed alone",
        "aiohttp reads it as the end of a line, in heads and chunks; others on the way may not",
        only_own_refuses(rb"(?<!\r)\n"),
    ),
    Difference(
        "a line that is continued, or begins with a space",
        "aiohttp still reads lines that RFC 9112 forbids to send (5.2)",
        only_own_refuses(rb"\n[ \t]"),
    ),
    Difference(
        "a space in the framing of chunks",
        "aiohttp reads spaces after a size; others may read another size",
        only_own_refuses(rb"\n[0-9a-fA-F]+[ \t]+(;|\r\n)"),
    ),
    Difference(
        "a space before the colon of a trailer",
        "aiohttp reads it",
        only_own_refuses(rb"\n[A-Za-z-]+[ \t]+:"),
    ),
    Difference(
        "a control character in a header",
        "aiohttp reads all but NUL, and a carriage return before a value",
        only_own_refuses(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)"),
    ),
    Difference(
        "a transfer coding without a name",
        "aiohttp reads the body to the end of the connection",
        only_own_refuses(rb"(?i)\nTransfer-Encoding:[ \t,]*\r\n"),
    ),
    Difference(
        "a chunk that ends in a carriage return",
        "aiohttp reads the line feed behind it as the end of the chunk",
        lambda reply, own, other: own.reason == "reply" != other.reason and has_chunk_that_ends_in_cr(reply.raw),
    ),
    Difference(
        "another protocol that looks like HTTP",
        "aiohttp's parser also reads RTSP and ICE, and does not say which it was",
        only_own_refuses(rb"(^|\n)(RTSP|ICE)/"),
    ),
    Difference(
        "many interim responses",
        "later reads some sixty of them, aiohttp as many as the bytes of a reply allow",
        lambda reply, own, other: own.reason == "reply" and reply.raw.count(b"HTTP/1.1 1") > 60,
    ),
    Difference(
        "a body that ends with a reset",
        "aiohttp takes any end of the connection for the end of the body",
        lambda reply, own, other: own.reason == "reply" and reply.end is End.RESET and b"\r\n\r\n" in reply.raw,
    ),
    Difference(
        "a fault behind a status that decides",
        "aiohttp drops the head of a reply if the same read has a fault in the body",
        lambda reply, own, other: own.reason == "status" and other.reason == "reply",
    ),
    Difference(
        "endless trailers",
        "aiohttp takes the reply for broken; for later, a reply of 2xx that is too long to be read is done",
        lambda reply, own, other: own.kind is OutcomeKind.DONE and len(reply.raw) > 100_000,
    ),
    Difference(
        "bytes behind a complete reply",
        "aiohttp drops a reply if the same read has bytes behind it that are no reply",
        lambda reply, own, other: own.reason != "reply" == other.reason and own.status in range(200, 300),
    ),
    Difference(
        "a body in another transfer coding",
        "aiohttp reads what is in the chunks although it is encoded",
        lambda reply, own, other: (
            own.reason != "reply" != other.reason
            and re.search(rb"(?i)\nTransfer-Encoding:(?![ \t]*chunked[ \t]*\r\n(?!Transfer-E))", reply.raw) is not None
        ),
    ),
)
"""In this order: the first one that applies is the name of a difference."""


class Clients:
    """Senders with each HTTP client and each `ack`, and the receiver that they call; all in one event loop."""

    def __init__(self, runner: asyncio.Runner, receiver: ScriptedReceiver) -> None:
        self._runner = runner
        self._receiver = receiver
        self._senders: dict[tuple[str, Ack], PolicySender] = {}
        self._calls = 0
        self._known: dict[tuple[ScriptedReply, Ack], str | None] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        for name, build in CLIENTS.items():
            for ack in Ack:
                sender = a_sender(
                    TIMEOUT_MS, client=build(ClientSettings(max_lookups=1, max_idle=64, guard=NO_GUARD)), ack=ack
                )
                self._senders[name, ack] = await stack.enter_async_context(sender)

    def difference(self, reply: ScriptedReply, ack: Ack) -> str | None:
        """Return the name of the difference between the outcomes of this reply; None if they are the same.

        What the two say of a broken reply is not compared.
        """
        if (reply, ack) not in self._known:
            self._known[reply, ack] = find_difference(*self.outcomes(reply, ack), reply)
        return self._known[reply, ack]

    def outcomes(self, reply: ScriptedReply, ack: Ack) -> tuple[Outcome, Outcome]:
        """Return the outcome with later's own client, and with aiohttp's."""
        return self._runner.run(self._call_with_both(reply, ack))

    async def _call_with_both(self, reply: ScriptedReply, ack: Ack) -> tuple[Outcome, Outcome]:
        own, other = (self._call(self._senders[name, ack], reply) for name in ("own", "aiohttp"))
        return await asyncio.gather(own, other)

    async def _call(self, sender: PolicySender, reply: ScriptedReply) -> Outcome:
        """Return the outcome of the reply. A call after it must get its own reply, whatever was left of this one."""
        self._calls += 1
        outcome = await sender.send(a_task(callback=self._receiver.url(f"/{self._calls}", reply)), 1, NOW)
        await self._receiver.wait_idle()
        after = await sender.send(a_task(callback=self._receiver.url("/next")), 1, NOW)
        assert after.kind is OutcomeKind.DONE, after
        assert outcome.reason != "timeout"
        return outcome


def find_difference(own: Outcome, other: Outcome, reply: ScriptedReply) -> str | None:
    if own == other or own.reason == other.reason == "reply":
        return None
    for difference in DIFFERENCES:
        if difference.applies(reply, own, other):
            return difference.name
    return f"own: {own}, aiohttp: {other}"


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        stack = AsyncExitStack()
        receiver = runner.run(stack.enter_async_context(ScriptedReceiver().listen()))
        clients = Clients(runner, receiver)
        runner.run(clients.start(stack))
        yield clients
        runner.run(stack.aclose())


on_one_loop = pytest.mark.parametrize("clients", [uvloop.new_event_loop], indirect=True, ids=["uvloop"])
"""For replies whose writes and end are like those of others that are read with each event loop."""
NAMES = {difference.name for difference in DIFFERENCES}
BY_ACK = {name: reply for name, reply in CONTRACT_REPLIES.items() if name.startswith("body")}
"""The rows whose outcome depends on the topic's `ack`."""
BODIES = {
    name: reply
    for name, reply in HOSTILE_REPLIES.items()
    if name.startswith(("framing", "coding", "chunks", "cut off", "afterwards"))
}
"""The replies for which it matters whether their bodies are read."""


@on_one_loop
@pytest.mark.parametrize(
    ("replies", "ack"),
    [(CONTRACT_REPLIES, Ack.AUTO), (BY_ACK, Ack.CODE), (BY_ACK, Ack.STATUS)],
    ids=["auto", "code", "status"],
)
def test_each_row_of_the_contract_has_the_same_outcome(
    clients: Clients, replies: dict[str, ScriptedReply], ack: Ack
) -> None:
    differences = {name: clients.difference(reply, ack) for name, reply in replies.items()}
    assert {name: found for name, found in differences.items() if found is not None} == {}


def test_hostile_replies_have_the_same_outcome_but_for_differences_with_a_reason(clients: Clients) -> None:
    differences = {name: clients.difference(reply, Ack.AUTO) for name, reply in HOSTILE_REPLIES.items()}
    assert {name: found for name, found in differences.items() if found not in NAMES | {None}} == {}


@on_one_loop
@pytest.mark.parametrize("ack", [Ack.CODE, Ack.STATUS])
def test_hostile_replies_have_the_same_outcome_whatever_acknowledges(clients: Clients, ack: Ack) -> None:
    differences = {name: clients.difference(reply, ack) for name, reply in BODIES.items()}
    assert {name: found for name, found in differences.items() if found not in NAMES | {None}} == {}


def test_every_difference_with_a_reason_occurs(clients: Clients) -> None:
    assert {clients.difference(reply, Ack.AUTO) for reply in HOSTILE_REPLIES.values()} == NAMES | {None}


@settings(max_examples=2 * settings().max_examples, derandomize=True)
@given(well_formed_replies())
def test_replies_that_follow_http_are_read_and_have_the_same_outcome(clients: Clients, reply: ScriptedReply) -> None:
    own, other = clients.outcomes(reply, Ack.AUTO)
    assert own == other
    assert own.reason != "reply"


@settings(max_examples=5 * settings().max_examples, derandomize=True)
@given(broken_replies())
def test_replies_with_faults_have_the_same_outcome_but_for_differences_with_a_reason(
    clients: Clients, reply: ScriptedReply
) -> None:
    assert clients.difference(reply, Ack.AUTO) in NAMES | {None}
