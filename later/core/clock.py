"""The store's time, known as an interval.

Every score in the store is a time of the store's own clock, so that all machines agree on which tasks are due. A
process learns that time by asking, and the answer is as old as the round trip: all that is known is an interval. Claims
use its low end, creates its high end, so no task is ever early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from later.core.errors import StoreDown
from later.core.server_clock import ServerClock

MAX_MEASUREMENTS = 3
"""How often the time is measured in a row if the machine's clocks move apart each time. After that it is taken as it is
known: within an interval that is as wide as they have moved."""

KEEP_S = 10
"""How long a server is counted that does not answer: it may come back, and its shards may go to another meanwhile."""

MAX_CLOCKS_APART_S = 60
"""Beyond it the store's clock or this machine's is wrong. Receivers accept five minutes."""


def rfc3339(ms: int) -> str:
    """Return a time in ms since the Unix epoch as `2017-09-09T05:17:10.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return _format_second(seconds) + _MILLISECONDS[rest]


_MILLISECONDS = [f".{rest:03d}Z" for rest in range(1000)]
"""Each create formats a time: this takes half as long as formatting the number."""


_SECONDS = [f"{second:02d}" for second in range(60)]
_MINUTES = [f"T{minute // 60:02d}:{minute % 60:02d}:" for minute in range(24 * 60)]


@lru_cache(maxsize=256)
def _format_second(seconds: int) -> str:
    """Return a time in whole seconds as text, cached because tasks due in the same second mostly follow one another.

    Those of a batch may all be due in seconds of their own: by tables this takes a quarter of the time of `datetime`.
    """
    minutes, second = divmod(seconds, 60)
    days, minute = divmod(minutes, 24 * 60)
    return _format_day(days) + _MINUTES[minute] + _SECONDS[second]


@lru_cache(maxsize=256)
def _format_day(days: int) -> str:
    return datetime.fromtimestamp(days * 86_400, UTC).isoformat()[:10]


class Interval(msgspec.Struct, frozen=True):
    """An interval [low, high], in ms since the Unix epoch, in which the store's time lies."""

    low: int
    high: int


class Clock:
    """The store's time, measured from time to time and advanced by the monotonic clock in between.

    A server is whatever names it, and None where there is only one. `monotonic` and `wall` return seconds; they are
    parameters so that tests can pass their own.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._wall = wall
        self._servers: dict[Hashable, ServerClock] = {}
        self._missed_since: dict[Hashable, float] = {}
        """When (s, monotonic) a server first did not answer, of those that have not answered since."""
        self._awaits_round = False
        """True until all servers of several were asked once: one of them is not enough."""
        self._before: tuple[ServerClock, float] | None = None
        """The clock of the primary before this one, and when it was replaced (s, monotonic)."""
        self.moved_ms = 0
        """How far this clock is ahead of the store's own: 0, but on a store of `later dev`."""

    def wall_ahead(self) -> float:
        """Return by how many seconds this machine's wall clock is ahead of its monotonic one."""
        return self._wall() - self.monotonic()

    def observe(
        self,
        store_time_us: int,
        sent_at: float,
        received_at: float,
        wall_ahead_then: float | None = None,
        *,
        server: Hashable = None,
    ) -> None:
        """Record an answer of a server's TIME (µs since the epoch), and when (monotonic) it was sent and received.

        `wall_ahead_then` is `wall_ahead` from when it was sent. While the machine is suspended, only the wall clock
        goes on: an answer that waited for it to wake up is older than the monotonic clock says.
        """
        known = self._servers.get(server)
        if known is None:
            known = self._servers[server] = ServerClock()
        self._missed_since.pop(server, None)
        known.observe(store_time_us / 1000 + self.moved_ms, sent_at, received_at, self.wall_ahead(), wall_ahead_then)

    def expect_several(self) -> None:
        """Expect several servers: the time is not steady before all of them were asked once."""
        self._awaits_round = True

    def forget_silent(self, answered: Collection[Hashable]) -> None:
        """Forget the servers that have not answered for `KEEP_S`: all were asked now, and these have answered.

        Those that are no primaries any more were not asked, and do not answer. If none answers, all are kept.
        """
        if not answered:
            return
        self._awaits_round = False
        now = self.monotonic()
        for server in self._servers.keys() - set(answered):
            if now - self._missed_since.setdefault(server, now) >= KEEP_S:
                del self._servers[server], self._missed_since[server]

    def set_moved(self, moved_ms: int) -> None:
        """Be ahead of the store's own clock by this much from now on."""
        for known in self._servers.values():
            known.move(moved_ms - self.moved_ms)
        self.moved_ms = moved_ms

    def distrust(self) -> None:
        """Forget how precisely the time is known: the store is another server now, whose clock may differ."""
        known = self._servers.get(None)
        if known is not None:
            self._before = (known.copy(), self.monotonic())
            known.is_certain = False

    def jump_s(self, store_time_us: int, sent_at: float, received_at: float) -> float | None:
        """Return by how many seconds the clock of a server that became the primary is ahead of that before it.

        It is known once, from the first answer of its TIME that was asked for after `distrust`. None: not now.
        """
        if self._before is None or sent_at < self._before[1]:
            return None
        (known, _), self._before = self._before, None
        return (store_time_us / 1000 + self.moved_ms - known.middle((sent_at + received_at) / 2)) / 1000

    def difference_s(self, server: Hashable, other: Hashable) -> float | None:
        """Return by how many seconds the clock of a server is ahead of another's; None if one of them is not known."""
        if server not in self._servers or other not in self._servers:
            return None
        now = self.monotonic()
        return (self._servers[server].middle(now) - self._servers[other].middle(now)) / 1000

    def spread_s(self) -> float:
        """Return by how many seconds the clocks of the servers differ at most; 0 if there is one, or none is known."""
        now = self.monotonic()
        middles = [known.middle(now) for known in self._servers.values()]
        return (max(middles) - min(middles)) / 1000 if middles else 0.0

    def is_steady(self) -> bool:
        """Return True if `now` can be trusted: it was measured, and this machine's clocks have agreed since."""
        if self._awaits_round or not self._servers:
            return False
        wall_ahead = self.wall_ahead()
        return all(known.is_steady(wall_ahead) for known in self._servers.values())

    def now(self) -> Interval:
        """Return the store's time now.

        Raises:
            StoreDown: it was never measured.
        """
        low, width = self.estimate()
        return Interval(int(low), int(low + width) + 1)

    def estimate(self) -> tuple[float, float]:
        """Return the low end and the width of the interval now, in ms with their fractions. Raises StoreDown."""
        if not self._servers:
            raise StoreDown("the store's clock could not be read yet")
        now = self.monotonic()
        estimates = [known.estimate(now) for known in self._servers.values()]
        if len(estimates) == 1:
            return estimates[0]
        low = min(low for low, _ in estimates)
        return low, max(low + width for low, width in estimates) - low

    def ahead_of_wall_s(self) -> float:
        """Return by how many seconds the store's own clock is ahead of this machine's. Raises StoreDown."""
        low, width = self.estimate()
        return (low - self.moved_ms + width / 2) / 1000 - self._wall()


def warn_of_clock(clock: Clock) -> str | None:
    """Return a warning if the store's clock and this machine's disagree so much that signatures may be refused."""
    try:
        ahead_s = clock.ahead_of_wall_s()
    except StoreDown:
        return None
    if abs(ahead_s) <= MAX_CLOCKS_APART_S:
        return None
    direction = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"the store's clock is {abs(ahead_s):.0f} s {direction} this machine's: correct the one that is wrong; "
        "receivers refuse deliveries whose time is five minutes from their own"
    )


class StoreTime:
    """The store's time, measured again if this machine's clocks disagree.

    `measure` asks the store, and has the clock observe its answer. It raises StoreDown.
    """

    def __init__(self, clock: Clock, measure: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self.measure = measure

    async def now(self) -> Interval:
        """Return the store's time.

        Raises:
            StoreDown: the time had to be measured, and the store cannot be reached.
        """
        await self._make_steady()
        return self._clock.now()

    async def low_ms(self) -> float:
        """Return the low end of the store's time in ms, with its fraction. Raises StoreDown, as `now` does."""
        await self._make_steady()
        low, _ = self._clock.estimate()
        return low

    async def _make_steady(self) -> None:
        """Measure the time if it cannot be trusted, and again if the machine was suspended meanwhile."""
        for _ in range(MAX_MEASUREMENTS):
            if self._clock.is_steady():
                return
            await self.measure()
