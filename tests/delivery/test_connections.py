"""How the sender comes to a connection, keeps it, and gives it up: names, TLS, keep-alive."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.delivery.resolver import Resolver, resolve_host
from tests.builders import NOW, a_task
from tests.receivers import (
    BUSY,
    DONE,
    SHORT_MS,
    Caller,
    Names,
    Receiver,
    Talk,
    Wire,
    a_sender,
    answers,
    answers_and_closes,
    outcome_of,
    says_nothing,
    with_body,
)

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
"""For localhost, until 2126."""


def a_closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def says_at_once(wire: Wire) -> None:
    await wire.say(DONE)
    await wire.closed()


class TestNoConnection:
    @pytest.mark.parametrize(
        ("callback", "why"),
        [
            ("http://127.0.0.1:{port}/?secret", "Connection refused"),
            ("https://127.0.0.1:{port}/?secret", "Connection refused"),
            ("http://127.1/?secret", "this URL cannot be called"),
            ("http://" + "x" * 64 + ".example/?secret", "the name lookup failed: this is not a host name"),
        ],
    )
    async def test_nobody_there_is_failed_and_tells_no_secret(self, callback: str, why: str) -> None:
        async with a_sender() as sender:
            outcome = await sender.send(a_task(callback=callback.format(port=a_closed_port())), 1, NOW)
        assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="connect", message=f"no connection: {why}")

    async def test_a_certificate_of_nobody_is_refused(self, tmp_path: Path) -> None:
        pem = tmp_path / "self-signed.pem"
        pem.write_text(SELF_SIGNED)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pem)
        async with Receiver(answers(DONE)).listen(tls) as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, outcome.message.partition(": ")[2][:27]) == ("connect", "the certificate was refused")

    async def test_a_receiver_that_speaks_no_tls_is_failed(self) -> None:
        async with Receiver(says_at_once).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
        assert (outcome.reason, outcome.message) == ("connect", "no connection: TLS failed: WRONG_VERSION_NUMBER")


def closes_idle(begun: bytes = b"", *, reset: bool = False) -> Talk:
    """Answer a request; take a second one and hang up, perhaps after the beginning of an answer."""

    async def talk(wire: Wire) -> None:
        await wire.request()
        await wire.say(DONE)
        await wire.request()
        await wire.say(begun)
        if reset:
            wire.reset()
        else:
            wire.hang_up()

    return talk


class TestKeptConnection:
    @pytest.mark.parametrize(
        "reply",
        [
            DONE,
            b"HTTP/1.1 204 No Content\r\n\r\n",
            with_body(b"no", "500 No"),
            with_body(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
        ],
    )
    async def test_it_is_used_again(self, reply: bytes) -> None:
        async with Receiver(answers(reply, reply, reply)).listen() as receiver, a_sender() as sender:
            for _ in range(3):
                await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert receiver.connections == 1

    async def test_it_is_used_again_after_an_error_whose_body_comes_a_little_later(self) -> None:
        async def hesitates(wire: Wire) -> None:
            for _ in range(2):
                await wire.request()
                await wire.say(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n")
                await asyncio.sleep(0.01)
                await wire.say(b"no")

        async with Receiver(hesitates).listen() as receiver, a_sender() as sender:
            for _ in range(2):
                await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert receiver.connections == 1

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("content", ["hello", "x" * 2_000_000], ids=["short", "long"])
    async def test_closed_without_an_answer_the_request_is_sent_once_more(self, reset: bool, content: str) -> None:
        async with Receiver(closes_idle(reset=reset), answers(BUSY)).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url, content=content), 1, NOW)
        assert (outcome.kind, receiver.connections) == (OutcomeKind.BUSY, 2)

    async def test_it_is_sent_once_more_only_once(self) -> None:
        async with Receiver(closes_idle(), answers_and_closes(b"")).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 2)

    async def test_it_is_not_sent_again_on_a_fresh_connection(self) -> None:
        async with Receiver(answers_and_closes(b"")).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 1)

    @pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 20", DONE[:-1]])
    async def test_it_is_not_sent_again_once_an_answer_has_begun(self, begun: bytes) -> None:
        async with Receiver(closes_idle(begun)).listen() as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url), 1, NOW)
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, receiver.connections) == ("reply", 1)

    async def test_sent_once_more_it_has_the_same_deadline(self) -> None:
        outcome = await outcome_of(closes_idle(), says_nothing, calls=2, timeout_ms=SHORT_MS)
        assert outcome.reason == "timeout"

    async def test_closed_while_idle_it_is_not_used(self) -> None:
        async with Receiver(answers_and_closes(DONE)).listen() as receiver, a_sender() as sender:
            kinds = [(await sender.send(a_task(callback=receiver.url), 1, NOW)).kind for _ in range(5)]
        assert kinds == [OutcomeKind.DONE] * 5


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.answer()


async def call(sender: Caller, receiver: Receiver, host: str) -> Outcome:
    """Call the receiver by this name."""
    return await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", host)), 1, NOW)


class TestNames:
    async def test_a_name_is_looked_up_once_for_many_calls(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await asyncio.gather(*(call(sender, receiver, "receiver.example") for _ in range(10)))
        assert names.asked == ["receiver.example"]

    async def test_a_name_that_nobody_has_is_failed(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            outcome = await call(sender, receiver, "dead.example")
        why = "the name lookup failed: Name or service not known"
        assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="connect", message=f"no connection: {why}")

    async def test_a_name_that_nobody_has_is_looked_up_once(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await call(sender, receiver, "dead.example")
        assert names.asked == ["dead.example"]

    async def test_a_name_in_any_script_is_looked_up_in_ascii(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            await call(sender, receiver, "bücher.example")
        assert names.asked == ["xn--bcher-kva.example"]

    async def test_forty_names_that_hang_hold_up_nobody_else(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(lookups=64) as sender:
            hanging = [asyncio.create_task(call(sender, receiver, f"hang-{n}.example")) for n in range(40)]
            outcome = await call(sender, receiver, "receiver.example")
            under_way = [not hangs.done() for hangs in hanging]
            for hangs in hanging:
                hangs.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        assert (outcome.kind, under_way) == (OutcomeKind.DONE, [True] * 40)

    async def test_threads_that_hang_do_not_hold_up_the_end_of_the_process(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_MS) as sender:
            await call(sender, receiver, "hang.example")
        assert [thread.daemon for thread in names.threads()] == [True]

    async def test_where_all_lookups_hang_addresses_still_work(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_MS, lookups=2) as sender:
            hosts = ["hang-1.example", "hang-2.example", "receiver.example", "127.0.0.1"]
            outcomes = await asyncio.gather(*(call(sender, receiver, host) for host in hosts))
        assert [outcome.reason for outcome in outcomes] == ["timeout", "timeout", "timeout", ""]

    async def test_a_lookup_that_nobody_waits_for_is_not_made(self, names: Names) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender(SHORT_MS, lookups=1) as sender:
            for host in ("hang.example", "given-up.example", "hang.example"):
                await call(sender, receiver, host)
            names.answer()
            outcome = await call(sender, receiver, "receiver.example")
        assert (outcome.kind, names.asked) == (OutcomeKind.DONE, ["hang.example", "receiver.example"])

    async def test_a_lookup_that_waits_too_long_for_its_turn_is_given_up(self, names: Names) -> None:
        resolver = Resolver(max_lookups=1, default_timeout_s=0.02)
        hanging = asyncio.create_task(resolver.resolve("hang.example"))
        await asyncio.sleep(0)  # it takes the thread
        with pytest.raises(socket.gaierror, match="too many other lookups hang"):
            await resolver.resolve("receiver.example")
        names.answer()
        await hanging

    async def test_a_machine_without_threads_to_spare_fails_a_call_and_no_more(
        self, names: Names, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cannot_start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        async with Receiver(answers(DONE)).listen() as receiver, a_sender(lookups=1) as sender:
            with monkeypatch.context() as machine:
                machine.setattr(threading.Thread, "start", cannot_start)
                first = await call(sender, receiver, "receiver.example")
            second = await call(sender, receiver, "receiver.example")
        assert (first.reason, second.kind, names.asked) == ("connect", OutcomeKind.DONE, ["receiver.example"])

    async def test_an_answer_that_comes_after_its_caller_has_gone_disturbs_nobody(
        self, names: Names, caplog: pytest.LogCaptureFixture
    ) -> None:
        resolver = Resolver(max_lookups=1, default_timeout_s=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(resolver.resolve("hang.example"), 0.02)
        names.answer()
        await resolver.resolve("receiver.example")
        assert caplog.records == []

    def test_an_answer_that_comes_after_the_loop_has_ended_disturbs_nobody(self, names: Names) -> None:
        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Resolver(max_lookups=1, default_timeout_s=1).resolve("hang.example"), 0.02)

        asyncio.run(give_up())
        names.answer()
        assert names.threads() == []

    def test_a_link_local_address_keeps_its_scope(self, monkeypatch: pytest.MonkeyPatch) -> None:
        info = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("fe80::1", 80, 0, 2))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: [info])
        assert resolve_host("printer.example", 80, socket.AF_UNSPEC)[0]["host"] == "fe80::1%2"

    def test_the_names_of_this_machine_are_known(self) -> None:
        hosts = [address["host"] for address in resolve_host("localhost", 80, socket.AF_UNSPEC)]
        assert hosts
        assert set(hosts) <= {"127.0.0.1", "::1"}
