"""TLS as receivers may speak it: records and segments of any size, and endings of any kind."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Awaitable, Callable

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.delivery.http_client import LocalFault
from later.delivery.tls_transport import TlsTransport
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.delivery.test_tls import CERTIFICATES, identity
from tests.receivers import (
    BUSY,
    DONE,
    Connection,
    Receiver,
    a_sender,
    never_answers,
    reply_with_body,
)

pytestmark = [pytest.mark.usefixtures("client"), pytest.mark.usefixtures("trust")]

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))


class Records:
    """A receiver's end of TLS, which gets at the records that are sent; that of a tunnel has records below itself."""

    def __init__(self, connection: Connection | Records, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Shake hands; what ends the handshake of TLS 1.3 with its session tickets is not sent yet."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._connection.write(self._outgoing.read())
                self._incoming.write(await self._connection.read_some())
            else:
                return

    async def read_request(self) -> None:
        """Shake hands, and read a request that has a body of JSON."""
        await self.handshake()
        await self._connection.write(self._outgoing.read())
        request = b""
        while not request.endswith(b"}"):
            try:
                request += self.tls.read(65_536)
            except ssl.SSLWantReadError:
                self._incoming.write(await self._connection.read_some())

    async def read_some(self) -> bytes:
        """Return what arrives next, decrypted."""
        while True:
            try:
                return self.tls.read(65_536)
            except ssl.SSLWantReadError:
                self._incoming.write(await self._connection.read_some())

    async def write(self, content: bytes) -> None:
        await self._connection.write(self.encrypt(content))

    def encrypt(self, *contents: bytes) -> bytes:
        """Return the records of these contents, one for each."""
        for content in contents:
            self.tls.write(content)
        return self._outgoing.read()

    def say_goodbye(self) -> bytes:
        """Return the records that end the connection."""
        with pytest.raises(ssl.SSLWantReadError):  # the answer to it
            self.tls.unwrap()
        return self._outgoing.read()


async def outcome_of(
    behavior: Callable[[Connection], Awaitable[object]], tls: ssl.SSLContext | None = None, timeout_ms: int = 10_000
) -> Outcome:
    """Return the outcome of a call by https to a receiver that speaks TLS itself, or this one."""
    async with Receiver(behavior).listen(tls) as receiver, a_sender(timeout_ms) as sender:
        return await sender.send(a_task(callback=receiver.url.replace("http:", "https:")), 1, NOW)


def split(reply: bytes) -> list[bytes]:
    return [reply[i : i + 1] for i in range(len(reply))]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: v.name)
class TestRecords:
    async def test_a_reply_in_many_records_of_one_segment_is_read(self, version: ssl.TLSVersion) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver", version))
            await records.read_request()
            await connection.write(records.encrypt(*split(DONE)))
            await connection.wait_closed()

        assert (await outcome_of(behavior)).kind is OutcomeKind.DONE

    async def test_a_record_in_many_segments_is_read(self, version: ssl.TLSVersion) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver", version))
            await records.read_request()
            for segment in split(records.encrypt(DONE)):
                await connection.write(segment)
                await asyncio.sleep(0)
            await connection.wait_closed()

        assert (await outcome_of(behavior)).kind is OutcomeKind.DONE

    async def test_a_reply_of_many_long_records_is_read(self, version: ssl.TLSVersion) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver", version))
            await records.read_request()
            reply = reply_with_body(b'{"code": 100, "x": "%s"}' % (b"x" * 60_000))
            await connection.write(records.encrypt(reply))
            await connection.wait_closed()

        assert (await outcome_of(behavior)).kind is OutcomeKind.DONE

    async def test_a_broken_record_is_a_broken_reply(self, version: ssl.TLSVersion) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver", version))
            await records.read_request()
            record = bytearray(records.encrypt(DONE))
            record[-1] ^= 1
            await connection.write(bytes(record))
            await connection.wait_closed()

        outcome = await outcome_of(behavior)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "reply")

    async def test_plain_text_after_the_handshake_is_a_broken_reply(self, version: ssl.TLSVersion) -> None:
        async def behavior(connection: Connection) -> None:
            await Records(connection, identity("receiver", version)).read_request()
            await connection.write(DONE)
            await connection.wait_closed()

        outcome = await outcome_of(behavior)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "reply")


class TestEnd:
    @each_case(("says_goodbye", "length"), [(True, 13), (False, 13), (True, 60_000), (False, 60_000)])
    async def test_a_body_that_ends_with_the_connection_is_complete(self, says_goodbye: bool, length: int) -> None:
        """Many receivers close without a goodbye, such as those on Python's `http.server`."""

        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver"))
            await records.read_request()
            end = records.encrypt(b"HTTP/1.0 200 OK\r\n\r\n" + b'{"code": 101}'.ljust(length))
            if says_goodbye:
                with pytest.raises(ssl.SSLWantReadError):  # the answer to it
                    records.tls.unwrap()
                end += records.encrypt()
            await connection.write(end)
            connection.close()

        assert (await outcome_of(behavior)).kind is OutcomeKind.BUSY

    async def test_a_goodbye_amid_a_body_of_known_length_is_a_broken_reply(self) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver"))
            await records.read_request()
            end = records.encrypt(DONE[:-4])
            with pytest.raises(ssl.SSLWantReadError):
                records.tls.unwrap()
            await connection.write(end + records.encrypt())
            await connection.wait_closed()

        outcome = await outcome_of(behavior)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "reply")

    async def test_an_idle_connection_that_gets_a_goodbye_is_closed(self) -> None:
        """The second call comes on a new one."""
        goodbye_sent = asyncio.Event()

        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver"))
            await records.read_request()
            await connection.write(records.encrypt(DONE))
            with pytest.raises(ssl.SSLWantReadError):
                records.tls.unwrap()
            await connection.write(records.encrypt())
            await connection.wait_closed()
            goodbye_sent.set()

        async with Receiver(behavior).listen() as receiver, a_sender() as sender:
            task = a_task(callback=receiver.url.replace("http", "https"))
            await sender.send(task, 1, NOW)
            await goodbye_sent.wait()
            outcome = await sender.send(task, 1, NOW)
        assert (outcome.kind, receiver.connections) == (OutcomeKind.DONE, 2)

    async def test_a_connection_that_is_not_kept_ends_with_a_goodbye(self) -> None:
        ends: list[bytes] = []

        async def behavior(connection: Connection) -> None:
            await connection.read_request()
            await connection.write(DONE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            ends.append(await connection.read_some())

        async with Receiver(behavior).listen(identity("receiver")) as receiver, a_sender() as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
            await receiver.wait_no_connection()
        assert (outcome.kind, ends) == (OutcomeKind.DONE, [b""])


@pytest.mark.parametrize("client", ["own"], indirect=True)
class TestOwnClient:
    """Promises of later's own client only."""

    async def test_endless_session_tickets_end_the_connection(self) -> None:
        tls = identity("receiver")
        tls.num_tickets = 1500
        outcome = await outcome_of(never_answers, tls)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "reply")

    async def test_a_reply_before_the_request_is_not_taken_for_its_reply(self) -> None:
        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver", ssl.TLSVersion.TLSv1_2))
            await records.handshake()
            await connection.write(records.encrypt(DONE))  # together with the end of the handshake
            await connection.wait_closed()

        assert (await outcome_of(behavior)).kind is OutcomeKind.FAILED

    async def test_a_record_behind_a_large_reply_is_not_taken_for_the_reply_of_the_next_call(self) -> None:
        """It is there before the large reply is parsed, so the next call must not come first."""

        async def behavior(connection: Connection) -> None:
            records = Records(connection, identity("receiver"))
            await records.read_request()
            await connection.write(records.encrypt(reply_with_body(b'{"code": 100}'.ljust(49_000)), BUSY))
            await connection.wait_closed()

        async with Receiver(behavior).listen() as receiver, a_sender() as sender:
            task = a_task(callback=receiver.url.replace("http", "https"))
            outcomes = [await sender.send(task, 1, NOW) for _ in range(2)]
        assert ([outcome.kind for outcome in outcomes], receiver.connections) == ([OutcomeKind.DONE] * 2, 2)

    @each_case("name", ["other_name", "expired"])
    async def test_a_failed_handshake_leaves_nothing_for_the_garbage_collector(self, name: str) -> None:
        async with Receiver(never_answers).listen(identity(name)) as receiver, a_sender() as sender:
            gc.collect()
            gc.freeze()  # and leave what there is to none of the searches below
            gc.disable()
            try:
                outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
                await asyncio.sleep(0.01)  # until the connection is closed
                kinds = (ssl.SSLCertVerificationError, TlsTransport)
                left = [found for found in gc.get_objects() if isinstance(found, kinds)]
            finally:
                gc.enable()
        assert (outcome.kind, left) == (OutcomeKind.FAILED, [])

    async def test_closing_the_client_ends_calls_in_a_handshake(self) -> None:
        has_begun = asyncio.Event()

        async def begin(connection: Connection) -> None:
            await connection.read_some()
            has_begun.set()
            await connection.wait_closed()

        async with Receiver(begin).listen() as receiver:
            async with a_sender() as sender:
                url = receiver.url.replace("http", "https")
                call = asyncio.create_task(sender.send(a_task(callback=url), 1, NOW))
                await has_begun.wait()
            with pytest.raises(LocalFault):
                await call
            await receiver.wait_no_connection()
