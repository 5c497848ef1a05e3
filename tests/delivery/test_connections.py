"""Connections to receivers: name lookup, TLS, keep-alive."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.delivery import aiohttp_connector, connection
from later.delivery.http_client import LocalFault
from later.delivery.resolver import Resolver, resolve_host
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.receivers import (
    BUSY,
    DONE,
    SHORT_TIMEOUT_MS,
    Behavior,
    Connection,
    FakeNameServers,
    PolicySender,
    Receiver,
    a_sender,
    answers,
    answers_and_closes,
    deliver_to,
    never_answers,
    reply_with_body,
)

pytestmark = pytest.mark.usefixtures("client")

SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBjVwT4w9sMOq+fBH
2GL9LIvs62vTc6D5qhJlxX9bzLuhRANCAAQutePGmvNPu3874T+ik9twDnV9rs5R
OoIfH66CdV+KqgzdB8nyzkVW8PwMLwdtELOkXQL03oBpa9om7bIVD9zj
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUGEleUKi1zY+qtyeVgv1ZXV5jL9swCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTEwNTk0NloYDzIxMjYxMDI4
MTA1OTQ2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQutePGmvNPu3874T+ik9twDnV9rs5ROoIfH66CdV+KqgzdB8nyzkVW
8PwMLwdtELOkXQL03oBpa9om7bIVD9zjo28wbTAdBgNVHQ4EFgQUCBG0WaRUslg5
HirY8rRhyMUg94gwHwYDVR0jBBgwFoAUCBG0WaRUslg5HirY8rRhyMUg94gwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgBmVKBWximojJKEpk6kbu2yXWaKScchnvpuNat+Gwge8CIQDC
WzzjnhmCCqaZ20YgrLLFd0exg1plk7W7Pu0G6HYFjQ==
-----END CERTIFICATE-----
"""
"""A certificate for localhost, valid until 2126."""


def a_closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def answer_without_tls(connection: Connection) -> None:
    await connection.read_some()
    await connection.write(DONE)
    await connection.wait_closed()


class TestNoConnection:
    @each_case(
        ("callback", "why"),
        [
            ("http://127.0.0.1:{port}/?secret", "Connection refused"),
            ("https://127.0.0.1:{port}/?secret", "Connection refused"),
            ("http://127.1:{port}/?secret", "Connection refused"),
            ("http://256.1.1.1/?secret", "this URL cannot be called"),
            ("http://[fe80::1%25eth0]/?secret", "this URL cannot be called"),
            ("http://" + "x" * 64 + ".example/?secret", "the name lookup failed: this is not a host name"),
        ],
    )
    async def test_a_missing_receiver_is_a_failure_that_reveals_no_query(self, callback: str, why: str) -> None:
        async with a_sender() as sender:
            outcome = await sender.send(a_task(callback=callback.format(port=a_closed_port())), 1, NOW)
        assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="connect", message=f"no connection: {why}")

    async def test_a_self_signed_certificate_is_refused(self, tmp_path: Path) -> None:
        pem = tmp_path / "self-signed.pem"
        pem.write_text(SELF_SIGNED)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pem)
        async with Receiver(answers(DONE)).listen(tls) as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, outcome.message.partition(": ")[2][:27]) == ("connect", "the certificate was refused")

    async def test_a_receiver_without_tls_is_a_failure(self) -> None:
        async with Receiver(answer_without_tls).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
        assert (outcome.reason, outcome.message) == ("connect", "no connection: TLS failed: WRONG_VERSION_NUMBER")


def closes_when_idle(beginning: bytes = b"", *, reset: bool = False) -> Behavior:
    """Answer one request; at the second, send the `beginning` of an answer and close the connection."""

    async def behavior(connection: Connection) -> None:
        await connection.read_request()
        await connection.write(DONE)
        await connection.read_request()
        await connection.write(beginning)
        if reset:
            connection.reset()
        else:
            connection.close()

    return behavior


class TestKeptConnection:
    @each_case(
        "reply",
        [
            DONE,
            b"HTTP/1.1 204 No Content\r\n\r\n",
            reply_with_body(b"no", "500 No"),
            reply_with_body(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
        ],
    )
    async def test_a_connection_is_reused(self, reply: bytes) -> None:
        async with Receiver(answers(reply, reply, reply)).listen() as receiver, a_sender() as sender:
            for _ in range(3):
                await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert receiver.connections == 1

    async def test_a_connection_is_reused_after_an_error_with_a_late_body(self) -> None:
        async def send_body_late(connection: Connection) -> None:
            for _ in range(2):
                await connection.read_request()
                await connection.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n")
                await asyncio.sleep(0.01)
                await connection.write(b"no")

        async with Receiver(send_body_late).listen() as receiver, a_sender() as sender:
            for _ in range(2):
                await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert receiver.connections == 1

    @each_case("reset", [False, True])
    @each_case("content", ["hello", "x" * 2_000_000], ids=["short", "long"])
    async def test_a_request_is_repeated_if_an_idle_connection_was_closed(self, reset: bool, content: str) -> None:
        async with Receiver(closes_when_idle(reset=reset), answers(BUSY)).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url, content=content), 1, NOW)
        assert (outcome.kind, receiver.connections) == (OutcomeKind.BUSY, 2)

    async def test_a_request_is_repeated_only_once(self) -> None:
        async with Receiver(closes_when_idle(), answers_and_closes(b"")).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 2)

    async def test_a_request_on_a_new_connection_is_not_repeated(self) -> None:
        async with Receiver(answers_and_closes(b"")).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 1)

    @each_case("beginning", [b"H", b"HTTP/1.1 20", DONE[:-1]])
    async def test_a_request_is_not_repeated_once_its_answer_has_begun(self, beginning: bytes) -> None:
        async with Receiver(closes_when_idle(beginning)).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 1)

    async def test_a_repeated_request_has_the_same_deadline(self) -> None:
        outcome = await deliver_to(closes_when_idle(), never_answers, calls=2, timeout_ms=SHORT_TIMEOUT_MS)
        assert outcome.reason == "timeout"

    async def test_a_connection_that_is_too_old_is_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "MAX_AGE_S", -1.0)
        monkeypatch.setattr(aiohttp_connector, "MAX_AGE_S", -1.0)
        async with Receiver(answers(DONE, DONE)).listen() as receiver, a_sender() as sender:
            for _ in range(2):
                assert (await sender.send(a_task(callback=receiver.url), 1, NOW)).kind is OutcomeKind.DONE
        assert receiver.connections == 2

    async def test_a_connection_closed_while_idle_is_not_used(self) -> None:
        async with Receiver(answers_and_closes(DONE)).listen() as receiver, a_sender() as sender:
            kinds = [(await sender.send(a_task(callback=receiver.url), 1, NOW)).kind for _ in range(5)]
        assert kinds == [OutcomeKind.DONE] * 5


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNameServers]:
    names = FakeNameServers()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.answer()


async def call(sender: PolicySender, receiver: Receiver, host: str) -> Outcome:
    """Call the receiver by this host name."""
    return await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", host)), 1, NOW)


class TestNames:
    async def test_a_name_is_looked_up_once_for_many_calls(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await asyncio.gather(*(call(sender, receiver, "receiver.example") for _ in range(10)))
        assert names.lookups == ["receiver.example"]

    async def test_an_unknown_name_is_a_failure(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            outcome = await call(sender, receiver, "dead.example")
        why = "the name lookup failed: Name or service not known"
        assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="connect", message=f"no connection: {why}")

    async def test_an_unknown_name_is_looked_up_once(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await call(sender, receiver, "dead.example")
        assert names.lookups == ["dead.example"]

    async def test_a_name_in_any_script_is_looked_up_in_ascii(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await call(sender, receiver, "bücher.example")
        assert names.lookups == ["xn--bcher-kva.example"]

    async def test_forty_hanging_lookups_delay_no_other_call(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(max_lookups=64) as sender:
            hanging = [asyncio.create_task(call(sender, receiver, f"hang-{n}.example")) for n in range(40)]
            outcome = await call(sender, receiver, "receiver.example")
            pending = [not lookup.done() for lookup in hanging]
            for lookup in hanging:
                lookup.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        assert (outcome.kind, pending) == (OutcomeKind.DONE, [True] * 40)

    async def test_hanging_threads_do_not_delay_the_end_of_the_process(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_TIMEOUT_MS) as sender:
            await call(sender, receiver, "hang.example")
        assert [thread.daemon for thread in names.threads()] == [True]

    async def test_numeric_addresses_work_while_all_lookups_hang(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_TIMEOUT_MS, max_lookups=2) as sender:
            hosts = ["hang-1.example", "hang-2.example", "receiver.example", "127.0.0.1"]
            outcomes = await asyncio.gather(*(call(sender, receiver, host) for host in hosts))
        assert [outcome.reason for outcome in outcomes] == ["timeout", "timeout", "timeout", ""]

    async def test_a_lookup_of_a_call_that_timed_out_is_not_made(self, names: FakeNameServers) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_TIMEOUT_MS, max_lookups=1) as sender:
            hosts = ("hang.example", "given-up.example", "hang.example")
            await asyncio.gather(*(call(sender, receiver, host) for host in hosts))
            names.answer()
            outcome = await call(sender, receiver, "receiver.example")
        assert (outcome.kind, names.lookups) == (OutcomeKind.DONE, ["hang.example", "receiver.example"])

    async def test_a_thread_that_cannot_start_fails_one_call_only(
        self, names: FakeNameServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cannot_start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        async with Receiver(answers(DONE)).listen() as receiver, a_sender(max_lookups=1) as sender:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", cannot_start)
                with pytest.raises(LocalFault, match="can't start a new thread"):
                    await call(sender, receiver, "receiver.example")
            outcome = await call(sender, receiver, "receiver.example")
        assert (outcome.kind, names.lookups) == (OutcomeKind.DONE, ["receiver.example"])

    async def test_a_result_after_its_caller_has_gone_is_dropped(
        self, names: FakeNameServers, caplog: pytest.LogCaptureFixture
    ) -> None:
        resolver = Resolver(max_lookups=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(resolver.resolve("hang.example", 80), 0.02)
        names.answer()
        await resolver.resolve("receiver.example", 80)
        assert caplog.records == []

    def test_a_result_after_the_loop_has_closed_is_dropped(self, names: FakeNameServers) -> None:
        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Resolver(max_lookups=1).resolve("hang.example", 80), 0.02)

        asyncio.run(give_up())
        names.answer()
        assert names.threads() == []

    async def test_a_link_local_address_keeps_its_scope(self, monkeypatch: pytest.MonkeyPatch) -> None:
        info = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("fe80::1", 80, 0, 2))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: [info])
        assert await Resolver(max_lookups=1).resolve("printer.example", 80) == [info]

    def test_a_lookup_without_a_free_descriptor_says_nothing_about_the_name(self) -> None:
        """The second lookup, because glibc has another error for it."""
        resolve_host("localhost", 80)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                resolve_host("localhost", 80)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_a_descriptor_that_becomes_free_after_a_lookup_is_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_args: object, **_named: object) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

        monkeypatch.setattr(socket, "getaddrinfo", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            resolve_host("receiver.example", 80)

    def test_localhost_resolves(self) -> None:
        hosts = [address[4][0] for address in resolve_host("localhost", 80)]
        assert hosts
        assert set(hosts) <= {"127.0.0.1", "::1"}
