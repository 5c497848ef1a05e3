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
    """The shards that did not answer when they were asked last, or that take no writes: no task of them moves."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def __len__(self) -> int:
        """Return how many shards are away."""
        return sum(shard in self for shard in self._keys.shards) if self._client.is_any_away else 0

    def __contains__(self, shard: Shard) -> bool:
        tag, away = hash_tag(shard.pool), self._client.away_tags
        return tag in away or tag in away.unwritable or self._client.is_away(shard.pool)

    def draw(self, admit: Callable[[], Task]) -> Task:
        """Return a task that `admit` makes with an id that it draws: in a shard that is there, if that is found.

        `admit` may make it with the same id each time, because its caller chose that.
        """
        task = admit()
        if not self._client.is_any_away:
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
        """Ask the shards that are away whether they are there again: perhaps nothing else asks them.

        They are asked by a write that changes nothing: no schedule has an empty id.
        """
        shards = [shard for shard in self._keys.shards if shard in self]
        unwritable = self._client.away_tags.unwritable
        unwritable.intersection_update(hash_tag(shard.pool) for shard in shards)
        asks: list[Command] = [("ZREM", shard.firings, b"") for shard in shards]
        with suppress(LaterError):  # they are still away
            for shard, answer in zip(shards, await self._client.execute_each("look", asks), strict=True):
                if not isinstance(answer, LaterError):
                    unwritable.discard(hash_tag(shard.pool))
