"""How much may wait for the store: beyond that, callers are told to come again, or memory would grow without end."""

from __future__ import annotations

from typing import NamedTuple

from later.core.errors import StoreDown


class Backlog:
    """Tasks of requests that wait for the store, `limit` at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0

    def room(self, tasks: int = 1) -> Room:
        """Room for the tasks of one request, however many, while less than the limit wait."""
        return Room(self, tasks)


class Room(NamedTuple):
    """Taken while its `with` runs. (Written out: `contextmanager` takes a microsecond, of every request.)"""

    backlog: Backlog
    tasks: int

    def __enter__(self) -> None:
        """Raises StoreDown: there is none. Nothing was sent to the store."""
        waiting, limit = self.backlog.waiting, self.backlog.limit
        if waiting >= limit:
            raise StoreDown(f"{waiting} tasks wait for the store already (--max-pending-writes {limit})")
        self.backlog.waiting += self.tasks

    def __exit__(self, *_: object) -> None:
        self.backlog.waiting -= self.tasks
