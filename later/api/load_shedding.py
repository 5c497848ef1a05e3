"""How much may wait for the store: beyond that, callers are told to come again, or memory would grow without end."""

from __future__ import annotations

from typing import NamedTuple

from later.core.errors import StoreDown


class PendingWrites:
    """Tasks of requests that wait for the store, `limit` at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def reserve(self, tasks: int = 1) -> Reservation:
        """Room for the tasks of one request, however many, while less than the limit wait."""
        return Reservation(self, tasks)


class Reservation(NamedTuple):
    """Taken while its `with` runs. (Written out: `contextmanager` takes a microsecond, of every request.)"""

    pending_writes: PendingWrites
    tasks: int

    def __enter__(self) -> None:
        """Raises StoreDown: there is none. Nothing was sent to the store."""
        waiting, limit = self.pending_writes.count, self.pending_writes.limit
        if waiting >= limit:
            raise StoreDown(f"{waiting} tasks wait for the store already (--max-pending-writes {limit})")
        self.pending_writes.count += self.tasks

    def __exit__(self, *_: object) -> None:
        self.pending_writes.count -= self.tasks
