"""The opening of an application: once for all that use it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from weakref import WeakKeyDictionary

_opening: ContextVar[tuple[SharedOpening, ...]] = ContextVar("opening", default=())
"""The openings that run in this context, or that have started what runs in it."""


class SharedOpening:
    """The resources of an application: the first one that enters opens them, the last one that leaves closes them.

    A worker that a lifespan starts, and anything else that the opening itself starts, waits until they are open, and
    does not keep them open.
    """

    def __init__(self, open: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
        self._open = open
        self._stack = AsyncExitStack()
        self._users = 0
        self._end_of_opening = asyncio.Event()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def is_open(self) -> bool:
        return self._users > 0

    async def enter(self) -> None:
        """Open it, unless it is open. Raises an error of `open`."""
        if self in _opening.get():
            await self._end_of_opening.wait()
            return
        async with self._lock():
            if not self._users:
                await self._open_now()
            self._users += 1

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it, if nobody else uses it. A cancellation is no error: it is how a worker is stopped."""
        if self in _opening.get():
            return
        async with self._lock():
            self._users -= 1
            if not self._users:
                if isinstance(error, asyncio.CancelledError):
                    kind = error = traceback = None
                await self._stack.__aexit__(kind, error, traceback)

    async def _open_now(self) -> None:
        self._end_of_opening = asyncio.Event()
        token = _opening.set((*_opening.get(), self))
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                self._stack = stack.pop_all()
        finally:
            _opening.reset(token)
            self._end_of_opening.set()

    def _lock(self) -> asyncio.Lock:
        """Return the lock of the running loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
