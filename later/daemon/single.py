"""A daemon of one process, with its own signals and its own backing store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from later.api.health import HealthSource
from later.config import Config
from later.core.errors import LaterError, NotReady, StoreDown
from later.daemon.backing_store import build_backing_store
from later.daemon.guard import log_guard, resolve_guard
from later.daemon.lifecycle import STOP_NOTICE_S, STOPPING, Lifecycle, run_in_loop
from later.daemon.listen import log_clock, log_listening
from later.daemon.service import Service
from later.metrics import Exposition, Metrics
from later.worker.ticker import Ticker, start_tickers

log = structlog.get_logger("later.daemon")

STORE_METRICS_EVERY_MS = 15_000


def run(config: Config) -> int:
    """Run `up`, `serve` or `worker` until it is stopped; return the exit status. Raises LaterError."""
    return run_in_loop(SingleProcess(config).run())


class SingleProcess:
    """The service, its backing store, and their lifecycle."""

    def __init__(self, config: Config) -> None:
        config = resolve_guard(config)
        self._metrics = metrics = Metrics()
        metrics.processes.set(1)
        metrics.processes_up.set(1)
        self._backing_store = build_backing_store(config, metrics)
        self._lifecycle = Lifecycle(
            force_exit=self._backing_store.stop_nowait,
            reload=None if config.tls_cert is None else self.reload_certificate,
        )
        self._config = config
        self._service = Service(
            replace(config, store_url=self._backing_store.url),
            metrics,
            health=HealthSource(
                why_not_ready=self.why_not_ready,
                exposition=self.exposition,
                why_not_alive=self.why_not_alive,
                count_away=self.count_shards_away,
            ),
            fail=self._lifecycle.fail,
        )
        metrics.snapshot_age.set_function(lambda: self._service.census.age_s)
        self._store_ticker = Ticker.on_local_clock(
            "store_metrics", self._service.store_metrics.tick, STORE_METRICS_EVERY_MS, metrics.count_tick_error
        )

    async def run(self) -> int:
        return await self._lifecycle.run(self.start, self.stop)

    async def start(self) -> None:
        await self._backing_store.start()
        tasks = await self._service.open()
        if tasks is not None:
            log.info("store found", store=self._backing_store.description, tasks=tasks)
        await self._service.http_server.check_keys()
        log_guard(await self._service.decide_guard())
        start_tickers([self._store_ticker], self._metrics)
        await self._service.start_work()
        bound = await self._service.http_server.listen()
        if self._config.http_address is not None:
            log_listening(self._config.http_address, bound, self._config)
        if self._config.moves_clock:
            log_clock(bound, self._config)

    async def stop(self) -> None:
        """Stop the store last, whatever fails before. Nothing balances the calls of `later dev`."""
        log.info("stopping")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._backing_store.stop)
            stack.push_async_callback(self._service.stop, 0.0 if self._config.moves_clock else STOP_NOTICE_S)
            await self._store_ticker.cancel()
        log.info("stopped")

    def reload_certificate(self) -> None:
        self._service.http_server.reload_certificate()

    async def why_not_alive(self) -> LaterError | None:
        return await self._service.why_not_alive()

    def count_shards_away(self) -> int:
        return self._service.count_shards_away()

    async def why_not_ready(self) -> LaterError | None:
        if self._lifecycle.is_stopping:
            return NotReady(STOPPING)
        reason = self._backing_store.why_unavailable()
        return await self._service.why_store_unavailable() if reason is None else StoreDown(reason)

    async def exposition(self, accept: str) -> Exposition:
        return self._metrics.exposition(accept)
