"""Load shedding: a limit on the tasks that wait for the store, so that a slow store does not fill the memory."""

from __future__ import annotations

import msgspec

from later.core.errors import TooManyWaiting


class PendingWrites:
    """The number of tasks, of all requests, that wait for the store; reads count, too.

    While `limit` tasks or more wait, new requests are refused.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def reserve(self, tasks: int = 1) -> Reservation:
        """Return a reservation for a request's tasks. One request may exceed the limit, whatever its size."""
        return Reservation(self, tasks)


class Reservation(msgspec.Struct):
    """A request's share of the pending writes, held while its `with` block runs.

    This is a class because `contextlib.contextmanager` costs every request a microsecond, and no named tuple because
    that takes three times as long to make.
    """

    pending_writes: PendingWrites
    tasks: int

    def __enter__(self) -> None:
        """Count the tasks. Raises TooManyWaiting: the limit is reached, and nothing was sent to the store."""
        count, limit = self.pending_writes.count, self.pending_writes.limit
        if count >= limit:
            raise TooManyWaiting(f"{count} tasks wait for the store already (--max-pending-writes {limit})")
        self.pending_writes.count += self.tasks

    def __exit__(self, *_: object) -> None:
        self.pending_writes.count -= self.tasks
