"""The supervisor of `later run --processes N`: starts the processes, restarts those that exit, and stops them.

It imports nothing of the application, so that no fault of it can end the supervisor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from later.core.restart_backoff import RESTART_DELAYS_S, RestartBackoff
from later.daemon.lifecycle import Lifecycle
from later.run.supervisor_link import WORKING

log = logging.getLogger("later.supervisor")

STOP_GRACE_S = 10.0
"""How much longer than the drain a process may take to stop."""

_PROGRAM = "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from later.cli import main; main()"
"""A process's import path is its last argument: in PYTHONPATH, a path with a colon would become two."""


class WorkerProcess:
    """A child process that runs `later` with some arguments, and the supervisor's end of its link."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, link: asyncio.StreamReader) -> None:
        self.number = number
        self.process = process
        self.exited = asyncio.ensure_future(process.wait())
        self._link = link

    async def is_working(self) -> bool:
        """Wait until it works, and return True; or until it has exited without, and return False."""
        return await self._link.read(len(WORKING)) == WORKING


class ApplicationSupervisor:
    """The processes of an application's worker.

    `arguments` returns the arguments of `later` by the number of the process, the descriptor of its link, and whether
    it is the first one of all. A process that has not stopped `drain_s` and a little after it was told is killed.
    """

    def __init__(self, processes: int, arguments: Callable[[int, int, bool], Sequence[str]], drain_s: float) -> None:
        self._processes = processes
        self._arguments = arguments
        self._stop_s = drain_s + STOP_GRACE_S
        self._running: dict[int, WorkerProcess] = {}
        self._links: dict[int, asyncio.StreamWriter] = {}
        self._status = 0
        self._lifecycle = Lifecycle(force_exit=self._kill)

    async def run(self) -> int:
        """Run until a signal comes; return the exit status. If the very first process fails, return its status."""
        await self._lifecycle.run(self._supervise, self._stop)
        return self._status

    async def _supervise(self) -> None:
        first = await self._start(1, is_first=True)
        if not await first.is_working():  # what keeps it from working keeps the others, too; it has said what that is
            self._status = max(await asyncio.shield(first.exited), 0) or 1
            self._lifecycle.request_stop()
            return
        log.info("starting %d processes", self._processes)
        await asyncio.gather(*(self._keep_running(number) for number in range(1, self._processes + 1)))

    async def _keep_running(self, number: int) -> None:
        """Start a process unless it runs, and again whenever it has exited, after a delay that grows."""
        backoff = RestartBackoff((0, *RESTART_DELAYS_S))
        while True:
            started_at = time.monotonic()
            try:
                process = self._running.get(number) or await self._start(number)
            except OSError as error:
                end = f"process {number} cannot be started: {error}"
            else:
                status = await asyncio.shield(process.exited)  # a stop still waits for it
                self._forget(number)
                end = f"process {number} (pid {process.process.pid}) {describe_exit(status)}"
            delay_ms = backoff.next_delay_ms(int((time.monotonic() - started_at) * 1000))
            log.warning("%s: it is started again in %d s", end, delay_ms // 1000)
            await asyncio.sleep(delay_ms / 1000)

    async def _start(self, number: int, *, is_first: bool = False) -> WorkerProcess:
        """Start a process in a session of its own, so that a terminal's Ctrl-C reaches the supervisor alone.

        Raises:
            OSError: the machine cannot run another process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-c", _PROGRAM, *self._arguments(number, theirs.fileno(), is_first)),
                    json.dumps([path or os.getcwd() for path in sys.path]),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                writer.close()  # a process that was started after all stops
                raise
        self._links[number] = writer
        self._running[number] = process_of_link = WorkerProcess(number, process, reader)
        return process_of_link

    def _forget(self, number: int) -> None:
        del self._running[number]
        self._links.pop(number).close()

    async def _stop(self) -> None:
        """Let all processes stop, by their links: a signal may have come to them already, and a second one kills."""
        for link in self._links.values():
            link.close()
        exits = [process.exited for process in self._running.values()]
        if exits:
            await asyncio.wait(exits, timeout=self._stop_s)
        for number, process in self._running.items():
            if not process.exited.done():
                log.warning("process %d (pid %d) is killed: it did not stop in time", number, process.process.pid)
        self._kill()
        await asyncio.gather(*exits)
        log.info("stopped")

    def _kill(self) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.process.kill()


def describe_exit(status: int) -> str:
    """Return how a process ended: its exit status, or minus the signal that killed it."""
    if status >= 0:
        return f"exited with {status}"
    return f"was killed by {signal.Signals(-status).name if -status in list(signal.Signals) else -status}"
