"""The lifecycle of a process: it starts, runs until a signal or a failure, and stops."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial

from later.core.errors import LaterError
from later.signals import TERMINATION_SIGNALS

log = logging.getLogger("later.daemon")

HANGUP = getattr(signal, "SIGHUP", None)
"""The signal of a terminal that closes. Windows has none."""
STOP_SIGNALS = tuple(number for number in TERMINATION_SIGNALS if number != HANGUP)
GC_THRESHOLD = 20_000
"""Objects that are made between two collections of the youngest generation. A few tasks of a batch reach Python's
default of 700; the whole batch would be scanned again and again, which takes a fifth of its time."""

STOP_NOTICE_S = 1.0
"""How long the port stays open after a stop has begun: `/readyz` answers 503 meanwhile, so that balancers notice."""
STOPPING = "the server is being stopped"


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
        for number in STOP_SIGNALS:
            _handle_in_loop(number, partial(self.on_signal, number))
        if HANGUP is not None and self._reload is not None:
            _handle_in_loop(HANGUP, self._reload)
        elif HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:  # as under nohup
            # A terminal that closes may send it twice, by its shell and by itself: that must not force the exit.
            _handle_in_loop(HANGUP, self.request_stop)
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

    @property
    def is_stopping(self) -> bool:
        return self._stop_requested.is_set()

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
    """Run all steps at once, and wait for all of them, even if one raises; then raise the first error."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _handle_in_loop(number: int, handler: Callable[[], None]) -> None:
    """Let the running loop call a handler of a signal."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:  # on Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))


def run_in_loop(work: Coroutine[None, None, int]) -> int:
    """Run the `work` of a daemon in a new event loop. It is all that the process does."""
    gc.collect()
    gc.freeze()  # imported modules stay as long as the process does
    gc.set_threshold(GC_THRESHOLD)
    return run_until_stopped(work)


def run_until_stopped(work: Coroutine[None, None, int]) -> int:
    """Run `work` in a new event loop, which is uvloop's if it is installed: a fifth more creates a second.

    Afterwards, signals that stop a daemon are ignored.
    """
    try:
        loop_factory = importlib.import_module("uvloop").new_event_loop  # it is not there on every platform
    except ImportError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(work)
        finally:  # the loop restores the default handlers when it closes, and those end the process by the signal
            for number in TERMINATION_SIGNALS:
                with suppress(NotImplementedError):  # on Windows
                    runner.get_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
