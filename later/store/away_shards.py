"""The shards that are away: a node of a cluster that is away stops its shards, and no others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress

from later.core.errors import LaterError
from later.core.task import Task
from later.store.client import StoreClient
from later.store.keys import Keys, Shard, hash_tag
from later.store.scripts import Command

MAX_DRAWS = 8
"""How often an id is drawn at most until it falls into a shard that is there. With half of the shards away, one task in
256 is refused then."""


class AwayShards:
    """The shards that did not answer when they were asked last."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def __len__(self) -> int:
        """Return how many shards are away."""
        away = self._client.away_tags
        return sum(hash_tag(shard.pool) in away for shard in self._keys.shards) if away else 0

    def __contains__(self, shard: Shard) -> bool:
        return hash_tag(shard.pool) in self._client.away_tags

    def draw(self, admit: Callable[[], Task]) -> Task:
        """Return a task that `admit` makes with an id that it draws: in a shard that is there, if that is found.

        `admit` may make it with the same id each time, because its caller chose that.
        """
        task = admit()
        if not self._client.away_tags:
            return task
        for _ in range(MAX_DRAWS - 1):
            if self._keys.shard_of(task.id) not in self:
                break
            before, task = task, admit()
            if task.id == before.id:
                break
        return task

    def node_of(self, name: str) -> Hashable:
        """Return the node of a task's shard; None if there is one server."""
        return self._client.node_of(self._keys.shard_of(name).pool)

    async def ask_again(self) -> None:
        """Ask the shards that are away whether they are there again: perhaps nothing else asks them."""
        asks: list[Command] = [("EXISTS", shard.pool) for shard in self._keys.shards if shard in self]
        with suppress(LaterError):  # they are still away
            await self._client.execute_each("look", asks)
