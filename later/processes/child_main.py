"""One process of several, from the inside: it serves as one that is alone does, and has its supervisor for the rest."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from typing import Any

import structlog

from later import log as logs
from later.core.errors import LaterError, StoreMismatch
from later.daemon.background import monotonic_ms
from later.daemon.lifecycle import Lifecycle, run_in_loop
from later.daemon.service import Service
from later.metrics import Metrics, MetricSamples
from later.processes.messages import ExitReport, StoreSnapshot, decode_startup
from later.processes.rpc import Channel, Handlers, RpcError, open_channel

log = structlog.get_logger("later.processes")

START_TIMEOUT_S = 30.0
"""How long the supervisor may take over what a start needs of it: the machine is busy with starting all the others."""
EXPOSITION_TIMEOUT_S = 3.0
"""How long it may take to ask all processes for their figures: one that hangs is waited for a second."""


def main() -> None:
    """With the arguments `COMMAND NUMBER/OF --channel DESCRIPTOR --log FORMAT LEVEL`."""
    command, place, _, descriptor, _, format, level = sys.argv[1:]
    number = int(place.partition("/")[0])
    logs.setup(format, level, process=number)
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    status = run_in_loop(_live(command, end))
    os._exit(status)  # a thread may hang in a name lookup for a minute, and the interpreter would wait for it


async def _live(command: str, end: socket.socket) -> int:
    answers: dict[str, Any] = {}
    inside = _ChildService(command, await open_channel(end, answers))
    answers.update(inside.answers())
    return await inside.run()


class _ChildService:
    def __init__(self, command: str, channel: Channel) -> None:
        self._command = command
        self._channel = channel
        self._life = Lifecycle(force_exit=_with_nothing_to_do)
        self._metrics = Metrics()
        self._house: Service | None = None
        channel.closed.add_done_callback(self._on_closed)

    def answers(self) -> Handlers:
        """What the supervisor may ask."""
        return {"stop": self._on_stop, "samples": self._on_figures, "collect": self._on_gather}

    async def run(self) -> int:
        """The exit status. Why it failed is the supervisor's to say: once, and for all of them."""
        try:
            status = await self._life.run(self._start, self._stop)
        except RpcError as error:
            log.warning("process cannot be started", reason=str(error))
            return 1
        except LaterError as error:
            await self._say_goodbye(
                ExitReport(self._metrics.process_samples(), str(error), fatal_for_all=isinstance(error, StoreMismatch))
            )
            return 1
        except Exception:
            log.exception("process failed")
            return 1
        await self._say_goodbye(ExitReport(self._metrics.process_samples()))
        return status

    async def _start(self) -> None:
        config, places = decode_startup(await self._channel.call("startup_config", timeout_s=START_TIMEOUT_S))
        self._house = house = Service(
            self._command,
            config,
            self._metrics,
            why_not_ready=self._why_not_ready,
            exposition=self._exposition,
            fail=self._life.fail,
        )
        tasks = await house.open()
        if tasks is not None:
            await self._channel.call("store_open", tasks, timeout_s=START_TIMEOUT_S)
        await house.start_work()
        await house.listen_shared(places)
        await self._channel.call("up", timeout_s=START_TIMEOUT_S)

    async def _stop(self) -> None:
        log.debug("stopping")
        with suppress(RpcError):
            await self._channel.call("stopping")
        if self._house is not None:
            await self._house.stop()
        log.debug("stopped")

    async def _say_goodbye(self, leaving: ExitReport) -> None:
        with suppress(RpcError):
            await self._channel.call("exit_report", leaving)

    async def _why_not_ready(self) -> str | None:
        """The store's reasons first: without it, no process is of use."""
        try:
            store_away, some_missing = await self._channel.call("readiness")
        except RpcError as error:
            return f"the supervisor does not answer: {error}"
        return store_away or await self._opened().why_store_unavailable() or some_missing

    async def _exposition(self) -> bytes:
        """Of all processes, whichever of them is asked. Raises NoAnswer."""
        return str(await self._channel.call("exposition", timeout_s=EXPOSITION_TIMEOUT_S)).encode()

    def _on_closed(self, closed: asyncio.Task[None]) -> None:
        """Nobody is there any more to start us again, to speak for us, or to end the store after us."""
        if not closed.cancelled():
            log.warning("the supervisor is gone: stopping")
        self._life.request_stop()

    async def _on_stop(self, _: None) -> None:
        self._life.request_stop()

    async def _on_figures(self, _: None) -> MetricSamples:
        return self._metrics.process_samples()

    async def _on_gather(self, _: None) -> StoreSnapshot:
        """What is to be seen of the store now; of one that is away, that it is."""
        try:
            await self._opened().store_metrics.tick(await monotonic_ms())
        except LaterError as error:
            up = {"later_store_up": self._metrics.store_samples()["later_store_up"]}
            return StoreSnapshot(up, str(error))
        return StoreSnapshot(self._metrics.store_samples())

    def _opened(self) -> Service:
        """Raises NoAnswer: it is not built yet."""
        if self._house is None:
            raise RpcError("it is being started")
        return self._house


def _with_nothing_to_do() -> None:
    """Before it leaves at once, a process has nothing to do that its supervisor would not."""
