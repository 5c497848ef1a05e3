"""A node of a cluster: its connections, and the check of its server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.exceptions as errors
import structlog
from redis.asyncio import Redis

from later.address_types import Address
from later.store.connections import Connections, RoundTrip, UncheckedServer
from later.store.schema import check_server, parse_info, run_id
from later.store.scripts import Command

log = structlog.get_logger("later.cluster")

NODE_CONNECTIONS = 4
"""Connections to each node: a cluster of many processes and nodes has many, and a node takes 10,000 by default."""


class Node:
    """A node and its connections."""

    def __init__(self, redis: Redis) -> None:
        self.connections = Connections(redis, NODE_CONNECTIONS)
        self.checked: set[str] = set()
        """Run ids of the server that have passed the check."""
        self.is_away = False
        """True if the node did not answer when it was asked last."""
        self._checking = asyncio.Lock()
        self._unfit: str | None = None
        """Why the server has not passed the check; None if it has."""

    async def pipeline(self, commands: Sequence[Command], round_trip: RoundTrip) -> list[Any]:
        """Return the answers to commands. The server is checked first if it is another than before.

        Raises:
            RedisError, OSError: as `Connections.pipeline`; ReadOnlyError if the node is a replica.
            StoreMismatch: the server cannot serve.
        """
        try:
            return await self.connections.pipeline(commands, round_trip)
        except UncheckedServer as error:
            found = error.run_id
        async with self._checking:
            if found not in self.checked:
                await self.connections.drop_all()  # those that are still open lead to the server before
                self.checked.add(await self._check())
                self._unfit = None
        return await self.connections.pipeline(commands, round_trip)

    def note_unfit(self, address: Address, reason: str) -> None:
        """Log, once, why the server at an address cannot serve."""
        if reason != self._unfit:
            self._unfit = reason
            log.warning("node of the store refused", node=str(address), reason=reason)

    async def _check(self) -> str:
        """Check the server, and return its run id."""
        info = (await self.connections.pipeline([("INFO",)], RoundTrip()))[0]
        if isinstance(info, Exception):
            raise info
        facts = parse_info(info)
        check_server(facts, in_cluster=True)
        if facts.get("role") != "master":
            raise errors.ReadOnlyError("the node is a replica")
        return run_id(facts)
