"""The snapshot of all topics in the store, and the lock of the one instance that counts them."""

from __future__ import annotations

from later.core.shard_owners import CensusBacklog
from later.core.snapshot import Snapshot, decode_snapshot, encode_snapshot
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.shard_workers import encode_backlog

LOCK_MS = 30_000
"""How long the lock lasts if its holder is gone."""


class Snapshots:
    """Reads and writes the snapshot. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read(self, known: Snapshot | None) -> Snapshot | None:
        """Return the snapshot; None if there is none, or it cannot be read. One that is `known` is not read again."""
        at = await self._client.execute("census", ("HGET", self._keys.snapshot, "at"))
        if at is None:
            return None
        if known is not None and at == b"%d" % known.at:
            return known
        data = await self._client.execute("census", ("HGET", self._keys.snapshot, "data"))
        return None if data is None else decode_snapshot(data)

    async def take_lock(self, token: str) -> bool:
        """Take the lock for `LOCK_MS`, or hold it for as long again; return False if another has it."""
        command = scripts.TAKE_CENSUS.call([self._keys.counting], [token, LOCK_MS])
        return bool(await self._client.execute("census", command))

    async def release_lock(self, token: str) -> None:
        """Give the lock back, if it is still that of `token`."""
        command = scripts.END_CENSUS.call([self._keys.counting, self._keys.snapshot], [token])
        await self._client.execute("census", command)

    async def publish(self, token: str, snapshot: Snapshot) -> bool:
        """Write the snapshot and give the lock back; return False, without any change, if it is another's by now."""
        backlog = CensusBacklog(snapshot.at, snapshot.total.oldest_due_at(is_held=False))
        command = scripts.END_CENSUS.call(
            [self._keys.counting, self._keys.snapshot],
            [token, snapshot.at, encode_snapshot(snapshot), encode_backlog(backlog)],
        )
        return bool(await self._client.execute("census", command))
