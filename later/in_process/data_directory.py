"""The store of a data directory: run by this process, or by another one that has the directory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from later.embedded import DirectoryInUse, EmbeddedStore, answers_ping, socket_url
from later.embedded.key_file import make_signing_key
from later.worker.ticker import Ticker, TickResult

log = logging.getLogger("later.in_process")

CHECK_EVERY_MS = 1000
START_POLL_S = 0.02


class DataDirectory:
    """A data directory. Its store is started as `later up` starts it; if another process runs it, it is joined.

    When that process has ended, this one runs the store: each second it tries to.
    """

    def __init__(self, data: Path) -> None:
        self.url = socket_url(data)
        self._data = data
        self._store: EmbeddedStore | None = None
        """The store, if this process runs it."""
        self._ticker = self._build_ticker()

    def _build_ticker(self) -> Ticker:
        return Ticker.on_local_clock("embedded", self.check, CHECK_EVERY_MS, lambda name: None)

    async def start(self) -> None:
        """Run the store or join it, and return when it answers.

        Raises:
            EmbeddedError: it cannot run.
        """
        self._ticker = self._build_ticker()  # one that was stopped does not run again, nor in another event loop
        while not await self._run_store() and not await answers_ping(self._data):  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(START_POLL_S)  # the other process is starting it, or is about to end
        self._ticker.start()

    async def check(self, now: int) -> TickResult:
        """Restart the store if it has exited; if nobody runs it any more, run it. Raises EmbeddedError."""
        if self._store is not None:
            return TickResult(0, await self._store.check(now))
        if await self._run_store():
            log.info("the process that ran the store in %s has ended: this one runs it now", self._data)
        return TickResult(0, None)

    async def stop(self) -> None:
        """Stop the store, if this process runs it."""
        if self._store is None:
            await self._ticker.cancel()
        else:
            await self._ticker.stop()  # a check may be restarting the store; let it finish
            await self._store.stop()
            self._store = None

    async def _run_store(self) -> bool:
        """Run the store; return False if another process does. Raises EmbeddedError."""
        store = EmbeddedStore(self._data)
        try:
            await store.start()
        except DirectoryInUse:
            return False
        store.on_exit = self._ticker.wake
        self._store = store
        if make_signing_key(self._data):
            log.info("the store in %s has got a signing key: keep a copy of it, apart from the data", self._data)
        return True
