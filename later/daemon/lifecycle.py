"""A daemon's life: it starts, runs until it is asked to stop or something makes it fail, and stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine

import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.daemon")


class Lifecycle:
    """From the start to the end of a process. `leave` is called before it leaves at once."""

    def __init__(self, force_exit: Callable[[], None]) -> None:
        self._leave = force_exit
        self._stop_asked = asyncio.Event()
        self._signalled = False
        self._failure: LaterError | None = None

    async def run(self, start: Callable[[], Coroutine[None, None, None]], stop: Callable[[], Awaitable[None]]) -> int:
        """Until a signal or a failure; the exit status. Raises what made it fail."""
        self._listen_for_signals()
        starting = asyncio.create_task(start())
        asked = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await asked
        finally:
            await _cancel(starting, asked)
            await stop()
        if self._failure is not None:
            raise self._failure
        return 0

    def request_stop(self) -> None:
        """May be asked again and again: unlike a signal, it never means to leave at once."""
        self._stop_asked.set()

    def fail(self, error: LaterError) -> None:
        """Stop, and say why."""
        self._failure = error
        self.request_stop()

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        """The first signal asks for a stop; the second leaves at once, and leases see to the rest."""
        if self._signalled or self._failure is not None:
            log.warning("forced exit")
            self._leave()
            os._exit(128 + number)
        self._signalled = True
        self.request_stop()


GC_THRESHOLD = 20_000
"""Objects that are made between two collections of the youngest. Python's own 700 are a few tasks of one batch, and all
that such a batch holds would be looked at again and again: a fifth of its time."""


def run_in_loop(work: Coroutine[None, None, int]) -> int:
    gc.collect()
    gc.freeze()  # what was imported stays as long as we do
    gc.set_threshold(GC_THRESHOLD)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: a fifth more creates a second on the same core. None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # it is not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
