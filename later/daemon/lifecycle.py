"""The lifecycle of a process: it starts, runs until a signal or a failure, and stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine

import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.daemon")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
GC_THRESHOLD = 20_000
"""Objects that are made between two collections of the youngest generation. A few tasks of a batch reach Python's
default of 700; the whole batch would be scanned again and again, which takes a fifth of its time."""


class Lifecycle:
    """The run of one process.

    `force_exit` is called before it exits on a second signal, `reload` on SIGHUP; without `reload`, SIGHUP stops it.
    """

    def __init__(self, force_exit: Callable[[], None], reload: Callable[[], None] | None = None) -> None:
        self._force_exit = force_exit
        self._reload = reload
        self._stop_requested = asyncio.Event()
        self._signalled = False
        self._failure: LaterError | None = None

    async def run(self, start: Callable[[], Coroutine[None, None, None]], stop: Callable[[], Awaitable[None]]) -> int:
        """Run until a signal or a failure; return the exit status. Raises an error of `start` or `fail`."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.on_signal, number)
        if self._reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            # A terminal that closes may send it twice, by its shell and by itself: that must not force the exit.
            loop.add_signal_handler(signal.SIGHUP, self.request_stop)
        starting = asyncio.create_task(start())
        requested = asyncio.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait({starting, requested}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await requested
        finally:
            starting.cancel()
            requested.cancel()
            await asyncio.gather(starting, requested, return_exceptions=True)
            await stop()
        if self._failure is not None:
            raise self._failure
        return 0

    def request_stop(self) -> None:
        """Stop in order. Unlike a second signal, a second request never forces the exit."""
        self._stop_requested.set()

    def fail(self, error: LaterError) -> None:
        """Stop, and raise `error` from `run`."""
        self._failure = error
        self.request_stop()

    def on_signal(self, number: int) -> None:
        """Stop in order at the first signal; exit at once at the second: leases bring the deliveries back."""
        if self._signalled or self._failure is not None:
            log.warning("forced exit")
            self._force_exit()
            os._exit(128 + number)
        self._signalled = True
        self.request_stop()


async def wait_for_all(*steps: Awaitable[object]) -> None:
    """Run all steps of a stop at once, and wait for all of them, even if one raises; then raise the first error."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def run_in_loop(work: Coroutine[None, None, int]) -> int:
    """Run `work` in a new event loop, which is uvloop's if it is installed: a fifth more creates a second.

    It is all that the process does: afterwards, signals that stop a daemon are ignored.
    """
    gc.collect()
    gc.freeze()  # imported modules stay as long as the process does
    gc.set_threshold(GC_THRESHOLD)
    try:
        import uvloop  # noqa: PLC0415  # it is not there on every platform
    except ImportError:
        loop_factory = None
    else:
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(work)
        finally:  # the loop restores the default handlers when it closes, and those end the process by the signal
            for number in (*STOP_SIGNALS, signal.SIGHUP):
                runner.get_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
