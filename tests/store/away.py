"""Shards that are away, on one server: what a node of a cluster that is away does to a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from later.core.errors import NodeDown
from later.store.away_tags import key_of
from later.store.client import StoreClient
from later.store.connections import RoundTrip
from later.store.keys import Shard, hash_tag
from later.store.open import Store
from later.store.scripts import Command


class PartialConnections:
    """Connections to one server that answer commands of some hash tags as a cluster does whose nodes are away."""

    def __init__(self, connections: Any, tags: Iterable[bytes]) -> None:
        self._connections = connections
        self.tags = frozenset(tags)
        self.refused: list[Command] = []
        """The commands that were not sent."""
        self.has_refused = asyncio.Event()

    async def pipeline(self, commands: Sequence[Command], round_trip: RoundTrip) -> list[Any]:
        away = [hash_tag(key_of(command)) in self.tags for command in commands]
        self.refused += [command for command, is_away in zip(commands, away, strict=True) if is_away]
        sent = [command for command, is_away in zip(commands, away, strict=True) if not is_away]
        if any(away):
            self.has_refused.set()
        answers = iter(await self._connections.pipeline(sent, round_trip) if sent else [])
        return [NodeDown("the node is away") if is_away else next(answers) for is_away in away]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connections, name)


@contextmanager
def tags_away(client: StoreClient, tags: Iterable[bytes]) -> Iterator[PartialConnections]:
    """Let the nodes of these hash tags be away in a block."""
    before = client._connections
    partial = PartialConnections(before, tags)
    client._connections = partial  # type: ignore[assignment]  # it does as they do
    try:
        yield partial
    finally:
        client._connections = before


def shards_away(store: Store, *shards: Shard) -> Any:
    """Let these shards be away in a block."""
    return tags_away(store.client, [hash_tag(shard.pool) for shard in shards])


def policies_away(store: Store) -> Any:
    """Let the node of the policies, and of what else is for the whole store, be away in a block."""
    return tags_away(store.client, [hash_tag(store.keys.policies)])
