"""Reads of the store that many callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from later.core.errors import StoreDown

FRESH_S = 1.5
"""Policies, keys and rotations read longer ago are read again before they are used: a change takes effect soon."""
REREAD_EVERY_S = 0.01
"""How far apart, at least, reads for callers begin that were refused by what was read before: they may try again and
again, or send thousands of items of which some are refused."""
REREAD_SHARE = 10
"""Such reads may take one part in so many of the time: a slow one is followed by a longer pause."""
MAX_REREAD_PAUSE_S = 0.1
"""How far apart they are at most, however slow they are."""
MAX_STARTS = 20
"""How often a change of them starts over because another one was made in the meantime."""


class SharedRead:
    """Runs `read` for all callers that want its result now: otherwise, if the store hangs, each waits for those before.

    It goes on if a caller is cancelled, because others may wait for it.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._reading: asyncio.Task[None] | None = None

    async def share(self) -> None:
        """Wait for the read that is running, or for a new one. Raises: as `read`."""

        def finish(reading: asyncio.Task[None]) -> None:
            self._reading = None
            _retrieve_error(reading)

        if self._reading is None:
            self._reading = asyncio.create_task(self._run())
            self._reading.add_done_callback(finish)
        await asyncio.shield(self._reading)

    async def renew(self) -> None:
        """Wait for a read that begins now or later. Raises: as `read`."""
        if self._reading is not None:
            await asyncio.wait([self._reading])  # it may have read before a change
        await self.share()

    async def renew_after_change(self) -> None:
        """Read what was just changed. Raises StoreDown, `unknown`, because the change was made."""
        try:
            await self.renew()
        except StoreDown as error:
            raise StoreDown(str(error), unknown=True) from error

    async def _run(self) -> None:
        try:
            await self._read()
        except StoreDown as error:
            error.unknown = False  # a read whose answer is lost has changed nothing
            raise


class PacedRead:
    """Runs `read` for callers that want one which begins after their call, one at a time and not too often.

    All callers that wait for the next one share it.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The read that has not begun, if any."""
        self._free_at = 0.0
        """When (s, by the loop's clock) the next one may begin."""

    async def wait(self) -> None:
        """Wait for a read that begins now or later. Raises: as `read`."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_retrieve_error)
        await asyncio.shield(self._next)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(self._free_at - loop.time(), 0))
            self._next = None  # callers that come from now on need another one
            began = loop.time()
            try:
                await self._read()
            finally:
                pause_s = REREAD_SHARE * (loop.time() - began)
                self._free_at = began + min(max(pause_s, REREAD_EVERY_S), MAX_REREAD_PAUSE_S)


def _retrieve_error(reading: asyncio.Task[None]) -> None:
    """Mark the error of a read as retrieved: perhaps no caller waits any more."""
    if not reading.cancelled():
        reading.exception()
