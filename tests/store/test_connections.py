"""Connections break in all the ways in which networks break them; each break costs one failure at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from later.core.clock import Clock
from later.core.errors import StoreDown
from later.store.client import StoreClient, translate
from later.store.connections import MAX_CONNECTIONS, connect, stream_reader
from tests.store.store_proxy import Proxy

TIMEOUT_S = 10.0
"""Longer than any answer of a working store takes, even on a busy machine."""
SHORT_TIMEOUT_S = 0.3
"""The timeout for a connection on which nothing arrives."""
MANY = 8


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
