"""The connections of the HTTP server: slow clients are cut, and one connection too many is closed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
from structlog.testing import capture_logs

from later.api import requests, server, server_connections
from later.api.server_connections import ServerConnections, connection_limit
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.api.test_load_shedding import wait_until

DRIP_S = 0.02
HEAD = b"POST /create HTTP/1.1\r\nHost: localhost\r\n"
QUERY = b'POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"id":"a"}'


pytestmark = pytest.mark.usefixtures("both_loops")


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first head has 0.1 s, a body 0.2 s, an answer that nobody reads 0.2 s."""
    monkeypatch.setattr(server_connections, "FIRST_HEAD_S", 0.1)
    monkeypatch.setattr(requests, "BODY_S", 0.2)
    monkeypatch.setattr(server, "UNREAD_ANSWER_S", 0.2)


@asynccontextmanager
async def connect(api: ApiFixture) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def time_until_cut(api: ApiFixture, sent: bytes, dripped: bytes = b"") -> tuple[float, bytes]:
    """Send bytes, then some a few at a time, and return after how long (s) the server ended the connection, and what
    it had answered."""
    loop = asyncio.get_running_loop()

    async def drip(writer: asyncio.StreamWriter) -> None:
        for position in range(len(dripped)):
            writer.write(dripped[position : position + 1])
            await asyncio.sleep(DRIP_S)

    async with connect(api) as (reader, writer):
        started, answer = loop.time(), b""
        writer.write(sent)
        dripping = asyncio.create_task(drip(writer))
        async with asyncio.timeout(5):
            with suppress(ConnectionError):  # it was cut between two bytes
                while part := await reader.read(1000):
                    answer += part
        dripping.cancel()
        return loop.time() - started, answer


async def test_slow_clients_are_cut() -> None:
    drip = b"X-Drip: " + b"x" * 500
    connections = ServerConnections(idle_s=0.2)
    async with serve_api(connections=connections) as api:
        silent, half_a_line, dripped_head, pipelined_head, dripped_body, no_body = await asyncio.gather(
            time_until_cut(api, b""),
            time_until_cut(api, b"POST /cre"),
            time_until_cut(api, HEAD, drip),
            time_until_cut(api, QUERY + HEAD, drip),
            time_until_cut(api, HEAD + b"Content-Length: 500\r\n\r\n", b" " * 500),
            time_until_cut(api, HEAD + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"),
        )
    for after_s, answer in (silent, half_a_line, dripped_head):
        assert (0.08 < after_s < 3, answer) == (True, b""), after_s
    assert 0.18 < pipelined_head[0] < 3
    assert pipelined_head[1].startswith(b"HTTP/1.1 404 ")
    for after_s, answer in (dripped_body, no_body):
        head, _, body = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
        assert (0.18 < after_s < 30, head.split(b"\r\n")[0]) == (True, b"HTTP/1.1 408 Request Timeout"), after_s
        assert json.loads(body) == {
            "type": "/problems/slow-body", "title": "The body came too slowly", "status": 408,
            "detail": "expected the whole body within 0.2 s of its head",
        }  # fmt: skip


LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def read_after_the_end(api: ApiFixture, *parts: bytes) -> bytes:
    """Send bytes, end our side of the connection, and return what comes until the server ends its side."""
    async with connect(api) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.02)
        writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()


async def test_a_client_that_ends_its_side_gets_its_answers_and_then_the_end() -> None:
    async with serve_api() as api:
        assert (await read_after_the_end(api, LIVEZ)).endswith(b'{"status":"alive"}')
        assert (await read_after_the_end(api, QUERY)).startswith(b"HTTP/1.1 404 ")
        answers = await read_after_the_end(api, LIVEZ, LIVEZ * 3 + HEAD)
        assert answers.count(b'{"status":"alive"}') == 4
        api.client.resume = asyncio.Event()
        answer = asyncio.create_task(read_after_the_end(api, QUERY))
        await asyncio.sleep(0.1)
        api.client.resume.set()
        assert (await answer).startswith(b"HTTP/1.1 404 ")


async def test_a_client_that_ends_its_side_without_a_whole_request_is_not_waited_for() -> None:
    async with serve_api() as api:
        for sent in ((), (HEAD,), (QUERY[:-3],), (HEAD + b"Content-Length: 9\r\n\r\n", b"{")):
            assert await read_after_the_end(api, *sent) == b""
        no_body = LIVEZ[:-2] + b"Content-Length: 9\r\n\r\n"
        assert (await read_after_the_end(api, no_body)).endswith(b'{"status":"alive"}')


async def test_an_idle_connection_is_kept_longer_than_a_first_head_may_take() -> None:
    connections = ServerConnections(idle_s=60)
    async with serve_api(connections=connections) as api, connect(api) as (reader, writer):
        for _ in range(2):
            writer.write(QUERY)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 404 ")
            await reader.readuntil(b"}")
            await asyncio.sleep(0.15)


async def test_a_request_that_takes_long_is_not_cut() -> None:
    async with serve_api(connections=ServerConnections(idle_s=0.1)) as api:
        api.client.resume = asyncio.Event()
        answer = asyncio.create_task(api.post("/create", {**MINIMAL, "id": "a"}))
        await asyncio.sleep(0.2)
        api.client.resume.set()
        assert (await answer)[0] == 200


async def test_a_client_that_does_not_read_its_answer_is_cut() -> None:
    connections = ServerConnections()
    async with serve_api(connections=connections, max_body=2**21) as api:
        for _ in range(6):
            assert (await api.post("/create", {**MINIMAL, "content": "x" * 1_000_000, "delay": 60}))[0] == 200
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((api.http.host, api.http.port))
            client.send(b'POST /list HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{"topic":"order"}')
            await wait_until(lambda: connections.count == 2)
            await wait_until(lambda: connections.count == 1)


async def test_a_client_that_leaves_the_end_of_a_short_answer_unread_is_cut() -> None:
    connections = ServerConnections(idle_s=0.1)
    async with serve_api(connections=connections) as api:
        assert (await api.post("/create", {**MINIMAL, "content": "x" * 60_000, "delay": 60}))[0] == 200
        assert api.http.server.runner is not None
        [site] = api.http.server.runner.sites
        listener = cast(asyncio.Server, site._server)
        for listening in listener.sockets:  # accepted connections inherit it; less is left than a transport buffers
            with socket.socket(fileno=os.dup(listening.fileno())) as server_socket:
                server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((api.http.host, api.http.port))
            client.send(b'POST /list HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{"topic":"order"}')
            await wait_until(lambda: connections.count > 0)
            await wait_until(lambda: connections.count == 0)


async def test_one_connection_too_many_is_closed_at_once_and_counted() -> None:
    connections = ServerConnections(most=50)
    async with serve_api(connections=connections) as api:
        connections.count_refused = api.metrics.connections_refused.inc
        server_connections.FIRST_HEAD_S = 60
        with capture_logs() as events:
            streams = [await asyncio.open_connection(api.http.host, api.http.port) for _ in range(70)]
            closed = await asyncio.gather(*(is_closed(reader) for reader, _ in streams))
        assert closed == [False] * 50 + [True] * 20
        assert api.metric("later_connections_refused_total") == 20
        assert [(event["event"], event["connections"]) for event in events] == [("connections refused", 50)]
        for _, writer in streams[:2]:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await api.post("/query", {"id": "a"}))[0] == 404
        for _, writer in streams:
            writer.transport.abort()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Return True if the server ends the connection soon."""
    try:
        return await asyncio.wait_for(reader.read(), 0.1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    ("descriptors", "slots", "connections"),
    [
        (65_536, 256, 10_000),
        (4096, 256, 3328),
        (1024, 256, 256),
        (256, 256, 64),
        (1024, 0, 768),
        (16_384, 10_000, 4096),
    ],
)
def test_deliveries_and_the_store_find_descriptors(descriptors: int, slots: int, connections: int) -> None:
    assert connection_limit(descriptors, slots) == connections
