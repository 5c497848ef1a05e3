"""TLS to receivers: who is refused, why, and sessions that are resumed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from later.core.receiver_tls import ReceiverTls
from later.core.retry import OutcomeKind
from later.daemon.certificates import read_client_tls
from later.delivery import tls
from later.delivery.client_settings import ClientSettings
from later.delivery.proxy import Proxy
from later.delivery.resolver import Resolver
from later.delivery.tls import TlsContexts
from tests import receivers
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.delivery.forward_proxy import ForwardProxy
from tests.receivers import (
    CLIENTS,
    DONE,
    Connection,
    PolicySender,
    Receiver,
    a_sender,
    answers,
    answers_and_closes,
    reply_with_body,
)

CERTIFICATES = Path(__file__).parent / "certificates"
"""Certificates of one authority: for localhost, receiver.example and 127.0.0.1, until 2126 and until 2020; for another
name. One of a client, of another authority."""

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))


def identity(name: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return the TLS of a receiver with this certificate, which speaks no newer version than this one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem")
    context.maximum_version = version
    return context


async def message_from(receiver_tls: ssl.SSLContext) -> str:
    async with Receiver(answers(DONE)).listen(receiver_tls) as receiver, a_sender() as sender:
        outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert outcome.reason in ("connect", "")
    return outcome.message


@pytest.mark.usefixtures("trust")
class TestTrustedAuthority:
    @each_case("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_a_receiver_with_a_valid_certificate_is_called(self, version: ssl.TLSVersion) -> None:
        assert await message_from(identity("receiver", version)) == ""

    async def test_a_certificate_for_another_name_is_refused(self) -> None:
        message = await message_from(identity("other_name"))
        assert message == (
            "no connection: the certificate was refused: IP address mismatch, certificate is not valid for '127.0.0.1'."
        )

    async def test_an_expired_certificate_is_refused(self) -> None:
        message = await message_from(identity("expired"))
        assert message == "no connection: the certificate was refused: certificate has expired"

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
    async def test_a_receiver_that_speaks_tls_1_1_at_most_is_refused(self) -> None:
        old = identity("receiver", ssl.TLSVersion.TLSv1_1)
        old.set_ciphers("ALL:@SECLEVEL=0")
        assert (await message_from(old)).startswith("no connection: ")

    async def test_a_connection_that_ends_during_the_handshake_is_a_failure(self) -> None:
        async def close(connection: Connection) -> None:
            await connection.read_some()
            connection.close()

        async with Receiver(close).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
        assert outcome.reason == "connect"

    async def test_a_name_is_sent_and_verified(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve = Resolver.resolve

        async def resolve_locally(self: Resolver, host: str, port: int) -> object:
            return await resolve(self, "localhost", port)

        monkeypatch.setattr(Resolver, "resolve", resolve_locally)
        names: list[str | None] = []
        receiver_tls = identity("receiver")
        receiver_tls.sni_callback = lambda connection, name, context: names.append(name)
        async with Receiver(answers(DONE)).listen(receiver_tls) as receiver, a_sender() as sender:
            kinds = [
                (await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", host)), 1, NOW)).kind
                for host in ("Receiver.Example", "receiver.example.", "elsewhere.example")
            ]
        assert kinds == [OutcomeKind.DONE, OutcomeKind.DONE, OutcomeKind.FAILED]
        assert names == ["receiver.example", "receiver.example", "elsewhere.example"]

    async def test_a_connection_is_kept(self) -> None:
        async with Receiver(answers(DONE, DONE)).listen(identity("receiver")) as receiver, a_sender() as sender:
            for _ in range(2):
                outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.kind, receiver.connections) == (OutcomeKind.DONE, 1)

    async def test_a_connection_with_an_unsent_request_is_not_kept(self) -> None:
        """The rest of the request would be sent first, and the next call wait for a receiver that does not read it."""

        async def answer_early(connection: Connection) -> None:
            await connection.read_head()
            await connection.write(reply_with_body(b"", "413 Too Large"))
            await asyncio.sleep(60)

        early = Receiver(answer_early, answers(DONE))
        async with early.listen(identity("receiver")) as receiver, a_sender() as sender:
            await sender.send(a_task(callback=receiver.url, content="x" * 20_000_000), 1, NOW)
            outcome = await asyncio.wait_for(sender.send(a_task(callback=receiver.url), 1, NOW), 10)
        assert (outcome.kind, receiver.connections) == (OutcomeKind.DONE, 2)

    async def test_a_receiver_that_speaks_first_is_a_failure(self) -> None:
        async def greet(connection: Connection) -> None:
            await connection.write(b"220 mail.example ESMTP\r\n")
            await connection.wait_closed()

        async with Receiver(greet).listen() as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url.replace("http", "https")), 1, NOW)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "connect")

    async def test_a_long_content_arrives(self) -> None:
        async with Receiver(answers(DONE)).listen(identity("receiver")) as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url, content="x" * 3_000_000), 1, NOW)
        assert outcome.kind is OutcomeKind.DONE


async def test_an_unknown_authority_is_refused() -> None:
    message = await message_from(identity("receiver"))
    assert message.startswith("no connection: the certificate was refused: ")
    assert "local issuer" in message


async def test_a_handshake_that_hangs_is_a_timeout_and_delays_no_other_call() -> None:
    async def hang(connection: Connection) -> None:
        await connection.wait_closed()

    async with (
        Receiver(hang).listen() as hanging,
        Receiver(answers(DONE)).listen() as receiver,
        a_sender(timeout_ms=500) as sender,
    ):
        url = hanging.url.replace("http", "https")
        calls = [asyncio.create_task(sender.send(a_task(callback=url), 1, NOW)) for _ in range(20)]
        outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        are_hanging = [not call.done() for call in calls]
        reasons = {(await call).reason for call in calls}
    assert (outcome.kind, are_hanging, reasons) == (OutcomeKind.DONE, [True] * 20, {"timeout"})


@pytest.mark.usefixtures("trust")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
@pytest.mark.parametrize("client", ["own"], indirect=True)
async def test_a_new_connection_resumes_the_session_of_the_last_one(version: ssl.TLSVersion) -> None:
    """aiohttp's client makes a full handshake each time."""
    resumed: list[bool | None] = []

    async def answer(connection: Connection) -> None:
        resumed.append(connection.has_resumed_session())
        await answers_and_closes(DONE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))(connection)

    async with Receiver(answer).listen(identity("receiver", version)) as receiver, a_sender() as sender:
        for _ in range(3):
            await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert resumed == [False, True, True]


class FakeTls:
    """As much of a TLS object as is read. `reads` counts reads of its session, each of which copies it."""

    reads = 0

    def __init__(self, host: str, *, session_reused: bool = False) -> None:
        self.server_hostname = host
        self.session_reused = session_reused

    @property
    def session(self) -> object:
        FakeTls.reads += 1
        return object()


def a_tls_client() -> Any:
    """Return a client that takes `FakeTls`."""
    return tls.TlsClient(tls.TlsContexts(tls.build_tls_context()))


def test_the_sessions_of_a_thousand_hosts_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "MAX_SESSIONS", 2)
    client = a_tls_client()
    for host in ("a", "b", "a", "c"):
        client.remember(FakeTls(host), was_offered=client.has_session(host))
    assert list(client.sessions) == ["a", "c"]


def test_a_session_is_read_once_for_all_the_connections_that_resume_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTls, "reads", 0)
    client = a_tls_client()
    for _ in range(100):  # they began together, when no session was known
        client.remember(FakeTls("a"), was_offered=False)
    first = client.sessions["a"]
    for _ in range(100):
        client.remember(FakeTls("a", session_reused=True), was_offered=True)
    assert (FakeTls.reads, client.sessions["a"]) == (1, first)
    client.remember(FakeTls("a"), was_offered=True)  # the receiver resumes it no more
    assert (FakeTls.reads, client.sessions["a"] is first) == (2, False)


def contexts(**files: ReceiverTls) -> TlsContexts:
    """Return the TLS of calls with these files for 127.0.0.1 or localhost."""
    names = {"loopback": "127.0.0.1", "localhost": "localhost"}
    return read_client_tls(None, {names[name]: receiver for name, receiver in files.items()})


@asynccontextmanager
async def a_sender_with(tls: TlsContexts) -> AsyncIterator[PolicySender]:
    client = CLIENTS[receivers.client_name](
        ClientSettings(max_lookups=8, max_idle=64, guard=NO_GUARD, proxy=None, tls=tls)
    )
    async with a_sender(client=client) as sender:
        yield sender


def demanding(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
    """Return the TLS of a receiver that calls must show a certificate. (In TLS 1.3 it says so after the handshake.)"""
    context = identity("receiver", version)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(CERTIFICATES / "client_authority.pem")
    return context


CLIENT = CERTIFICATES / "client.pem"
AUTHORITY = CERTIFICATES / "authority.pem"


async def test_a_certificate_is_shown_to_the_receiver_that_it_is_for_and_to_no_other() -> None:
    tls = contexts(loopback=ReceiverTls(cert=CLIENT, ca=AUTHORITY), localhost=ReceiverTls(ca=AUTHORITY))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        receiver = Receiver(answers(DONE, DONE))
        async with receiver.listen(demanding(version)), a_sender_with(tls) as sender:
            known = [await sender.send(a_task(callback=receiver.url), 1, NOW) for _ in range(2)]
            assert [outcome.kind for outcome in known] == [OutcomeKind.DONE] * 2
            assert receiver.connections == 1
            other = await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", "localhost")), 1, NOW)
            assert (other.kind, other.reason in ("connect", "reply")) == (OutcomeKind.FAILED, True)


async def test_a_certificate_for_a_receiver_is_not_shown_to_the_proxy_nor_its_authority_trusted_there() -> None:
    shown: list[Any] = []

    class AskingProxy(ForwardProxy):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            shown.append(writer.get_extra_info("peercert"))
            await super()._serve(reader, writer)

    asking = identity("receiver")
    asking.verify_mode = ssl.CERT_OPTIONAL
    asking.load_verify_locations(CERTIFICATES / "client_authority.pem")
    build = CLIENTS[receivers.client_name]
    for_receiver, for_proxy = (
        {"localhost": ReceiverTls(cert=CLIENT, ca=AUTHORITY)},
        {"127.0.0.1": ReceiverTls(ca=AUTHORITY)},
    )
    async with AskingProxy().listen(asking) as server, Receiver(answers(DONE)).listen(demanding()) as receiver:
        proxy = Proxy.parse(server.url)
        task = a_task(callback=receiver.url.replace("127.0.0.1", "localhost"))
        for names, reason in ((for_receiver, "proxy"), (for_receiver | for_proxy, "")):
            client = build(
                ClientSettings(
                    max_lookups=8, max_idle=64, guard=NO_GUARD, proxy=proxy, tls=read_client_tls(None, names)
                )
            )
            async with a_sender(client=client, proxy=proxy) as sender:
                assert (await sender.send(task, 1, NOW)).reason == reason
    assert shown == [None]


async def test_the_authority_for_a_receiver_is_trusted_for_it_alone() -> None:
    tls = contexts(loopback=ReceiverTls(ca=AUTHORITY))
    async with Receiver(answers(DONE)).listen(identity("receiver")) as receiver, a_sender_with(tls) as sender:
        outcomes = [
            await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", host)), 1, NOW)
            for host in ("127.0.0.1", "localhost")
        ]
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DONE, OutcomeKind.FAILED]
    assert "local issuer" in outcomes[1].message


async def test_an_authority_of_the_operator_is_trusted_besides_the_machines() -> None:
    tls = read_client_tls(str(AUTHORITY), {})
    async with Receiver(answers(DONE)).listen(identity("receiver")) as receiver, a_sender_with(tls) as sender:
        outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert outcome.kind is OutcomeKind.DONE


async def test_an_authority_for_one_receiver_is_the_only_one_that_it_may_have() -> None:
    receivers_tls = {"127.0.0.1": ReceiverTls(ca=CERTIFICATES / "client_authority.pem")}
    tls = read_client_tls(str(AUTHORITY), receivers_tls)
    async with Receiver(answers(DONE)).listen(identity("receiver")) as receiver, a_sender_with(tls) as sender:
        outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert outcome.kind is OutcomeKind.FAILED


async def test_a_receiver_that_misses_a_certificate_is_no_fault_of_this_machine() -> None:
    """In TLS 1.3 it says so when the request is under way; OpenSSL's errors have numbers that mean something else."""
    tls = contexts(loopback=ReceiverTls(ca=AUTHORITY))
    receiver = Receiver(answers(DONE))
    async with receiver.listen(demanding(ssl.TLSVersion.TLSv1_3)), a_sender_with(tls) as sender:
        outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert outcome.kind is OutcomeKind.FAILED
    assert "not permitted" not in outcome.message
