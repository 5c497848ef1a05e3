"""The snapshot of all topics, shared by all instances on a store: one of them counts, the others read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from later.core.errors import LaterError, NodeDown, StoreDown
from later.core.snapshot import Snapshot
from later.daemon.census import Census
from later.store.open import Store
from later.store.unwaited import retrieve_error

log = structlog.get_logger("later.daemon")

PERIOD_MS = 15_000
"""How old a snapshot is when the next census is due."""
WATCHED_PERIOD_MS = 10_000
"""The same in a process whose API is asked for the snapshot."""
SHORTEST_PERIOD_MS = 2000
"""The same there if a census takes so little time that the store spends one part in `COST_FACTOR` on it at most."""
COST_FACTOR = 100
TOO_OLD_MS = 60_000
"""A call of the API does not wait for the next census, unless the snapshot is as old as this, and as two periods."""
LOOK_S = 5.0
"""How long a census may take while calls of the API wait for it: one of a very large store takes minutes."""
RETRY_MS = 1000
"""How soon to look for the snapshot again while another instance counts."""
LONG_CENSUS_S = 10.0
"""How long `update` waits for a census that goes on. Tickers that have succeeded in nothing for a minute hang."""
RENEW_S = 10.0
"""How often an instance that counts holds the lock for longer."""


class SharedCensus:
    """The latest snapshot that this process knows, and what renews it."""

    def __init__(
        self, store: Store, census: Census, record: Callable[[Snapshot], Awaitable[None]] | None = None
    ) -> None:
        """`record` is called with each snapshot that this process has counted for all."""
        self._store = store
        self._census = census
        self._record = record
        self._started_at = store.clock.monotonic()
        self._update: asyncio.Task[None] | None = None
        self._update_began_s = 0.0
        self.latest: Snapshot | None = None

    @property
    def age_s(self) -> float:
        """The age of the snapshot by the store's clock; without one, the time since the start."""
        if self.latest is not None:
            try:
                return max(self._store.clock.now().low - self.latest.at, 0) / 1000
            except StoreDown:
                pass
        return self._store.clock.monotonic() - self._started_at

    async def look(self) -> Snapshot | None:
        """Return the snapshot to a caller of the API; None if the first census is still being made.

        If the next census is due, it is made, or looked for, meanwhile: this call waits only if there is none to show,
        and then until that has taken `LOOK_S`.

        Raises:
            StoreDown: there is none, and the store cannot be read.
        """
        now, period_ms = (await self._store.time.now()).low, _watched_period_ms(self.latest)
        if self._is_due(period_ms, now):
            update = self._start_update(period_ms)
            if self.latest is None or _is_too_old(self.latest, now):
                patience_s = max(self._update_began_s + LOOK_S - self._store.clock.monotonic(), 0)
                for ended in (await asyncio.wait([update], timeout=patience_s))[0]:
                    ended.result()
        return self.latest

    async def update(self) -> int:
        """Read the snapshot, or count if it is too old and no other instance counts.

        Return in how many ms to do so again. A count of very many topics may take minutes: while it goes on, this does
        not wait for its end, and the next call waits for the same one. A count that gets nothing done is waited for.

        Raises:
            StoreDown: the store cannot be read.
        """
        update, steps = self._start_update(PERIOD_MS), self._census.steps
        while not (await asyncio.wait([update], timeout=LONG_CENSUS_S))[0]:
            if self._census.steps > steps:
                return RETRY_MS
        update.result()
        now = (await self._store.time.now()).low
        if self.latest is None or self._is_due(PERIOD_MS, now):
            return RETRY_MS
        return self.latest.at + self.latest.period_ms(PERIOD_MS) - now

    async def stop(self) -> None:
        """Stop counting, so that another instance may."""
        if self._update is not None:
            self._update.cancel()
            await asyncio.gather(self._update, return_exceptions=True)

    def _is_due(self, period_ms: int, now: int) -> bool:
        snapshot = self.latest
        return snapshot is None or not snapshot.is_usable(now) or snapshot.is_older_than(period_ms, now)

    def _start_update(self, period_ms: int) -> asyncio.Task[None]:
        """Return the update that is running, or a new one."""
        if self._update is None or self._update.done():
            self._update = asyncio.create_task(self._run_update(period_ms))
            self._update_began_s = self._store.clock.monotonic()
            self._update.add_done_callback(retrieve_error)
        return self._update

    async def _run_update(self, period_ms: int) -> None:
        """Read the snapshot, and count if that is due, unless another instance counts or has just counted."""
        token = secrets.token_hex(8)
        if not await self._read_if_due(period_ms) or not await self._take_lock(token):
            return
        try:
            is_due = await self._read_if_due(period_ms)
        except BaseException:
            await self._ignore_errors(self._store.snapshots.release_lock(token))
            raise
        if is_due:
            await self._count(token)
        else:
            await self._ignore_errors(self._store.snapshots.release_lock(token))

    async def _read_if_due(self, period_ms: int) -> bool:
        """Read the snapshot; return True if the next census is due. While its node is away, each counts for itself."""
        now, found = (await self._store.time.now()).low, None
        with suppress(NodeDown):
            found = await self._store.snapshots.read(self.latest)
        if found is not None and found.is_usable(now) and found is not self.latest:
            self._census.adopt(found)
            self.latest = found
        if not self._is_due(period_ms, now):
            return False
        if self.latest is not None and not self.latest.is_usable(now):
            self.latest = None
        return True

    async def _take_lock(self, token: str) -> bool:
        """Return True if this instance shall count. While the store takes no writes, each one counts for itself."""
        try:
            return await self._store.snapshots.take_lock(token)
        except LaterError as error:
            log.debug("census lock not taken", reason=str(error))
            return True

    async def _count(self, token: str) -> None:
        """Count, hold the lock meanwhile, and publish what was counted."""
        counting = asyncio.create_task(self._census.count())
        try:
            while not (await asyncio.wait([counting], timeout=RENEW_S))[0]:
                await self._ignore_errors(self._store.snapshots.take_lock(token))
            self.latest = snapshot = counting.result()
        except BaseException:
            counting.cancel()
            await self._ignore_errors(self._store.snapshots.release_lock(token))
            raise
        await self._ignore_errors(self._publish(token, snapshot))

    async def _publish(self, token: str, snapshot: Snapshot) -> None:
        if await self._store.snapshots.publish(token, snapshot) and self._record is not None:
            await self._record(snapshot)

    async def _ignore_errors(self, write: Coroutine[None, None, Any]) -> None:
        """Wait for a write without which this instance counts for itself, and others begin to count later."""
        try:
            await write
        except LaterError as error:
            log.debug("snapshot not shared", reason=str(error))


def _watched_period_ms(latest: Snapshot | None) -> int:
    """Return when the next census is due while the snapshot is looked at: soon, if the last one took little time."""
    if latest is None:
        return WATCHED_PERIOD_MS
    return min(max(latest.took_ms * COST_FACTOR, SHORTEST_PERIOD_MS), WATCHED_PERIOD_MS)


def _is_too_old(snapshot: Snapshot, now: int) -> bool:
    """Return True if a caller of the API shall wait for the next census.

    The snapshot of a store whose census takes a minute is never younger than that.
    """
    age_ms = now - snapshot.at
    return not snapshot.is_usable(now) or age_ms >= max(TOO_OLD_MS, 2 * snapshot.period_ms(WATCHED_PERIOD_MS))
