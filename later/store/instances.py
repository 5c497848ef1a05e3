"""The instances of daemons, by their heartbeats: those that deliver, and those that only answer calls."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from later.core.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Command
from later.store.stats import FORGET_WORKER_MS, SLICE, heartbeat_command

TRIM_EVERY_MS = 600_000
"""How often an instance removes those that sent no heartbeat for `FORGET_WORKER_MS`."""


class Instances(NamedTuple):
    """The instances: what each told last, and when (ms) each worker sent its last heartbeat.

    Workers of other versions, and within applications, tell nothing else.
    """

    heartbeats: dict[str, Heartbeat]
    workers: dict[str, int]

    def moved_on(self, by_ms: int) -> Instances:
        """Return the instances as they are if they have gone on for so long."""
        if not by_ms:
            return self
        beats = {name: msgspec.structs.replace(beat, at=beat.at + by_ms) for name, beat in self.heartbeats.items()}
        return Instances(beats, {name: at + by_ms for name, at in self.workers.items()})


class InstanceBook:
    """Keeps what instances tell about themselves. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._trimmed_at = 0

    async def send(self, instance: str, heartbeat: Heartbeat, *, delivers: bool) -> None:
        """Write a heartbeat; one that delivers counts as a worker."""
        commands = [
            scripts.TELL_INSTANCE.call([self._keys.instances], [instance, encode_heartbeat(heartbeat)]),
            heartbeat_command(self._keys, instance if delivers else "", heartbeat.at),
        ]
        await self._client.execute_available("heartbeat", commands, missing=None)  # on two nodes, perhaps
        if not 0 <= heartbeat.at - self._trimmed_at < TRIM_EVERY_MS:
            await self._trim(heartbeat.at)
            self._trimmed_at = heartbeat.at

    async def remove(self, instance: str) -> None:
        """Forget an instance that has stopped."""
        commands: list[Command] = [("HDEL", self._keys.instances, instance), ("ZREM", self._keys.workers, instance)]
        await self._client.execute_all("heartbeat", commands)

    async def read(self) -> Instances:
        """Return all instances that sent a heartbeat lately."""
        told, flat = await self._client.execute_all(
            "stats", [("HGETALL", self._keys.instances), ("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES")]
        )
        decoded = {name.decode(): decode_heartbeat(data) for name, data in told.items()}
        return Instances(
            heartbeats={name: heartbeat for name, heartbeat in decoded.items() if heartbeat is not None},
            workers={name.decode(): int(float(at)) for name, at in pairs(flat)},
        )

    async def _trim(self, now: int) -> None:
        """Remove instances that were killed long ago, or before the clock was set back, and what cannot be read."""
        told = await self._client.execute("heartbeat", ("HGETALL", self._keys.instances))
        decoded = {name: decode_heartbeat(data) for name, data in told.items()}
        stale = [name for name, heartbeat in decoded.items() if _is_stale(heartbeat, now)]
        for start in range(0, len(stale), SLICE):
            await self._client.execute("heartbeat", ("HDEL", self._keys.instances, *stale[start : start + SLICE]))


def _is_stale(heartbeat: Heartbeat | None, now: int) -> bool:
    return heartbeat is None or not now - FORGET_WORKER_MS < heartbeat.at < now + FORGET_WORKER_MS
