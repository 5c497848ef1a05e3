"""Calls through a forward proxy that is itself called by https: http in its TLS, https as TLS in TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.delivery.proxy import Proxy
from tests.builders import NOW, a_task
from tests.delivery.forward_proxy import ESTABLISHED, ForwardProxy
from tests.delivery.test_proxy import failed, outcome_through
from tests.delivery.test_tls import CERTIFICATES, identity
from tests.delivery.test_tls_transport import Records
from tests.receivers import (
    DONE,
    Behavior,
    Connection,
    Receiver,
    a_sender,
    answers,
    never_answers,
    parse_headers,
    reply_with_body,
)

pytestmark = pytest.mark.usefixtures("own_client")


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority of proxies and receivers is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))


@pytest.fixture
async def proxy() -> AsyncIterator[ForwardProxy]:
    async with ForwardProxy().listen(identity("receiver")) as proxy:
        yield proxy


async def test_an_http_call_is_in_absolute_form_in_the_tls_of_the_proxy(proxy: ForwardProxy) -> None:
    async with Receiver(answers(DONE, DONE)).listen() as receiver:
        url = proxy.url.replace("//", "//user:secret@")
        outcome = await outcome_through(url, f"{receiver.url}/a", calls=2)
    assert outcome.kind is OutcomeKind.DONE
    assert proxy.heads[0].split("\r\n")[0] == f"POST {receiver.url}/a HTTP/1.1"
    assert "proxy-authorization" in parse_headers(proxy.heads[0])
    assert proxy.connections == 1


async def test_an_https_call_is_tls_in_tls(proxy: ForwardProxy) -> None:
    heads: list[str] = []

    async def answer(connection: Connection) -> None:
        for _ in range(2):
            heads.append((await connection.read_request())[0])
            await connection.write(DONE)

    async with Receiver(answer).listen(identity("receiver")) as receiver:
        url = proxy.url.replace("//", "//user:secret@")
        outcome = await outcome_through(url, f"{receiver.url}/a", calls=2)
    assert outcome.kind is OutcomeKind.DONE
    port = receiver.url.rpartition(":")[2]
    assert proxy.heads[0].split("\r\n")[0] == f"CONNECT 127.0.0.1:{port} HTTP/1.1"
    assert [head.split("\r\n")[0] for head in heads] == ["POST /a HTTP/1.1"] * 2
    assert "proxy-authorization" not in parse_headers(heads[0])
    assert (proxy.connections, receiver.connections) == (1, 1)


async def test_a_long_content_arrives_in_both(proxy: ForwardProxy) -> None:
    lengths: list[int] = []

    async def answer(connection: Connection) -> None:
        lengths.append(len((await connection.read_request())[1]))
        await connection.write(DONE)
        await connection.wait_closed()

    for tls in (None, identity("receiver")):
        async with Receiver(answer).listen(tls) as receiver:
            outcome = await send_through(proxy.url, receiver.url, content="x" * 3_000_000)
        assert outcome.kind is OutcomeKind.DONE
    assert min(lengths) > 3_000_000


@pytest.mark.parametrize("pieces", [1, 8, 16])
async def test_large_replies_come_through_tls_in_tls_behind_a_long_answer_to_connect(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.delivery.large_reads.PIECES_PER_TURN", pieces)
    reply = reply_with_body(b'{"code": 100}'.ljust(60_000))
    established = ESTABLISHED.replace(b"\r\n", b"\r\nX: %s\r\n" % (b"x" * 10_000), 1)
    async with (
        ForwardProxy(established).listen(identity("receiver")) as proxy,
        Receiver(answers(reply, reply, reply)).listen(identity("receiver")) as receiver,
    ):
        outcome = await outcome_through(proxy.url, receiver.url, calls=3)
    assert (outcome.kind, receiver.connections) == (OutcomeKind.DONE, 1)


@pytest.mark.parametrize("pieces", [1, 16])
async def test_the_end_of_a_tunnel_comes_after_what_has_come_through_it(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a reply is here, in records that are parsed one by one, and so is the goodbye of the proxy behind them."""
    monkeypatch.setattr("later.delivery.large_reads.PIECES_PER_TURN", pieces)
    reply = reply_with_body(b'{"code": 100}'.ljust(60_000), "200 OK", "Connection: close")

    async def behavior(connection: Connection) -> None:
        tunnel = Records(connection, identity("receiver"))
        await tunnel.handshake()
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += await tunnel.read_some()
        await tunnel.write(ESTABLISHED)
        inner = Records(tunnel, identity("receiver"))
        await inner.read_request()
        records = inner.encrypt(*(reply[at : at + 3000] for at in range(0, len(reply), 3000)))
        await connection.write(tunnel.encrypt(records) + tunnel.say_goodbye())
        await connection.wait_closed()

    async with Receiver(behavior).listen() as proxy:
        url = proxy.url.replace("http:", "https:")
        outcome = await outcome_through(url, url)
    assert outcome.kind is OutcomeKind.DONE


async def send_through(proxy_url: str, callback: str, content: str) -> Outcome:
    async with a_sender(proxy=Proxy.parse(proxy_url)) as sender:
        return await sender.send(a_task(callback=callback, content=content), 1, NOW)


async def test_a_proxy_whose_certificate_is_refused_has_failed() -> None:
    async with ForwardProxy().listen(identity("other_name")) as proxy:
        for callback in ("http://shop.example/", "https://shop.example/"):
            outcome = await outcome_through(proxy.url, callback)
            assert outcome == failed(
                "no connection to it: the certificate was refused: "
                "IP address mismatch, certificate is not valid for '127.0.0.1'."
            )
    assert proxy.heads == []


async def test_a_receiver_whose_certificate_is_refused_in_the_tunnel_is_not_the_proxys_fault(
    proxy: ForwardProxy,
) -> None:
    async with Receiver(answers(DONE)).listen(identity("expired")) as receiver:
        outcome = await outcome_through(proxy.url, receiver.url)
    assert (outcome.reason, "certificate has expired" in outcome.message) == ("connect", True)


async def test_a_proxy_that_fails_in_its_tls_has_failed() -> None:
    async def close(connection: Connection) -> None:
        await connection.read_some()
        connection.close()

    for behavior, why in (
        (close, "no answer to CONNECT: the connection was closed"),
        (never_answers, "there was no connection through it in time"),
        (answers_at_once(b"HTTP/1.1 200 OK\r\n\r\nmore"), "no answer to CONNECT: there is more than one"),
        (answers_at_once(b"HTTP/1.1 500 No\r\n\r\n"), "it answered 500 to CONNECT"),
        (answers_at_once(b"x" * 100_000), "no answer to CONNECT: it is too long"),
    ):
        async with Receiver(behavior).listen(identity("receiver")) as receiver:
            assert await outcome_through(receiver.url, "https://shop.example/", timeout_ms=400) == failed(why)
    async with Receiver(never_answers).listen() as silent:
        url = silent.url.replace("http", "https")
        outcome = await outcome_through(url, "http://shop.example/", timeout_ms=200)
        assert outcome == failed("there was no connection through it in time")
        await asyncio.wait_for(silent.wait_no_connection(), 5)


def answers_at_once(answer: bytes) -> Behavior:
    async def behavior(connection: Connection) -> None:
        await connection.read_head()
        await connection.write(answer)
        await connection.wait_closed()

    return behavior
