"""A read of the store that many callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from later.core.errors import StoreDown

FRESH_S = 1.5
"""Policies, keys and rotations read longer ago are read again before they are used: a change takes effect soon."""
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
            if not reading.cancelled():
                reading.exception()  # mark it as retrieved: perhaps no caller waits any more

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
