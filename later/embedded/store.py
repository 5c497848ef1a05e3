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

from later.embedded.locks import owner_lock, take_lock_from_orphan
from later.embedded.paths import EmbeddedError, prepare, socket_path, socket_url, wrap_os_errors
from later.embedded.resp import ask, info
from later.embedded.server import Server, spawn

log = structlog.get_logger("later.embedded")

_STARTING_POLL_MS = 100
_LOADING_LOG_MS = 5_000
_LONGEST_PAUSE_S = 60
_STEADY_MS = 60_000  # a store that stayed up this long starts over with the shortest pause


class EmbeddedStore:
    """Owns the server process of one data directory: starts it, starts it again when it dies, ends it.

    `monotonic` gives seconds; its milliseconds are the clock of the `now` that `check` is given.
    """

    def __init__(self, data: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.on_exit: Callable[[], None] | None = None
        """Called in the event loop when the server's process ends although nobody asked it to."""
        self._data = data.absolute()
        self._monotonic = monotonic
        self._locks = ExitStack()
        self._lock = -1
        self._server: Server | None = None
        self._up_since: int | None = None  # ms; None until this run of the server has answered
        self._loading_logged_at: int | None = None
        self._restart_at: int | None = None  # ms; None while no restart is booked
        self._deaths = 0  # in a row
        self._turn = asyncio.Lock()  # or a stop during a check leaves a store behind

    @property
    def url(self) -> str:
        return socket_url(self._data)

    async def start(self) -> None:
        """Take the directory, end a store that lost its owner there, start our own, wait until it answers.

        Loading a large file can take minutes: waits as long as the server lives. Raises `EmbeddedError`; when
        this fails or is cancelled, nothing is left running. (To give up a start, cancel it; do not `stop`.)
        """
        with wrap_os_errors(self._data):
            prepare(self._data)
            self._locks.enter_context(owner_lock(self._data))
            try:
                await self._start_locked()
            except BaseException:
                await self.stop()
                raise

    async def _start_locked(self) -> None:
        self._lock = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._locks.callback(os.close, self._lock)
        await take_lock_from_orphan(self._data, self._lock)
        server = await self._spawn()
        while await self._look(self._now()) is not None:
            if server.status is not None:
                raise EmbeddedError(server.failure_report())
            await asyncio.wait({server.exited}, timeout=0.02)

    async def check(self, now: int) -> int | None:
        """Start the server again if it died and its pause is over.

        Answers when it wants to be called again (ms); None: not before the server's process ends. The pause
        is 1, 2, 4 … 60 s, and 1 s again once the server has stayed up for a minute. A start that fails does
        not raise: it is one more death.
        """
        async with self._turn:
            if self._server is None:
                return None
            if self._server.status is None:
                return await self._look(now)
            if self._restart_at is None:
                return self._book_restart(now, self._server.status, self._server.log_tail())
            if now < self._restart_at:
                return self._restart_at
            return await self._restart(now)

    def why_unavailable(self) -> str | None:
        """One line on why the store does not answer; None when, for all we know, it does."""
        if self._server is None:
            return "the embedded store is not running"
        if self._server.status is None:
            return None if self._up_since is not None else "the embedded store is loading its data"
        died = f"the embedded store died (exit status {self._server.status})"
        if self._restart_at is None:
            return f"{died} and is about to be started again"
        return f"{died} and starts again in {max(0, math.ceil((self._restart_at - self._now()) / 1000))} s"

    async def stop(self) -> None:
        """End the server (SIGTERM, after 10 s SIGKILL), let go of the directory. May be called twice."""
        async with self._turn:
            server, self._server = self._server, None
            try:
                if server is not None:
                    await server.stop()
                    socket_path(self._data).unlink(missing_ok=True)  # a killed server leaves it there
            finally:
                self._up_since = self._restart_at = None
                self._locks.close()

    def stop_nowait(self) -> None:
        """Ask the server to end and do not wait: for an owner that leaves at once."""
        if self._server is not None and self._server.status is None:
            self._server.terminate()

    async def _spawn(self) -> Server:
        self._server = server = await spawn(self._data, self._lock)
        self._up_since = self._restart_at = self._loading_logged_at = None
        server.exited.add_done_callback(lambda _: self._ended(server))
        return server

    def _ended(self, server: Server) -> None:
        if self._server is server and self.on_exit is not None:
            self.on_exit()

    async def _look(self, now: int) -> int | None:
        """None once the server has answered, until then when to look again."""
        if self._up_since is not None:
            return None
        if await ask(self._data, b"PING") == b"+PONG":
            self._up_since = now
            log.info("store answers", url=self.url)
            return None
        await self._log_loading(now)
        return now + _STARTING_POLL_MS

    async def _log_loading(self, now: int) -> None:
        if self._loading_logged_at is None:
            self._loading_logged_at = now
        if now - self._loading_logged_at < _LOADING_LOG_MS:
            return
        self._loading_logged_at = now
        told = await info(self._data, b"persistence")
        percent, eta_s = told.get("loading_loaded_perc"), told.get("loading_eta_seconds")
        log.info("store is loading", percent=percent, eta_s=eta_s)

    def _book_restart(self, now: int, status: int | None, last_words: str) -> int:
        if self._up_since is not None and now - self._up_since >= _STEADY_MS:
            self._deaths = 0
        self._up_since = None
        pause_s = min(1 << min(self._deaths, 6), _LONGEST_PAUSE_S)
        self._deaths += 1
        self._restart_at = now + pause_s * 1000
        log.warning("embedded store exited", status=status, restart_in_s=pause_s, log_tail=last_words)
        return self._restart_at

    async def _restart(self, now: int) -> int | None:
        try:
            await self._spawn()
        except EmbeddedError as error:
            return self._book_restart(now, None, str(error))
        return await self._look(now)

    def _now(self) -> int:
        return int(self._monotonic() * 1000)
