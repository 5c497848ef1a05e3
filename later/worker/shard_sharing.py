"""Shares shards out among workers: each tells that it looks at shards, reads who else does, and computes its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from later.core.errors import LaterError, NodeDown
from later.core.shard_owners import OWNERS, assign_shards
from later.store.open import Store
from later.worker.shard_selector import ShardSelector, WorkerList

log = structlog.get_logger("later.shards")

INLINE_LOOKS = 10_000
"""Workers times shards from which on owners are computed in a thread: it takes some ms, 40 for 1,000 and 256."""


class ShardSharing:
    """Keeps the list of workers of a `ShardSelector` up to date. `worker` is the name of this one."""

    def __init__(self, store: Store, worker: str, selector: ShardSelector) -> None:
        self._store = store
        self._worker = worker
        self._selector = selector
        self.owned: Mapping[str, Sequence[int]] = {}
        """The shards that each of the workers owns that the last heartbeat has found."""

    async def beat(self, now: int) -> None:
        """Tell that this worker looks at shards, and read who else does: one round trip, with each heartbeat.

        Raises:
            NodeDown: the node that has the list is away. The one of before stays good: turns make up for workers that
                have gone since, and looks of everybody at everything would be too much for the nodes that are left.
            StoreDown: the list of before is good for a while, then this worker looks at all shards.
        """
        shards = len(self._store.keys.shards)
        if shards <= OWNERS:
            return  # all workers own all shards, however many they are
        is_full = self._selector.is_full
        looked_at = self._selector.looked_at
        try:
            found = await self._store.shard_workers.tell(self._worker, looked_at, now, is_full=is_full)
        except NodeDown:
            self._selector.keep_list(now)
            raise
        workers = {*found.workers, self._worker}
        if is_full:
            workers.update(found.full)  # which share out alike what they look at; those with free slots do without them
        if workers != self.owned.keys():
            if len(workers) * shards < INLINE_LOOKS:
                self.owned = assign_shards(workers, shards)
            else:
                self.owned = await asyncio.to_thread(assign_shards, workers, shards)
        self._selector.use_list(WorkerList(len(workers), self.owned[self._worker], now), found.backlog)

    async def leave(self) -> None:
        """Let other workers look at the shards of this one, which stops."""
        self._selector.stop()
        try:
            await self._store.shard_workers.remove(self._worker)
        except LaterError as error:
            log.debug("shards not left", reason=str(error))
