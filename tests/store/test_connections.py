"""Connections break in all the ways in which networks break them; each break costs one failure at most."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from later.core.clock import Clock
from later.core.errors import StoreDown
from later.store.client import MAX_CONNECTIONS, StoreClient, connect, stream_reader, translate

TIMEOUT_S = 10.0
"""Longer than any answer of a working store takes, even on a busy machine."""
SHORT_TIMEOUT_S = 0.3
"""The timeout for a connection on which nothing arrives."""
MANY = 8


class Proxy:
    """A proxy to a store that can silence or reset all open connections, and forwards new ones."""

    def __init__(self, store: str) -> None:
        self.port = 0
        self._store = store
        self._client_writers: list[asyncio.StreamWriter] = []
        self._silenced: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for copy in self._copies:
                copy.cancel()

    def stop_forwarding(self) -> None:
        """Let nothing through the open connections any more, as a middlebox that has lost its state."""
        self._silenced.update(self._client_writers)

    def reset(self) -> None:
        """Reset the open connections: RST, not FIN."""
        for writer in self._client_writers:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client_writers.append(writer)
        from_store, to_store = await asyncio.open_unix_connection(self._store)
        for source, target in ((reader, to_store), (from_store, writer)):
            copy = asyncio.create_task(self._copy(source, target, writer))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client_writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await source.read(65_536):
                if client_writer not in self._silenced:
                    target.write(data)
        except OSError:
            pass
        finally:
            target.close()


@pytest.fixture
async def proxy(server_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(server_url.removeprefix("unix://")).open() as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[StoreClient]:
    """A client with many idle connections."""
    clock = Clock(time.monotonic, time.time)
    client = StoreClient(
        connect(f"redis://127.0.0.1:{proxy.port}/0", clock, TIMEOUT_S),
        clock,
        timeout_s=TIMEOUT_S,
    )
    await ping(client, MANY)
    yield client
    await client.aclose()


async def ping(client: StoreClient, times: int = 1) -> None:
    await asyncio.gather(*(client.execute("ping", ("PING",)) for _ in range(times)))


async def test_connections_that_died_together_are_one_failure(proxy: Proxy, client: StoreClient) -> None:
    proxy.stop_forwarding()
    client.timeout_s = SHORT_TIMEOUT_S
    with pytest.raises(StoreDown, match="did not answer within"):
        await ping(client)
    client.timeout_s = TIMEOUT_S
    await ping(client, MANY)


async def test_idle_connections_that_were_reset_cause_no_failure(proxy: Proxy, client: StoreClient) -> None:
    proxy.reset()
    await asyncio.sleep(0.01)  # the resets take some time to arrive
    await ping(client, MANY)


async def test_a_round_trip_under_way_when_the_client_closes_leaves_no_connection_open(
    client: StoreClient, server_url: str
) -> None:
    round_trips = [asyncio.create_task(client.execute_each("ping", [("PING",)] * 5000)) for _ in range(MANY)]
    await asyncio.sleep(0)
    await client.aclose()
    await asyncio.gather(*round_trips)
    async with Redis.from_url(server_url) as redis:
        async with asyncio.timeout(5):
            while any(other["name"] == "later" for other in await redis.client_list()):  # noqa: ASYNC110  # another's
                await asyncio.sleep(0.01)


async def test_redis_py_still_keeps_a_connections_reader_where_a_reset_is_looked_for(client: StoreClient) -> None:
    connection, _ = client._connections._idle[0]
    assert isinstance(stream_reader(connection), asyncio.StreamReader)


class TestUnknownOutcome:
    """`StoreDown.unknown`: whether commands that got no answer may have been run."""

    @pytest.mark.parametrize(
        ("verb", "unknown"), [("create", True), ("query", False), ("count", False), ("dead", False)]
    )
    async def test_a_write_that_was_sent_and_not_answered_may_have_been_run(
        self, proxy: Proxy, client: StoreClient, verb: str, unknown: bool
    ) -> None:
        proxy.stop_forwarding()
        client.timeout_s = SHORT_TIMEOUT_S
        with pytest.raises(StoreDown, match="did not answer within") as caught:
            await client.execute(verb, ("PING",))
        assert caught.value.unknown is unknown

    async def test_a_write_that_could_not_be_sent_was_not_run(self) -> None:
        clock = Clock(time.monotonic, time.time)
        client = StoreClient(connect("redis://127.0.0.1:1/0", clock, TIMEOUT_S), clock, timeout_s=TIMEOUT_S)
        with pytest.raises(StoreDown, match="cannot be reached") as caught:
            await client.execute("create", ("PING",))
        assert not caught.value.unknown

    async def test_a_write_that_waited_for_a_connection_was_not_run(self, client: StoreClient) -> None:
        slow = [
            asyncio.create_task(client.execute("create", ("BLPOP", "nothing", "0.3"))) for _ in range(MAX_CONNECTIONS)
        ]
        await asyncio.sleep(0)
        client.timeout_s = SHORT_TIMEOUT_S / 10
        with pytest.raises(StoreDown, match="did not answer within") as caught:
            await client.execute("create", ("PING",))
        assert not caught.value.unknown
        await asyncio.gather(*slow)

    async def test_a_write_that_the_store_refused_was_not_run(self) -> None:
        for error in (OutOfMemoryError("x"), ReadOnlyError("x"), ResponseError("MISCONF x")):
            refused = translate(error)
            assert isinstance(refused, StoreDown)
            assert not refused.unknown
