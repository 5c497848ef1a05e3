"""Later's own client: its connections, kept and new, and what this machine lacks."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest
from aiohappyeyeballs import AddrInfoType

from later.core.retry import Outcome, OutcomeKind
from later.delivery import connector, pool
from later.delivery.client_settings import ClientSettings
from later.delivery.connector import open_socket
from later.delivery.deadlines import Deadlines
from later.delivery.http_client import BrokenReply, LocalFault
from later.delivery.own_client import OwnClient
from later.delivery.pool import idle_limit
from later.delivery.resolver import Resolver
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.delivery.hostile_replies import ENDLESS
from tests.delivery.scripted_receiver import ScriptedReply
from tests.receivers import (
    DONE,
    SHORT_TIMEOUT_MS,
    Connection,
    PolicySender,
    Receiver,
    a_sender,
    answers,
    never_answers,
    parse_headers,
)

pytestmark = pytest.mark.usefixtures("own_client")


CALLS = 10_000
"""The calls to a receiver that closes its connections at random moments."""


class Sockets:
    """A replacement of `open_socket`: it records hosts and addresses, and fails while `error` is set."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, str]] = []
        self.error: OSError | None = None
        self.max_failures = 1_000_000

    def open(self, host: str, address: AddrInfoType) -> socket.socket:
        if self.error is not None and self.max_failures:
            self.max_failures -= 1
            raise self.error
        self.opened.append((host, address[4][0]))
        return open_socket(host, address)


def a_client(sockets: Sockets | None = None, max_idle: int = 64) -> OwnClient:
    return OwnClient(
        ClientSettings(max_lookups=8, max_idle=max_idle, guard=NO_GUARD, open_socket=(sockets or Sockets()).open)
    )


async def send_to(sender: PolicySender, url: str) -> Outcome:
    return await sender.send(a_task(callback=url), 1, NOW)


def addresses(*hosts: str) -> Callable[..., list[Any]]:
    """Return a `getaddrinfo` by which every name has these addresses."""

    def getaddrinfo(host: str, port: int, *_args: object, **_named: object) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in hosts
        ]

    return getaddrinfo


def port_of(receiver: Receiver) -> int:
    return int(receiver.url.rpartition(":")[2])


class FullListener:
    """A socket that listens, and whose queue is full: the kernel answers no attempt to connect to it."""

    def __init__(self, host: str, port: int) -> None:
        listening = socket.create_server((host, port), family=socket.AF_INET6, backlog=0)
        self._sockets = [listening]
        for _ in range(4):
            waiting = socket.socket(socket.AF_INET6)
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
            self._sockets.append(waiting)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


class TestSocket:
    async def test_every_socket_is_opened_by_one_function_which_knows_host_and_address(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second connection replaces a kept one that was closed: a way past a guard on new connections only."""

        async def close_when_idle(connection: Connection) -> None:
            await connection.read_request()
            await connection.write(DONE)
            await connection.read_request()
            connection.close()

        monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1"))
        sockets = Sockets()
        async with (
            Receiver(close_when_idle, answers(DONE)).listen() as receiver,
            a_sender(client=a_client(sockets)) as sender,
        ):
            url = receiver.url.replace("127.0.0.1", "receiver.example")
            outcomes = [(await send_to(sender, url)).kind for _ in range(2)]
        assert (outcomes, sockets.opened) == ([OutcomeKind.DONE] * 2, [("receiver.example", "127.0.0.1")] * 2)

    @each_case("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
    async def test_a_socket_that_this_machine_cannot_open_is_no_outcome(self, number: int) -> None:
        sockets = Sockets()
        sockets.error = OSError(number, os.strerror(number))
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client(sockets)) as sender:
            with pytest.raises(LocalFault, match=os.strerror(number)):
                await send_to(sender, receiver.url)

    async def test_without_a_descriptor_idle_connections_are_closed_and_the_call_is_made(self) -> None:
        sockets = Sockets()
        async with (
            Receiver(answers(DONE)).listen() as idle,
            Receiver(answers(DONE)).listen() as receiver,
            a_sender(client=a_client(sockets)) as sender,
        ):
            await send_to(sender, idle.url)
            sockets.error, sockets.max_failures = OSError(errno.EMFILE, "Too many open files"), 1
            outcome = await send_to(sender, receiver.url)
            await idle.wait_no_connection()
        assert outcome.kind is OutcomeKind.DONE

    async def test_a_refusal_by_a_receiver_is_an_outcome(self) -> None:
        sockets = Sockets()
        sockets.error = OSError(errno.ECONNREFUSED, "Connection refused")
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client(sockets)) as sender:
            outcome = await send_to(sender, receiver.url)
        assert (outcome.reason, outcome.message) == ("connect", "no connection: Connection refused")

    @pytest.mark.parametrize("has_route", [True, False])
    async def test_no_free_port_is_no_outcome_but_no_route_is(
        self, has_route: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both are "Cannot assign requested address"."""
        monkeypatch.setattr(connector, "_has_source_address", lambda address: has_route)
        sockets = Sockets()
        sockets.error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client(sockets)) as sender:
            if has_route:
                with pytest.raises(LocalFault):
                    await send_to(sender, receiver.url)
            else:
                assert (await send_to(sender, receiver.url)).reason == "connect"

    async def test_a_lookup_without_a_descriptor_is_no_outcome(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_args: object, **_named: object) -> None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        def open_none(*_args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket, "getaddrinfo", fail)
        async with a_sender(client=a_client()) as sender:
            with monkeypatch.context() as patched:
                patched.setattr("later.delivery.resolver.socket.socket", open_none)
                with pytest.raises(LocalFault, match="Too many open files"):
                    await send_to(sender, "http://receiver.example/")
            assert (await send_to(sender, "http://receiver.example/")).reason == "connect"

    async def test_without_a_descriptor_for_a_lookup_idle_connections_are_closed_and_the_call_is_made(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        find, failures = addresses("127.0.0.1"), [OSError(errno.EMFILE, "Too many open files")]

        def fail_once(*arguments: Any, **named: Any) -> list[Any]:
            if failures:
                raise failures.pop()
            return find(*arguments, **named)

        monkeypatch.setattr(socket, "getaddrinfo", fail_once)
        async with (
            Receiver(answers(DONE)).listen() as idle,
            Receiver(answers(DONE)).listen() as receiver,
            a_sender(client=a_client()) as sender,
        ):
            await send_to(sender, idle.url)
            outcome = await send_to(sender, receiver.url.replace("127.0.0.1", "receiver.example"))
            await idle.wait_no_connection()
        assert outcome.kind is OutcomeKind.DONE


class TestAddresses:
    @pytest.mark.parametrize("dead", ["127.0.0.2", "::1"])
    async def test_an_address_that_refuses_is_skipped(self, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", addresses(dead, "127.0.0.1"))
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client()) as sender:
            outcome = await send_to(sender, receiver.url.replace("127.0.0.1", "receiver.example"))
        assert outcome.kind is OutcomeKind.DONE

    async def test_an_address_that_does_not_answer_delays_the_next_by_a_quarter_of_a_second(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", addresses("::1", "127.0.0.1"))
        loop = asyncio.get_running_loop()
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client()) as sender:
            with closing(FullListener("::1", port_of(receiver))):
                started = loop.time()
                outcome = await send_to(sender, receiver.url.replace("127.0.0.1", "receiver.example"))
                took_s = loop.time() - started
        assert outcome.kind is OutcomeKind.DONE
        assert 0.25 <= took_s < 1

    async def test_the_message_says_why_each_address_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1", "127.0.0.2"))

        def open_all_but_one(host: str, address: AddrInfoType) -> socket.socket:
            if address[4][0] == "127.0.0.2":
                raise OSError(errno.EHOSTUNREACH, "No route to host")
            return open_socket(host, address)

        client = OwnClient(ClientSettings(max_lookups=1, max_idle=1, guard=NO_GUARD, open_socket=open_all_but_one))
        async with a_sender(client=client) as sender:
            outcome = await send_to(sender, "http://receiver.example:1/?secret")
        assert outcome.message == "no connection: Connection refused, No route to host"


class TestIdleConnections:
    async def test_one_more_idle_connection_than_allowed_closes_the_oldest(self) -> None:
        first, second, third = (Receiver(answers(*[DONE] * 9)) for _ in range(3))
        async with first.listen(), second.listen(), third.listen(), a_sender(client=a_client(max_idle=2)) as sender:
            for receiver in (first, second, first, third):
                await send_to(sender, receiver.url)
            await second.wait_no_connection()
            for receiver in (first, third):
                await send_to(sender, receiver.url)
        assert [first.connections, second.connections, third.connections] == [1, 1, 1]

    async def test_without_any_to_keep_each_call_has_its_own_connection(self) -> None:
        async with a_sender(client=a_client(max_idle=0)) as sender, Receiver(answers(DONE)).listen() as receiver:
            for _ in range(3):
                await send_to(sender, receiver.url)
        assert receiver.connections == 3

    async def test_an_idle_connection_is_closed_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool, "MAX_IDLE_S", 0.02)
        monkeypatch.setattr(pool, "SWEEP_S", 0.01)
        async with a_sender(client=a_client()) as sender, Receiver(answers(DONE)).listen() as receiver:
            await send_to(sender, receiver.url)
            await receiver.wait_no_connection()

    async def test_bytes_on_an_idle_connection_are_no_reply_to_the_next_call(self) -> None:
        async def answer_twice(connection: Connection) -> None:
            await connection.read_request()
            await connection.write(DONE)
            await asyncio.sleep(0.02)
            await connection.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
            await connection.wait_closed()

        async with Receiver(answer_twice, answers(DONE)).listen() as receiver, a_sender(client=a_client()) as sender:
            await send_to(sender, receiver.url)
            await receiver.wait_no_connection()
            assert (await send_to(sender, receiver.url)).kind is OutcomeKind.DONE

    @each_case(("descriptors", "slots", "kept"), [(1024, 256, 384), (65_536, 256, 1024), (256, 256, 0), (64, 256, 0)])
    def test_the_idle_connections_leave_half_of_the_descriptors_that_are_left(
        self, descriptors: int, slots: int, kept: int
    ) -> None:
        assert idle_limit(descriptors, slots) == kept


class ClosingReceiver(asyncio.Protocol):
    """A receiver that closes kept connections when it likes: with a request unanswered, after an answer, or later.

    The first request of a connection is always answered.
    """

    calls: Counter[str]
    unanswered: Counter[str]
    random: random.Random

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._answered = 0

    def data_received(self, data: bytes) -> None:
        task_id = parse_headers(data.partition(b"\r\n\r\n")[0].decode())["webhook-id"]
        self.calls[task_id] += 1
        if self._answered and self.random.random() < 0.05:
            self.unanswered[task_id] += 1
            self._close()
            return
        self._transport.write(DONE)
        self._answered += 1
        if self.random.random() < 0.05:
            self._close()
        elif self.random.random() < 0.05:
            asyncio.get_running_loop().call_later(self.random.random() / 100, self._transport.close)

    def _close(self) -> None:
        self.random.choice([self._transport.close, self._transport.abort])()


async def test_receivers_that_close_kept_connections_at_any_time_lose_no_call() -> None:
    calls: Counter[str] = Counter()
    unanswered: Counter[str] = Counter()
    state = {"calls": calls, "unanswered": unanswered, "random": random.Random(1)}
    server = await asyncio.get_running_loop().create_server(type("Receiver", (ClosingReceiver,), state), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    tasks = iter([a_task(callback=url) for _ in range(CALLS)])
    failed: list[Outcome] = []

    async def send_one_after_the_other(sender: PolicySender) -> None:
        for task in tasks:
            outcome = await sender.send(task, 1, NOW)
            if outcome.kind is not OutcomeKind.DONE:
                failed.append(outcome)

    async with a_sender(client=a_client()) as sender:
        await asyncio.gather(*(send_one_after_the_other(sender) for _ in range(50)))
    server.close()
    assert failed == []
    assert len(calls) == CALLS
    assert {task_id for task_id, count in calls.items() if count > 1} <= unanswered.keys()
    assert unanswered


async def test_a_receiver_that_half_closes_after_its_answer_has_answered() -> None:
    async def half_close(connection: Connection) -> None:
        await connection.read_request()
        await connection.write(DONE)
        connection.half_close()
        await connection.wait_closed()

    async with Receiver(half_close).listen() as receiver, a_sender(client=a_client()) as sender:
        outcomes = [await send_to(sender, receiver.url) for _ in range(3)]
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DONE] * 3


async def test_a_receiver_that_half_closes_instead_of_an_answer_is_a_failure_at_once() -> None:
    async def half_close(connection: Connection) -> None:
        connection.half_close()
        await connection.wait_closed()

    async with Receiver(half_close).listen() as receiver, a_sender(client=a_client()) as sender:
        outcome = await send_to(sender, receiver.url)
        await receiver.wait_no_connection()
    assert (outcome.reason, outcome.message) == ("reply", "no complete answer: the connection was closed")


@each_case("reply", [reply for name, reply in ENDLESS.items() if "100 Continue" in name])
async def test_an_endless_reply_does_not_delay_another_call(reply: ScriptedReply) -> None:
    """The others wait for a reply of 512 KiB each, of which 64 KiB are read at most."""

    async def answer_without_end(connection: Connection) -> None:
        await connection.read_request()
        while True:
            await connection.write(reply.raw)

    async with (
        Receiver(answer_without_end).listen() as endless,
        Receiver(answers(DONE)).listen() as receiver,
        a_sender(client=a_client()) as sender,
    ):
        others = [asyncio.create_task(send_to(sender, endless.url)) for _ in range(50)]
        outcome = await send_to(sender, receiver.url)
        endless_outcomes = await asyncio.gather(*others)
    assert outcome.kind is OutcomeKind.DONE
    assert {outcome.reason for outcome in endless_outcomes} == {"reply"}


@each_case("answer", [b"x" * 200_000, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, None])
async def test_a_failed_call_leaves_nothing_for_the_garbage_collector(answer: bytes | None) -> None:
    behavior = never_answers if answer is None else answers(answer)
    async with Receiver(behavior).listen() as receiver, a_sender(SHORT_TIMEOUT_MS) as sender:
        gc.collect()
        gc.freeze()  # and leave what there is to none of the searches below
        gc.disable()
        try:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
            await asyncio.sleep(0)  # the event loop's step that woke this one has the error, too
            errors = [found for found in gc.get_objects() if isinstance(found, (BrokenReply, TimeoutError))]
        finally:
            gc.enable()
    assert (outcome.kind, errors) == (OutcomeKind.FAILED, [])


async def test_a_client_that_was_never_started_can_be_closed() -> None:
    await a_client().close()


async def test_closing_the_client_ends_calls_that_open_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_up = asyncio.Event()

    async def wait(self: Resolver, host: str, port: int) -> None:
        looks_up.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Resolver, "resolve", wait)
    async with a_sender(client=a_client()) as sender:
        call = asyncio.create_task(send_to(sender, "http://receiver.example/"))
        await looks_up.wait()
        await sender.close()
        with pytest.raises(LocalFault):
            await call


class TestDeadlines:
    async def test_calls_end_after_their_deadlines_in_order(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, ended = Deadlines(loop), list[tuple[str, float]]()
        all_ended = asyncio.Event()

        class Call:
            def __init__(self, name: str) -> None:
                self.name = name

            def on_deadline(self) -> None:
                ended.append((self.name, loop.time()))
                if len(ended) == 3:
                    all_ended.set()

        now = loop.time()
        for name, after_s in [("last", 0.2), ("first", 0.02), ("middle", 0.1)]:
            deadlines.add(Call(name), now + after_s)
        discarded = Call("discarded")
        deadlines.add(discarded, now + 0.05).discard(discarded)
        await all_ended.wait()
        assert [name for name, _ in ended] == ["first", "middle", "last"]
        assert all(at - now >= after_s for (_, at), after_s in zip(ended, [0.02, 0.1, 0.2], strict=True))
