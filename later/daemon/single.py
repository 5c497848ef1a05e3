"""A daemon that is one process: its signals and its ground are its own, and nobody is beside it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from later.config import Config
from later.daemon.background import a_ticker
from later.daemon.backing_store import build_backing_store
from later.daemon.lifecycle import Lifecycle, run_in_loop
from later.daemon.listen import listen_address, log_listening
from later.daemon.service import Service
from later.metrics import Metrics

log = structlog.get_logger("later.daemon")

STORE_METRICS_EVERY_MS = 15_000


def run(command: str, config: Config) -> int:
    """`up`, `serve` or `worker` until it is stopped; the exit status. Raises LaterError: why it does not work."""
    return run_in_loop(_SingleProcess(command, config).run())


class _SingleProcess:
    def __init__(self, command: str, config: Config) -> None:
        self._metrics = Metrics()
        self._metrics.processes.set(1)
        self._metrics.processes_up.set(1)
        self._ground = build_backing_store(command, config, self._metrics)
        self._life = Lifecycle(force_exit=self._ground.stop_nowait)
        self._address = listen_address(command, config)
        self._house = Service(
            command,
            replace(config, store_url=self._ground.url),
            self._metrics,
            why_not_ready=self._why_not_ready,
            exposition=self._exposition,
            fail=self._life.fail,
        )
        self._figures = a_ticker("store_metrics", self._house.store_metrics.tick, STORE_METRICS_EVERY_MS, self._metrics)

    async def run(self) -> int:
        return await self._life.run(self._start, self._stop)

    async def _start(self) -> None:
        await self._ground.start()
        tasks = await self._house.open()
        if tasks is not None:
            log.info("store found", store=self._ground.description, tasks=tasks)
        self._figures.start()
        await self._house.start_work()
        bound = await self._house.listen()
        if self._address is not None:
            log_listening(self._address, bound)

    async def _stop(self) -> None:
        """The store last, whatever went wrong before."""
        log.info("stopping")
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._ground.stop)
            last_first.push_async_callback(self._house.stop)
            await self._figures.cancel()
        log.info("stopped")

    async def _why_not_ready(self) -> str | None:
        return self._ground.why_unavailable() or await self._house.why_store_unavailable()

    async def _exposition(self) -> bytes:
        return self._metrics.exposition()
