"""The idle connections, kept for the next call to the same origin."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from later.core.origin import Origin
from later.delivery.connection import Connection
from later.delivery.http_client import MAX_IDLE_S

SWEEP_S = 0.25
"""How much later than that an idle connection is closed at most."""

MAX_IDLE = 1024
"""The most idle connections of a process."""


def idle_limit(descriptors: int, slots: int) -> int:
    """Return how many idle connections may be kept: half of the descriptors that the calls in flight leave."""
    return max(0, min(MAX_IDLE, (descriptors - slots) // 2))


class ConnectionPool:
    """Idle connections by origin, at most `max_idle` in all: one more closes the one that is idle for longest.

    How TLS verifies a receiver and which certificate it shows there depend on the host alone, so the origin is also
    the identity that both sides have proved.
    """

    def __init__(self, *, max_idle: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_idle = max_idle
        self._by_origin: dict[Origin, list[Connection]] = {}
        self._by_age: OrderedDict[Connection, None] = OrderedDict()
        """All idle connections, the one that is idle for longest first."""
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._by_age)

    def take(self, origin: Origin) -> Connection | None:
        """Return the open connection to `origin` that was used last, no longer idle; None if there is none."""
        idle = self._by_origin.get(origin)
        while idle:
            connection = idle.pop()
            del self._by_age[connection]
            if connection.is_open:
                return connection
        return None

    def put(self, connection: Connection) -> None:
        """Keep a connection for the next call, unless it is too old."""
        now = self._loop.time()
        if now > connection.keep_until:
            connection.close()
            return
        connection.idle_since = now
        idle = self._by_origin.get(connection.origin)
        if idle is None:
            self._by_origin[connection.origin] = [connection]
        else:
            idle.append(connection)
        self._by_age[connection] = None
        if len(self._by_age) > self._max_idle:
            self._close_oldest()
        if self._sweep is None:
            self._sweep = self._loop.call_later(MAX_IDLE_S, self._close_expired)

    def discard(self, connection: Connection) -> None:
        """Forget a connection that was closed, if it is idle."""
        if connection in self._by_age:
            del self._by_age[connection]
            idle = self._by_origin[connection.origin]
            idle.remove(connection)
            if not idle:
                del self._by_origin[connection.origin]

    def close_all(self) -> bool:
        """Close every idle connection; return True if there were any."""
        had_any = bool(self._by_age)
        while self._by_age:
            self._close_oldest()
        return had_any

    def close(self) -> None:
        """Close every idle connection, and keep none any more."""
        self._max_idle = 0
        self.close_all()
        if self._sweep is not None:
            self._sweep.cancel()

    def _close_oldest(self) -> None:
        connection = next(iter(self._by_age))
        self.discard(connection)
        connection.close()

    def _close_expired(self) -> None:
        self._sweep = None
        now = self._loop.time()
        while self._by_age:
            expires_at = next(iter(self._by_age)).idle_since + MAX_IDLE_S
            if expires_at > now:
                self._sweep = self._loop.call_at(max(expires_at, now + SWEEP_S), self._close_expired)
                break
            self._close_oldest()
        for origin in [origin for origin, idle in self._by_origin.items() if not idle]:
            del self._by_origin[origin]
