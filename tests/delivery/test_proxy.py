"""Calls through a forward proxy: in absolute form, through tunnels, and with proxies that fail."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from later.core.origin import Origin
from later.core.reply import Reply
from later.core.retry import Outcome, OutcomeKind
from later.delivery.http_client import LocalFault, ProxyFailed
from later.delivery.proxy import Proxy, TcpStream, is_answer_of_proxy
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.delivery.forward_proxy import ESTABLISHED, ForwardProxy
from tests.delivery.test_connections import SELF_SIGNED, a_closed_port, answer_without_tls
from tests.receivers import (
    BUSY,
    DONE,
    SHORT_TIMEOUT_MS,
    Behavior,
    Connection,
    FakeNameServers,
    Receiver,
    a_sender,
    answers,
    answers_and_closes,
    never_answers,
    parse_headers,
    reply_with_body,
)

REFUSED = Outcome(kind=OutcomeKind.FAILED, reason="address", message="the proxy refuses to call this host")
SMOKESCREENS_REFUSAL = reply_with_body(b"no", "407 Request Rejected by Proxy", "x-smokescreen-error: host: denied")
ANY_CLIENT = pytest.mark.usefixtures("client")


async def outcome_through(proxy_url: str, callback: str, *, calls: int = 1, timeout_ms: int = 60_000) -> Outcome:
    """Return the outcome of the last of these calls through the proxy."""
    async with a_sender(timeout_ms, proxy=Proxy.parse(proxy_url)) as sender:
        for _ in range(calls):
            outcome = await sender.send(a_task(callback=callback), 1, NOW)
        return outcome


def failed(why: str) -> Outcome:
    return Outcome(kind=OutcomeKind.FAILED, reason="proxy", message=f"the proxy failed: {why}")


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a receiver for localhost, whose certificate every client of this test trusts."""
    pem = tmp_path / "receiver.pem"
    pem.write_text(SELF_SIGNED)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    return context


@ANY_CLIENT
class TestHttp:
    async def test_a_call_is_in_absolute_form_and_its_name_is_looked_up_by_the_proxy(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = FakeNameServers()
        monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
        async with Receiver(answers(BUSY)).listen() as receiver, ForwardProxy().listen() as proxy:
            callback = receiver.url.replace("127.0.0.1", "receiver.example") + "/a%41?b=%2F"
            outcome = await outcome_through(proxy.url, callback)
        assert outcome.kind is OutcomeKind.BUSY
        assert proxy.heads[0].split("\r\n")[0] == f"POST {callback} HTTP/1.1"
        assert parse_headers(proxy.heads[0])["host"] == callback.split("/")[2]
        assert names.lookups == []

    @each_case("path", ["", "/", "?", "/a?", "?x=1", "/ü", "/%"])
    async def test_the_target_is_sent_as_without_a_proxy(self, path: str) -> None:
        heads: list[str] = []

        async def record(connection: Connection) -> None:
            heads.append((await connection.read_request())[0].split("\r\n")[0])
            await connection.write(DONE)

        async with Receiver(record).listen() as receiver, ForwardProxy().listen() as proxy:
            await outcome_through(proxy.url, receiver.url + path)
            async with a_sender() as sender:
                await sender.send(a_task(callback=receiver.url + path), 1, NOW)
        assert heads[0] == heads[1]

    async def test_a_connection_to_the_proxy_is_kept_for_the_same_origin_only(self) -> None:
        async with (
            Receiver(answers(DONE)).listen() as first,
            Receiver(answers(DONE)).listen() as second,
            ForwardProxy().listen() as proxy,
            a_sender(proxy=Proxy.parse(proxy.url)) as sender,
        ):
            for receiver in (first, first, first, second):
                assert (await sender.send(a_task(callback=receiver.url), 1, NOW)).kind is OutcomeKind.DONE
        assert proxy.connections == 2

    async def test_a_kept_connection_that_the_proxy_closed_is_replaced(self) -> None:
        async with Receiver(answers_and_closes(DONE)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "http://receiver.example/", calls=3)
        assert (outcome.kind, proxy.connections) == (OutcomeKind.DONE, 3)

    @each_case(
        ("status", "headers"),
        [
            ("407 Proxy Authentication Required", ["Proxy-Authenticate: Basic"]),
            ("407 Request Rejected by Proxy", ["X-Squid-Error: ERR_CACHE_ACCESS_DENIED 0"]),
            ("503 No", ["X-Smokescreen-Error: no route"]),
            ("502 Bad Gateway", ["Proxy-Status: squid; error=connection_refused"]),
            ("503 Service Unavailable", ["X-Squid-Error: ERR_CONNECT_FAIL 111", "Retry-After: 60"]),
            ("504 Gateway Timeout", ['Proxy-Status: cdn, squid; details="a, b"; error=dns_timeout', "later-after: 9"]),
        ],
    )
    async def test_an_answer_that_the_proxy_says_is_its_own_is_no_answer_of_the_receiver(
        self, status: str, headers: list[str]
    ) -> None:
        async with Receiver(answers(reply_with_body(b"no", status, *headers))).listen() as proxy:
            outcome = await outcome_through(proxy.url, "http://receiver.example/")
        assert outcome == failed(f"it answered {status[:3]}")

    async def test_a_proxy_that_refuses_an_address_is_no_fault_of_the_proxy(self) -> None:
        async with Receiver(answers(SMOKESCREENS_REFUSAL)).listen() as proxy:
            assert await outcome_through(proxy.url, "http://receiver.example/") == REFUSED

    async def test_garbage_and_half_an_answer_are_the_proxys(self) -> None:
        for answer in (b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"):
            async with Receiver(answers_and_closes(answer)).listen() as proxy:
                outcome = await outcome_through(proxy.url, "http://receiver.example/")
            assert (outcome.reason, outcome.message.startswith("the proxy failed: ")) == ("proxy", True), answer

    async def test_an_answer_without_such_a_mark_counts_as_the_receivers(self) -> None:
        answer = reply_with_body(b"", "503 No", "Via: 1.1 squid", "Proxy-Status: squid; received-status=503")
        async with Receiver(answers(answer)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "http://receiver.example/")
        assert (outcome.kind, outcome.reason) == (OutcomeKind.BUSY, "status")

    async def test_without_a_proxy_such_marks_mean_nothing(self) -> None:
        answer = reply_with_body(b"", "503 No", "Proxy-Status: cdn; error=dns_error", "Retry-After: 7")
        async with Receiver(answers(answer)).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.kind, outcome.retry_after_ms) == (OutcomeKind.BUSY, 7000)


@ANY_CLIENT
class TestHttps:
    async def test_a_call_goes_through_a_tunnel_with_tls_to_the_origin(self, trusted: ssl.SSLContext) -> None:
        async with Receiver(answers(BUSY, BUSY)).listen(trusted) as receiver, ForwardProxy().listen() as proxy:
            callback = receiver.url.replace("127.0.0.1", "localhost")
            outcome = await outcome_through(proxy.url, callback, calls=2)
        authority = callback.removeprefix("https://")
        assert outcome.kind is OutcomeKind.BUSY
        assert [head.split("\r\n")[0] for head in proxy.heads] == [f"CONNECT {authority} HTTP/1.1"]
        assert "later-attempt" not in proxy.heads[0]

    @each_case(
        "connect_answer",
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.0 200 Connection established\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ],
    )
    async def test_a_tunnel_opens_with_a_status_of_2xx_whatever_headers_and_interim_responses_come_with_it(
        self, connect_answer: bytes, trusted: ssl.SSLContext
    ) -> None:
        async with (
            Receiver(answers(DONE)).listen(trusted) as receiver,
            ForwardProxy(connect_answer).listen() as proxy,
        ):
            outcome = await outcome_through(proxy.url, receiver.url.replace("127.0.0.1", "localhost"))
        assert outcome.kind is OutcomeKind.DONE

    @each_case("host", ["[::1]", "[::1]:8443", "127.0.0.1", "h.example", "xn--mnchen-3ya.de:1"])
    async def test_the_host_of_a_tunnel_has_a_port_and_an_ipv6_address_brackets(self, host: str) -> None:
        heads: list[str] = []

        async def record(connection: Connection) -> None:
            heads.append(await connection.read_head())

        async with Receiver(record).listen() as proxy:
            await outcome_through(proxy.url, f"https://{host}/")
        target = host if host.rpartition("]")[2].count(":") else f"{host}:443"
        assert heads[0].split("\r\n")[0] == f"CONNECT {target} HTTP/1.1"
        assert parse_headers(heads[0])["host"] in (target, host)  # aiohttp leaves 443 out

    async def test_a_tunnel_that_was_closed_is_replaced(self, trusted: ssl.SSLContext) -> None:
        receiver = Receiver(answers_and_closes(DONE))
        async with receiver.listen(trusted), ForwardProxy().listen() as proxy:
            outcome = await outcome_through(proxy.url, receiver.url.replace("127.0.0.1", "localhost"), calls=3)
        assert (outcome.kind, receiver.connections, len(proxy.heads)) == (OutcomeKind.DONE, 3, 3)

    async def test_the_certificate_is_verified_against_the_name_of_the_origin(self, trusted: ssl.SSLContext) -> None:
        async with Receiver(answers(DONE)).listen(trusted) as receiver, ForwardProxy().listen() as proxy:
            outcome = await outcome_through(proxy.url, receiver.url.replace("127.0.0.1", "other.example"))
        assert (outcome.reason, "Hostname mismatch" in outcome.message) == ("connect", True)

    async def test_a_failed_handshake_in_a_tunnel_is_the_receivers(self) -> None:
        async with Receiver(answer_without_tls).listen() as receiver, ForwardProxy().listen() as proxy:
            outcome = await outcome_through(proxy.url, receiver.url.replace("http", "https"))
        assert (outcome.reason, outcome.message) == ("connect", "no connection: TLS failed: WRONG_VERSION_NUMBER")

    async def test_a_handshake_that_hangs_in_a_tunnel_is_a_timeout(self) -> None:
        async with Receiver(never_answers).listen() as receiver, ForwardProxy().listen() as proxy:
            callback = receiver.url.replace("http", "https")
            outcome = await outcome_through(proxy.url, callback, timeout_ms=SHORT_TIMEOUT_MS)
        assert outcome.reason == "timeout"


def connect_answers(answer: bytes, end: Callable[[Connection], object] = Connection.close) -> Behavior:
    async def behavior(connection: Connection) -> None:
        await connection.read_head()
        await connection.write(answer)
        end(connection)

    return behavior


@ANY_CLIENT
class TestFailedTunnel:
    @each_case("status", [400, 403, 407, 502, 503, 504])
    async def test_an_error_status_is_the_proxys(self, status: int) -> None:
        answer = reply_with_body(b"no", f"{status} No", "Retry-After: 3600")
        async with Receiver(connect_answers(answer)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/")
        assert outcome == failed(f"it answered {status} to CONNECT")

    async def test_a_proxy_that_refuses_an_address_is_no_fault_of_the_proxy(self) -> None:
        async with Receiver(connect_answers(SMOKESCREENS_REFUSAL)).listen() as proxy:
            assert await outcome_through(proxy.url, "https://receiver.example/") == REFUSED

    @each_case(
        "answer",
        [
            b"",
            b"HTTP/1.1 2",
            b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
            b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
            b"\r\n" * 200_000,
        ],
    )
    async def test_garbage_is_the_proxys(self, answer: bytes) -> None:
        async with Receiver(connect_answers(answer)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/")
        assert outcome.reason == "proxy"

    @each_case("behind", [DONE, b"SSH-2.0-x\r\n\r\n"])
    async def test_bytes_behind_the_answer_are_not_taken_for_the_origins(self, behind: bytes) -> None:
        async with Receiver(connect_answers(ESTABLISHED + behind)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/")
        assert outcome.reason in ("proxy", "connect")  # aiohttp begins TLS with them

    @each_case("end", [Connection.close, Connection.reset])
    async def test_the_end_of_an_open_tunnel_is_the_receivers(self, end: Callable[[Connection], object]) -> None:
        async with Receiver(connect_answers(ESTABLISHED, end)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/")
        assert outcome.reason == "connect"

    async def test_a_reset_is_the_proxys(self) -> None:
        async with Receiver(connect_answers(b"", Connection.reset)).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/")
        assert outcome.reason == "proxy"

    async def test_closing_the_sender_ends_a_call_whose_tunnel_is_not_open(self) -> None:
        reached = asyncio.Event()

        async def hang(connection: Connection) -> None:
            await connection.read_head()
            reached.set()
            await connection.wait_closed()

        async with Receiver(hang).listen() as proxy:
            async with a_sender(proxy=Proxy.parse(proxy.url)) as sender:
                call = asyncio.create_task(sender.send(a_task(callback="https://receiver.example/"), 1, NOW))
                await reached.wait()
            with pytest.raises(LocalFault, match="the client was closed"):
                await asyncio.wait_for(call, 5)
            await asyncio.wait_for(proxy.wait_no_connection(), 5)

    async def test_a_proxy_that_never_answers_is_at_fault(self) -> None:
        async with Receiver(never_answers).listen() as proxy:
            outcome = await outcome_through(proxy.url, "https://receiver.example/", timeout_ms=SHORT_TIMEOUT_MS)
        assert outcome == failed("there was no connection through it in time")


async def test_bytes_behind_the_answer_are_the_proxys_however_they_end() -> None:
    with pytest.raises(ProxyFailed, match="there is more than one"):
        await open_tunnel(b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-x\r\n\r\n")


async def test_what_this_machine_lacks_for_a_tunnel_is_no_fault_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_sendall", fail)
    with pytest.raises(LocalFault, match="No buffer space available"):
        await open_tunnel(ESTABLISHED)


async def test_an_answer_in_segments_of_one_byte_ends_after_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    async def read_one_byte(*_: object) -> bytes:
        nonlocal reads
        reads += 1
        return b"x"

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_recv", read_one_byte)
    with pytest.raises(ProxyFailed, match="it is too long"):
        await open_tunnel(b"")
    assert reads <= 500


async def open_tunnel(answer: bytes) -> None:
    """Open a tunnel through a proxy that has sent this answer already."""
    ours, proxys = socket.socketpair()
    with ours, proxys:
        ours.setblocking(False)
        proxys.send(answer)
        await Proxy.parse("http://h:1").open_tunnel(TcpStream(ours), Origin("https", "receiver.example", 443))


@ANY_CLIENT
class TestNoProxy:
    @each_case("scheme", ["http", "https"])
    async def test_a_refused_connection_is_the_proxys(self, scheme: str) -> None:
        outcome = await outcome_through(f"http://127.0.0.1:{a_closed_port()}", f"{scheme}://receiver.example/")
        assert outcome == failed("no connection to it: Connection refused")

    @pytest.mark.parametrize("scheme", ["http", "https"])
    async def test_a_failed_lookup_is_the_proxys(self, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", FakeNameServers().getaddrinfo)
        outcome = await outcome_through("http://dead.example:3128", f"{scheme}://receiver.example/")
        assert outcome == failed("no connection to it: the name lookup failed: Name or service not known")


@ANY_CLIENT
class TestCredentials:
    @each_case("scheme", ["http", "https"])
    async def test_they_are_sent_to_the_proxy(self, scheme: str) -> None:
        heads: list[str] = []

        async def record(connection: Connection) -> None:
            heads.append(await connection.read_head())

        async with Receiver(record).listen() as proxy:
            url = proxy.url.replace("//", "//me:p%40ss%C3%BC@")
            await outcome_through(url, f"{scheme}://receiver.example/")
        assert parse_headers(heads[0])["proxy-authorization"] == "Basic bWU6cEBzc8O8"

    async def test_they_are_not_sent_to_the_origin(self, trusted: ssl.SSLContext) -> None:
        heads: list[str] = []

        async def record(connection: Connection) -> None:
            heads.append((await connection.read_request())[0].lower())
            await connection.write(DONE)

        async with Receiver(record).listen(trusted) as receiver, ForwardProxy().listen() as proxy:
            url = proxy.url.replace("//", "//me:secret@")
            await outcome_through(url, receiver.url.replace("127.0.0.1", "localhost"))
        assert "authorization" not in heads[0]

    async def test_they_are_in_no_outcome(self) -> None:
        for scheme in ("http", "https"):
            outcome = await outcome_through(f"http://me:secret@127.0.0.1:{a_closed_port()}", f"{scheme}://h.example/")
            assert "secret" not in repr(outcome)


def test_a_proxy_shows_no_password() -> None:
    assert Proxy.parse("http://me:secret@h:1") == Proxy(Origin("http", "h", 1), "Basic bWU6c2VjcmV0")
    assert "bWU6c2VjcmV0" not in repr(Proxy.parse("http://me:secret@h:1"))


@each_case(
    ("text", "by_proxy"),
    [
        ("p; error=dns_error", True),
        ("p;error=dns_error", True),
        ("p; received-status=502; error = x", True),
        ("cdn; error=dns_error, p", False),
        ("cdn; received-status=502, p; error=x", True),
        ('p; details="; error=x"', False),
        ('p; details=", q; error=x"', False),
        ('p; details="\\"; error=x"', False),
        ("p; errors=x", False),
        ("", False),
    ],
)
def test_the_last_entry_of_proxy_status_says_whose_the_answer_is(text: str, by_proxy: bool) -> None:
    assert is_answer_of_proxy(Reply(status=502, body=None, proxy_status=text)) is by_proxy
