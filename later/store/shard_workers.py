"""The workers that look at shards: each says when it last did so, and reads who else does."""

from __future__ import annotations

from typing import NamedTuple

from later.core.errors import LaterError
from later.core.shard_owners import CensusBacklog
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.scripts import Command

LOOKS_MS = 6000
"""How long after its last look a worker counts as one that looks: three heartbeats."""
AHEAD_MS = 2000
"""How far a look may be ahead of the store's time. One that is further ahead is from before its clock was set back."""
FORGET_MS = 60_000
FULL = b"full "
"""The mark before the name of a worker whose slots are full: it looks, but cannot claim what it sees."""


class ShardWorkersRead(NamedTuple):
    """The workers that looked at shards lately, and what the last census said about a backlog; None: nothing.

    Those in `full` had no free slots.
    """

    workers: list[str]
    full: list[str]
    backlog: CensusBacklog | None


class ShardWorkers:
    """Keeps the times at which workers last looked at their shards. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def tell(self, worker: str, looked_at: int | None, now: int, *, is_full: bool = False) -> ShardWorkersRead:
        """Write when a worker last looked, at which tick that went well, and read the others, in one round trip.

        One that has not looked lately (None: never, or it stops) is removed: others must not rely on it.
        """
        key = self._keys.shard_workers
        free_name, full_name = worker.encode(), FULL + worker.encode()
        name, other = (full_name, free_name) if is_full else (free_name, full_name)
        write: Command = ("ZREM", key, name)
        if looked_at is not None and now - LOOKS_MS < looked_at < now + AHEAD_MS:
            write = scripts.HEARTBEAT.call([key], [name, looked_at, now - FORGET_MS, now + FORGET_MS])
        read: Command = ("ZRANGE", key, now - LOOKS_MS, now + AHEAD_MS, "BYSCORE")
        oldest: Command = ("HGET", self._keys.snapshot, "oldest")
        commands: list[Command] = [("ZREM", key, other), write, read, oldest]
        removed, written, found, backlog = await self._client.execute_each("heartbeat", commands)
        for answer in (removed, written, found):
            if isinstance(answer, LaterError):
                raise answer
        return ShardWorkersRead(
            workers=[name.decode("utf-8", "replace") for name in found if not name.startswith(FULL)],
            full=[name.removeprefix(FULL).decode("utf-8", "replace") for name in found if name.startswith(FULL)],
            backlog=None if isinstance(backlog, LaterError) else _parse_backlog(backlog),
        )

    async def remove(self, worker: str) -> None:
        """Forget a worker that stops."""
        await self._client.execute("heartbeat", ("ZREM", self._keys.shard_workers, worker, FULL + worker.encode()))


def encode_backlog(backlog: CensusBacklog) -> bytes:
    """Return what the census writes for `tell` to read."""
    at, oldest_due_at = backlog
    return b"%d" % at if oldest_due_at is None else b"%d %d" % (at, oldest_due_at)


def _parse_backlog(stored: bytes | None) -> CensusBacklog | None:
    """Return the backlog; None if no census has written it, or another version something else."""
    try:
        match [int(time) for time in (stored or b"").split()]:
            case [at]:
                return CensusBacklog(at, None)
            case [at, oldest_due_at]:
                return CensusBacklog(at, oldest_due_at)
    except ValueError:
        pass
    return None
