"""The embedded store: owns the server of one data directory."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import structlog

from later.core.restart_backoff import RestartBackoff
from later.embedded.locks import owner_lock, take_lock_from_orphan
from later.embedded.paths import EmbeddedError, prepare_directory, socket_path, socket_url, wrap_os_errors
from later.embedded.permissions import secure_directory, secure_files
from later.embedded.probe import answers_ping, read_info
from later.embedded.server import Server, start_server

log = structlog.get_logger("later.embedded")

START_POLL_S = 0.02
LOADING_POLL_MS = 100
LOADING_LOG_MS = 5_000


class EmbeddedStore:
    """Owner of the server process of one data directory: starts it, restarts it when it exits, stops it.

    `monotonic` gives seconds; `check` is called with the milliseconds of the same clock.
    """

    def __init__(self, data: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.on_exit: Callable[[], None] | None = None
        """Called in the event loop when the server exits unasked."""
        self._data = data.absolute()
        self._monotonic = monotonic
        self._locks = ExitStack()
        self._lock_descriptor = -1
        self._server: Server | None = None
        self._up_since: int | None = None
        """Time (ms) of the first answer of this run of the server."""
        self._loading_logged_at: int | None = None
        self._restart_at: int | None = None
        """Time (ms) of the scheduled restart."""
        self._backoff = RestartBackoff()
        self._busy = asyncio.Lock()  # a stop during a check would leave a server behind

    @property
    def url(self) -> str:
        return socket_url(self._data)

    async def start(self) -> None:
        """Take the directory, stop an orphaned server there, start our own, and wait until it answers.

        Loading a large file can take minutes: this waits as long as the server lives. To give up, cancel it: when it
        fails or is cancelled, nothing is left running.

        Raises:
            EmbeddedError: the server cannot run.
        """
        with wrap_os_errors(self._data):
            prepare_directory(self._data)
            secure_directory(self._data)
            self._locks.enter_context(owner_lock(self._data))
            try:
                self._lock_descriptor = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                self._locks.callback(os.close, self._lock_descriptor)
                await take_lock_from_orphan(self._data, self._lock_descriptor)
                secure_files(self._data)
                server = await self._start_server()
                while await self._probe(self._now()) is not None:
                    if server.status is not None:
                        raise EmbeddedError(server.failure_report())
                    await asyncio.wait({server.exited}, timeout=START_POLL_S)
            except BaseException:
                await self.stop()
                raise

    async def check(self, now: int) -> int | None:
        """Restart the server if it exited and its restart delay is over.

        Returns when (ms) to call this again, or None: not before the server exits. The delay is 1, 2, 4 … 60 s, and
        1 s again once the server has run for a minute. A restart that fails counts as another exit.
        """
        async with self._busy:
            if self._server is None:
                return None
            if self._server.status is None:
                return await self._probe(now)
            if self._restart_at is None:
                return self._schedule_restart(now, self._server.status, self._server.log_tail())
            if now < self._restart_at:
                return self._restart_at
            try:
                await self._start_server()
            except EmbeddedError as error:
                return self._schedule_restart(now, None, str(error))
            return await self._probe(now)

    def why_unavailable(self) -> str | None:
        """Return one line on why the store does not answer; None if it does, as far as is known."""
        if self._server is None:
            return "the embedded store is not running"
        if self._server.status is None:
            return None if self._up_since is not None else "the embedded store is loading its data"
        exited = f"the embedded store exited (exit status {self._server.status})"
        if self._restart_at is None:
            return f"{exited} and is about to be restarted"
        return f"{exited} and restarts in {max(0, math.ceil((self._restart_at - self._now()) / 1000))} s"

    async def stop(self) -> None:
        """Stop the server (SIGTERM, after 10 s SIGKILL) and release the directory. May be called twice."""
        async with self._busy:
            server, self._server = self._server, None
            try:
                if server is not None:
                    await server.stop()
                    socket_path(self._data).unlink(missing_ok=True)  # a killed server leaves it there
            finally:
                self._up_since = self._restart_at = None
                self._locks.close()

    def stop_nowait(self) -> None:
        """Ask the server to stop, and do not wait: for an owner that exits at once."""
        if self._server is not None and self._server.status is None:
            self._server.terminate()

    async def _start_server(self) -> Server:
        self._server = server = await start_server(self._data, self._lock_descriptor)
        self._up_since = self._restart_at = self._loading_logged_at = None

        def report_exit(_: asyncio.Future[int]) -> None:
            if self._server is server and self.on_exit is not None:
                self.on_exit()

        server.exited.add_done_callback(report_exit)
        return server

    async def _probe(self, now: int) -> int | None:
        """Return when (ms) to probe the server again; None once it has answered."""
        if self._up_since is not None:
            return None
        if await answers_ping(self._data):
            self._up_since = now
            log.info("store ready", url=self.url)
            return None
        if self._loading_logged_at is None:
            self._loading_logged_at = now
        elif now - self._loading_logged_at >= LOADING_LOG_MS:
            self._loading_logged_at = now
            info = await read_info(self._data, "persistence")
            percent, eta_s = info.get("loading_loaded_perc"), info.get("loading_eta_seconds")
            log.info("store is loading", percent=percent, eta_s=eta_s)
        return now + LOADING_POLL_MS

    def _schedule_restart(self, now: int, status: int | None, log_tail: str) -> int:
        """Return when (ms) the server is restarted."""
        delay_ms = self._backoff.next_delay_ms(0 if self._up_since is None else now - self._up_since)
        self._up_since = None
        self._restart_at = now + delay_ms
        log.warning("embedded store exited", status=status, restart_in_s=delay_ms // 1000, log_tail=log_tail)
        return self._restart_at

    def _now(self) -> int:
        return int(self._monotonic() * 1000)
