"""TLS of the HTTP server: versions, slow handshakes, and the limit of connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from later.api import server, server_connections
from later.api.server_connections import ServerConnections
from later.daemon.certificates import ServerCertificate
from tests.api.api_fixture import ApiFixture, serve_api
from tests.api.test_load_shedding import wait_until
from tests.builders import a_task
from tests.delivery.test_tls import CERTIFICATES

pytestmark = pytest.mark.usefixtures("both_loops")

GOODBYE_S = 0.1
REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> ServerConnections:
    monkeypatch.setattr(server_connections, "FIRST_HEAD_S", 0.4)
    monkeypatch.setattr(server, "GOODBYE_S", GOODBYE_S)
    return ServerConnections(most=5, certificate=ServerCertificate(CERTIFICATES / "receiver.pem", None))


@pytest.fixture
async def api(connections: ServerConnections) -> AsyncIterator[ApiFixture]:
    async with serve_api(connections=connections) as built:
        yield built


def trusting(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return the TLS of a client that knows the authority, and no newer version than this one."""
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    context.maximum_version = version
    return context


async def ask(api: ApiFixture, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port, ssl=context)
    writer.write(REQUEST)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
async def test_clients_speak_tls_1_2_or_1_3(api: ApiFixture) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert (await ask(api, trusting(version))).startswith(b"HTTP/1.1 200 OK\r\n")
    old = trusting()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await ask(api, old)


async def test_a_handshake_that_takes_too_long_is_cut_and_takes_a_place_until_then(
    api: ApiFixture, connections: ServerConnections
) -> None:
    streams = [await asyncio.open_connection(api.http.host, api.http.port) for _ in range(7)]
    streams[0][1].write(b"GET / HTTP/1.1\r\n\r\n")  # no TLS at all
    streams[1][1].write(b"\x16\x03\x01\x02\x00\x01")  # half a hello
    await wait_until(lambda: connections.count == 4)  # two were too many, one is no TLS
    async with asyncio.timeout(5):
        await asyncio.gather(*(drain(reader) for reader, _ in streams))
    await wait_until(lambda: connections.count == 0)
    for _, writer in streams:
        writer.transport.abort()


async def drain(reader: asyncio.StreamReader) -> None:
    """Read until the server has ended the connection."""
    with suppress(ConnectionError):
        await reader.read()


async def test_an_answer_that_is_read_slowly_is_sent_whole_before_the_connection_is_closed(
    connections: ServerConnections,
) -> None:
    async with serve_api(connections=connections) as api:
        await api.store.tasks.create([a_task(id=f"{n}", delay=60, content="x" * 1_000_000) for n in range(6)])
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port, ssl=trusting(), limit=4096)
        writer.write(
            b"POST /list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 17\r\n\r\n"
            b'{"topic":"order"}'
        )
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(3 * GOODBYE_S)
        assert f"Content-Length: {len(await reader.read())}".encode() in head
        writer.close()


async def test_a_client_that_says_nothing_after_its_handshake_is_cut(
    api: ApiFixture, connections: ServerConnections
) -> None:
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port, ssl=trusting())
    async with asyncio.timeout(5):
        await drain(reader)
    await wait_until(lambda: connections.count == 0)  # even if the client does not say goodbye
    writer.transport.abort()


async def test_a_stop_ends_handshakes(connections: ServerConnections) -> None:
    async with serve_api(connections=connections) as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        await wait_until(lambda: connections.count == 1)
    await drain(reader)
    assert connections.count == 0
    writer.transport.abort()
