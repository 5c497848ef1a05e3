"""`StoreClaims`: a later within an application, over a store and without a daemon."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from later import log as event_log
from later.address_types import store_url
from later.client.http import ApiReply
from later.core.durations import Seconds, to_seconds
from later.core.errors import ConfigError, Conflict, NotConfigured, StoreDown, Unavailable
from later.core.policy import Deliver
from later.core.retry import Outcome
from later.in_process.data_directory import DataDirectory
from later.in_process.in_process_backend import InProcessBackend
from later.in_process.local_claims import LocalClaims
from later.in_process.local_daemon import LocalDaemon, open_local_daemon
from later.puller.claim_source import ClaimSource, HandlerClaim
from later.puller.embedded_later import EmbeddedLater
from later.store.settings import StoreSettings

log = logging.getLogger("later.in_process")

STORE_TIMEOUT_S = 2.0
MIN_LEASE_S = 1.0
NOT_OPEN = "the store is not open: call this within `async with tasks:`, or while `tasks.work()` runs"
OPEN_IN_PARENT = "the store is open in the parent process: make a StoreClaims of this process"
NOT_PULLED = "tasks of %s are delivered by daemons, not claimed here: %s (later topics set %s --deliver pull)"


class StoreClaims(EmbeddedLater):
    """A later within this process: `Later(StoreClaims("redis://…"))`, or `tasks.work(claims=StoreClaims("./data"))`.

    `store` is the URL of a Redis or Valkey, or a data directory, whose store is run here unless another process runs
    it. Any number of such applications, and of daemons, may use one store. `prefix` begins the names of its keys. A
    task that is claimed comes again, at the latest, `lease` after this process has died.

    Raises:
        ConfigError: `store` is no URL of a store, or `lease` is shorter than a second.
        Refused: `lease` is no duration.
    """

    def __init__(self, store: str | os.PathLike[str], *, prefix: str = "later", lease: Seconds = 30) -> None:
        self.lease_s = to_seconds("lease", lease)
        if self.lease_s < MIN_LEASE_S:
            raise ConfigError(f"lease: expected {MIN_LEASE_S:g} s at least, got {self.lease_s:g} s")
        where = os.fspath(store)
        self._directory = None if "://" in where else DataDirectory(Path(where))
        try:
            self._url = store_url(where) if self._directory is None else self._directory.url
        except ValueError as error:
            raise ConfigError(f"expected a data directory, or {error}") from None
        self.backend = InProcessBackend(self._exchange, self._find_loop)
        self._prefix = prefix
        self._turn = asyncio.Lock()
        """Held while the store is opened or closed."""
        self._users = 0
        """How often it was entered, and not left yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._daemon: LocalDaemon | None = None
        self._opening: asyncio.Task[LocalDaemon] | None = None
        self._warned: set[str] = set()
        """Topics of which the log says why their tasks are not claimed here."""
        self._claims = self.claims(lambda: None)

    async def __aenter__(self) -> Self:
        async with self._turn:
            if self._users and self._find_loop() is not asyncio.get_running_loop():
                raise RuntimeError("this StoreClaims is open in another event loop")
            if not self._users:
                await self._open()
            self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with self._turn:
            self._users -= 1
            if not self._users:
                await self._close()

    async def pull(self, topics: Collection[str]) -> None:
        try:
            daemon = await self._opened()
            policies = await daemon.store.policies.current()
            for topic in topics:
                if policies.for_topic(topic).deliver is Deliver.PULL:
                    continue
                why_not = await daemon.pull_topic(topic)
                if why_not is not None and topic not in self._warned:
                    self._warned.add(topic)
                    log.warning(NOT_PULLED, topic, why_not, topic)
        except (StoreDown, Conflict) as failure:
            log.warning("whether tasks are claimed here is not known yet: %s", failure)

    def claims(self, state: Callable[[], Any]) -> ClaimSource:
        return LocalClaims(self._opened, self.pull, state, self.lease_s)

    # ClaimSource, for an application without a state

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        return await self._claims.claim(topics, limit, wait_s)

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        return await self._claims.settle(lease, outcome)

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        return await self._claims.extend(leases)

    async def give_back(self, lease: str) -> None:
        await self._claims.give_back(lease)

    # Opening and closing

    async def _open(self) -> None:
        """Start the store of a data directory, and open the store. One that is away is opened by the first call.

        Raises:
            EmbeddedError: the store of the data directory cannot run.
            StoreMismatch: this version of later cannot use the store's data.
        """
        event_log.setup_within_application()
        if self._directory is not None:
            await self._directory.start()
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        try:
            await self._opened()
        except StoreDown as error:
            log.warning("the store does not answer, trying on: %s", error)
        except BaseException:
            await self._close()
            raise

    async def _opened(self) -> LocalDaemon:
        """Return what is open, or open it. Raises StoreDown, StoreMismatch, NotConfigured."""
        if self._daemon is not None:
            return self._daemon
        self._find_loop()
        if self._opening is None:
            settings = StoreSettings(url=self._url, prefix=self._prefix, timeout_s=STORE_TIMEOUT_S)
            self._opening = asyncio.create_task(open_local_daemon(settings))
            self._opening.add_done_callback(self._note_opened)
        return await asyncio.shield(self._opening)

    def _note_opened(self, opening: asyncio.Task[LocalDaemon]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._daemon = opening.result()

    async def _close(self) -> None:
        """Close the store, and stop that of a data directory last if it was started here."""
        opening, self._loop = self._opening, None
        async with AsyncExitStack() as stack:
            if self._directory is not None:
                stack.push_async_callback(self._directory.stop)
            if opening is not None:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            daemon, self._daemon = self._daemon, None
            if daemon is not None:
                await daemon.stop()

    # For the backend

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the store. Raises NotConfigured."""
        if self._loop is None:
            raise NotConfigured(NOT_OPEN)
        if self._pid != os.getpid():
            raise NotConfigured(OPEN_IN_PARENT)
        return self._loop

    async def _exchange(
        self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float
    ) -> ApiReply:
        """Carry out a call. Raises Unavailable, StoreMismatch, NotConfigured."""
        try:
            daemon = await self._opened()
        except StoreDown as error:
            raise Unavailable(str(error)) from error
        return await daemon.exchange(method, path, body, content_type, timeout_s)
