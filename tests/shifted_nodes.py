"""Nodes of a cluster whose clocks differ: proxies before them shift what they answer to TIME."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from later.address_types import Address
from tests.cluster_service import HOST, ClusterService

_TIME = re.compile(rb"\*2\r\n\$10\r\n(\d{10})\r\n\$\d\r\n(\d{1,6})\r\n")
"""An answer to TIME, which nothing else looks like."""


def shift(data: bytes, by_us: int) -> bytes:
    """Return what a server sends, with its time shifted."""

    def shifted(found: re.Match[bytes]) -> bytes:
        seconds, micros = divmod(int(found[1]) * 1_000_000 + int(found[2]) + by_us, 1_000_000)
        return b"*2\r\n$10\r\n%d\r\n$%d\r\n%d\r\n" % (seconds, len(b"%d" % micros), micros)

    return _TIME.sub(shifted, data)


@asynccontextmanager
async def shift_clocks(service: ClusterService, by_ms: Mapping[Address, int]) -> AsyncIterator[dict[Address, Address]]:
    """Shift the clocks of nodes, which announce proxies as their addresses. Yield the proxy of each node."""
    proxies: dict[Address, Address] = {}
    async with AsyncExitStack() as stack:
        for node, shift_ms in by_ms.items():
            proxy = Proxy(node, shift_ms * 1000)
            server = await asyncio.start_server(proxy.serve, HOST, 0)
            stack.push_async_callback(proxy.end)
            stack.callback(server.close)
            proxies[node] = Address(HOST, server.sockets[0].getsockname()[1])
            await asyncio.to_thread(service.run, node, "CONFIG", "SET", "cluster-announce-port", proxies[node].port)
        await asyncio.to_thread(
            service.wait_until,
            lambda: all(_announced(service, node) >= set(proxies.values()) for node in by_ms),
            "the nodes do not know of the proxies",
        )
        yield proxies


def _announced(service: ClusterService, node: Address) -> set[Address]:
    rows = service.run(node, "CLUSTER", "NODES").decode().splitlines()
    return {Address(HOST, int(row.split()[1].split("@")[0].rpartition(":")[2])) for row in rows}


class Proxy:
    """A proxy to one node, which shifts its time by so many microseconds."""

    def __init__(self, node: Address, by_us: int) -> None:
        self._node = node
        self._by_us = by_us
        self._passing: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what both sides of a connection send, until one of them ends it."""
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._node)
        except OSError:
            writer.close()
            return
        for source, target, by_us in ((reader, server_writer, 0), (server_reader, writer, self._by_us)):
            passing = asyncio.create_task(_pass(source, target, by_us))
            self._passing.add(passing)
            passing.add_done_callback(self._passing.discard)

    async def end(self) -> None:
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, by_us: int) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(shift(data, by_us) if by_us else data)
                await writer.drain()
    finally:
        writer.close()
