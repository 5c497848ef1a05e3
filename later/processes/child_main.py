"""A child process from the inside: it serves as a single-process daemon does, and leaves the rest to its supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

import structlog

from later import log as logs
from later.api.health import HealthSource
from later.core.errors import LaterError, NotReady, StoreDown, StoreMismatch
from later.daemon.lifecycle import STOP_NOTICE_S, STOPPING, Lifecycle, run_in_loop
from later.daemon.service import Service
from later.metrics import Exposition, Metrics, MetricSamples
from later.processes.rpc import Channel, ExitReport, Handlers, RpcError, StoreSnapshot, decode_startup, open_channel

log = structlog.get_logger("later.processes")

START_TIMEOUT_S = 30.0
"""How long the supervisor may take for a call at the start: the machine is busy with starting all other processes."""
EXPOSITION_TIMEOUT_S = 3.0
"""How long the supervisor may take to get the samples of all processes: one that hangs costs a second."""


def main() -> None:
    """Run with the arguments `COMMAND NUMBER/OF --channel DESCRIPTOR --log FORMAT LEVEL`.

    The command is shown in lists of processes.
    """
    _, number, _, descriptor, _, log_format, log_level = sys.argv[1:]
    logs.setup(log_format, log_level, process=int(number.partition("/")[0]))
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    status = run_in_loop(serve(end))
    os._exit(status)  # a thread may hang in a name lookup for a minute, and the interpreter would wait for it


async def serve(end: socket.socket) -> int:
    """Serve until the supervisor asks to stop; return the exit status."""
    channel = await open_channel(end)
    child = ChildProcess(channel)
    channel.serve(child.handlers())
    return await child.run()


class ChildProcess:
    """A child's service, its lifecycle, and the handlers of the supervisor's calls."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lifecycle = Lifecycle(force_exit=lambda: None)  # the supervisor does everything that must be done then
        self._metrics = Metrics()
        self._service: Service | None = None

        def stop_without_supervisor(closed: asyncio.Task[None]) -> None:
            """Stop: no other process would restart this one, or stop the store after it."""
            if not closed.cancelled():
                log.warning("the supervisor is gone: stopping")
            self._lifecycle.request_stop()

        channel.closed.add_done_callback(stop_without_supervisor)

    def handlers(self) -> Handlers:
        return {
            "stop": self.on_stop,
            "reload_certificate": self.on_reload_certificate,
            "hung_tickers": self.on_hung_tickers,
            "samples": self.on_samples,
            "store_samples": self.on_store_samples,
        }

    async def run(self) -> int:
        """Return the exit status. The supervisor logs why it failed: once, for all processes."""
        try:
            status = await self._lifecycle.run(self.start, self.stop)
        except RpcError as error:
            log.warning("process cannot be started", reason=str(error))
            return 1
        except LaterError as error:
            await self._report_exit(str(error), fatal_for_all=isinstance(error, StoreMismatch))
            return 1
        except Exception:
            log.exception("process failed")
            return 1
        await self._report_exit()
        return status

    async def _report_exit(self, failure: str | None = None, *, fatal_for_all: bool = False) -> None:
        with suppress(RpcError):
            report = ExitReport(self._metrics.process_samples(), failure, fatal_for_all)
            await self._channel.call("exit_report", report)

    async def start(self) -> None:
        config, addresses = decode_startup(await self._channel.call("startup_config", timeout_s=START_TIMEOUT_S))
        self._service = service = Service(
            config,
            self._metrics,
            health=HealthSource(
                why_not_ready=self.why_not_ready,
                exposition=self.exposition,
                why_not_alive=self.why_not_alive,
                count_away=self.count_shards_away,
            ),
            fail=self._lifecycle.fail,
        )
        tasks = await service.open()
        if tasks is not None:
            await self._channel.call("store_open", tasks, timeout_s=START_TIMEOUT_S)
        await service.http_server.check_keys()
        await self._channel.call("guard_decided", await service.decide_guard(), timeout_s=START_TIMEOUT_S)
        await service.start_work()
        await service.http_server.listen_shared(addresses)
        await self._channel.call("up", timeout_s=START_TIMEOUT_S)

    async def stop(self) -> None:
        log.debug("stopping")
        with suppress(RpcError):
            await self._channel.call("stopping")
        if self._service is not None:
            await self._service.stop(STOP_NOTICE_S)
        log.debug("stopped")

    async def why_not_alive(self) -> LaterError | None:
        """Return which tickers hang in any process of the daemon: only a restart of all ends what hangs in one.

        A supervisor that does not answer says nothing about others: `why_not_ready` reports that.
        """

        async def ask_others() -> list[str]:
            with suppress(RpcError):
                answer: list[str] = await self._channel.call("hung_tickers")
                return answer
            return []

        return await self._started_service().why_not_alive(ask_others)

    def count_shards_away(self) -> int:
        return 0 if self._service is None else self._service.count_shards_away()

    async def why_not_ready(self) -> LaterError | None:
        """Return that it stops, then the store's reason: without the store, no process is of use."""
        if self._lifecycle.is_stopping:
            return NotReady(STOPPING)
        try:
            store_unavailable, processes_missing = await self._channel.call("readiness")
        except RpcError as error:
            return NotReady(f"the supervisor does not answer: {error}")
        if store_unavailable is not None:
            return StoreDown(store_unavailable)
        store_error = await self._started_service().why_store_unavailable()
        if store_error is None and processes_missing is not None:
            return NotReady(processes_missing)
        return store_error

    async def exposition(self, accept: str) -> Exposition:
        """Return the metrics of all processes. Raises RpcError."""
        return Exposition(*await self._channel.call("exposition", accept, timeout_s=EXPOSITION_TIMEOUT_S))

    async def on_stop(self, _: None) -> None:
        self._lifecycle.request_stop()

    async def on_reload_certificate(self, _: None) -> None:
        self._started_service().http_server.reload_certificate()

    async def on_hung_tickers(self, _: None) -> list[str]:
        return self._started_service().hung_tickers()

    async def on_samples(self, topics: list[str]) -> MetricSamples:
        self._metrics.topics.adopt(topics)
        return self._metrics.process_samples()

    async def on_store_samples(self, topics: list[str]) -> StoreSnapshot:
        """Return the samples of the store's metrics as they are now; if it is unavailable, only that it is down."""
        service = self._started_service()
        self._metrics.topics.adopt(topics)
        try:
            _, again_in_ms = await service.store_metrics.tick(0)
        except LaterError as error:
            samples = self._metrics.store.samples()
            up = {name: samples[name] for name in ("later_store_up", "later_shards_away")}
            return StoreSnapshot(up, service.census.age_s, failure=str(error))
        return StoreSnapshot(self._metrics.store.samples(), service.census.age_s, again_in_ms)

    def _started_service(self) -> Service:
        """Return the service. Raises RpcError if it is not built yet."""
        if self._service is None:
            raise RpcError("the process is being started")
        return self._service
