"""Slots: how many runs of a handler there may be at a time in this process, over all its threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from later.core.forks import call_after_fork


class Slots:
    """A number of slots. One is free again when its function has returned, not when nobody waits for it any more."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._free = size
        self._waiters: deque[Future[None]] = deque()
        call_after_fork(self, Slots._forget_runs)

    @property
    def free(self) -> int:
        """The number of slots that are free now."""
        return self._free

    async def acquire(self, timeout_s: float = 0) -> bool:
        """Take a slot, and wait up to `timeout_s` until one is free. Return False if none was."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            if timeout_s <= 0:
                return False
            waiter: Future[None] = Future()
            self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(waiter)
        except TimeoutError:
            return not self._leave(waiter)
        except asyncio.CancelledError:
            if not self._leave(waiter):
                self.release()
            raise
        return True

    def release(self) -> None:
        """Give a slot back: to the first one that waits, if any does."""
        with self._lock:
            while self._waiters:
                waiter = self._waiters.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
                    return
            self._free += 1

    def _forget_runs(self) -> None:
        """Forget the runs of a parent process. One of its threads may have held the lock."""
        self._lock = threading.Lock()
        self._free = self.size
        self._waiters = deque()

    def _leave(self, waiter: Future[None]) -> bool:
        """Wait no longer. Return False if the slot was given just now."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return True
        return waiter.cancelled()
