"""How much may wait for the store: beyond that, callers are told to come again, or memory would grow without end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from later.core.errors import StoreDown


class Backlog:
    """Tasks of requests that wait for the store, `limit` at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting = 0

    @contextmanager
    def room(self, tasks: int = 1) -> Iterator[None]:
        """Room for the tasks of one request, however many, while less than the limit wait.

        Raises:
            StoreDown: there is none. Nothing was sent to the store.
        """
        if self.waiting >= self._limit:
            raise StoreDown(f"{self.waiting} tasks wait for the store already (--backlog {self._limit})")
        self.waiting += tasks
        try:
            yield
        finally:
            self.waiting -= tasks
