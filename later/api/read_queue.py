"""A queue of calls that read much from the store: one at a time, and if the store is away, all are told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from later.core.errors import StoreDown


class ReadQueue:
    """Lets one call read at a time.

    The failure of one is that of all that wait then. Otherwise each would wait for a timeout of its own, and the last
    of many for minutes.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failures = 0
        self._reason = ""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Run a block when its turn has come. Raises StoreDown: the store was lost while this call waited."""
        failures = self._failures
        async with self._lock:
            if self._failures != failures:
                raise StoreDown(self._reason)
            try:
                yield
            except StoreDown as error:
                self._failures += 1
                self._reason = str(error)
                raise
