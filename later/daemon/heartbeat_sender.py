"""The heartbeat of one process: which role, version and machine it has, and how busy it is."""

from __future__ import annotations

import socket
from collections.abc import Awaitable

import structlog

from later import __version__
from later.config import Config
from later.core.errors import LaterError
from later.core.heartbeat import Heartbeat
from later.daemon.lifecycle import wait_for_all
from later.store.open import Store
from later.worker.shard_sharing import ShardSharing
from later.worker.ticker import TickResult
from later.worker.worker import Worker

log = structlog.get_logger("later.daemon")


class HeartbeatSender:
    """Tick function that tells the store that this process runs. One of `later serve` does not count as a worker."""

    def __init__(self, config: Config, store: Store, instance: str, worker: Worker | None) -> None:
        self._config = config
        self._store = store
        self._instance = instance
        self._worker = worker
        self._since: int | None = None
        self._sharing = None if worker is None else ShardSharing(store, instance, worker.shard_selector)

    async def tick(self, now: int) -> TickResult:
        config, at = self._config, (await self._store.time.now()).low
        self._since = at if self._since is None else self._since
        heartbeat = Heartbeat(
            role=config.command,
            version=__version__,
            host=socket.gethostname(),
            processes=config.processes,
            slots=config.concurrency if config.runs_worker else 0,
            slots_in_use=0 if self._worker is None else self._worker.fair_share.total_in_use,
            since=self._since,
            at=at,
            clock_offset_ms=round(-self._store.clock.ahead_of_wall_s() * 1000),
        )
        steps: list[Awaitable[None]] = [
            self._store.instances.send(self._instance, heartbeat, delivers=config.runs_worker)
        ]
        if self._sharing is not None:
            steps.append(self._sharing.beat(at))
        await wait_for_all(*steps)  # in a cluster, only one of them may need a node that is away
        return TickResult(0, None)

    async def leave_shards(self) -> None:
        """Let other workers look at the shards of this one, which stops."""
        if self._sharing is not None:
            await self._sharing.leave()

    async def remove(self) -> None:
        """Remove what was sent, as the process stops."""
        if self._since is None:
            return
        try:
            await self._store.instances.remove(self._instance)
        except LaterError as error:
            log.debug("heartbeat not removed", reason=str(error))
