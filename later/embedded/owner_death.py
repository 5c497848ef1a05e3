"""The end of the embedded server when its owner is killed: nothing else would stop it, because it has its own session.

On Linux the kernel sends the server SIGTERM. Elsewhere a watcher does: a shell that waits for the end of a pipe, which
the kernel closes with the owner. Both end the server cleanly, with everything that it acknowledged on disk.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from later.embedded.paths import EmbeddedError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
SHELL = "/bin/sh"
_WATCH = 'read _; kill -TERM "$0"'


def request_death_signal() -> Callable[[], None] | None:
    """Return a function for a new process to call before it runs its program; None if this system has no such signal.

    The signal comes when the *thread* that starts the process ends: for an application with a store of its own, that is
    the thread of the event loop, without which the store is of no use.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up now: a process that was just forked should do as little as possible
    owner = os.getpid()

    def request() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != owner:  # it was killed before the request
            os._exit(0)

    return request


class OwnerWatcher:
    """A process that ends the server when this one is gone, where the kernel sends no signal."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(cls, server: int) -> OwnerWatcher:
        """Start the watcher of the server with this process id. Raises EmbeddedError."""
        try:
            process = await asyncio.create_subprocess_exec(
                SHELL,
                *("-c", _WATCH, str(server)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C must not end it before the server
            )
        except OSError as error:
            raise EmbeddedError(f"cannot run {SHELL}, which ends the store with later: {error}") from error
        return cls(process)

    async def stop(self) -> None:
        """End the watcher: the server has exited, and another process may get its id."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
