"""Which shards a tick looks at: those that this worker owns, some others in turn, and all whenever that is safer.

Each worker that looks well says so in the store; of those that did so lately, `core/shard_owners.py` makes owners.
Nothing depends on it but how many look at a shard. A worker without a fresh list looks at all shards.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from later.core.shard_owners import CensusBacklog

LIST_MS = 6000
"""How long a list of workers is good: three heartbeats."""
TURN_PARTS = 64
"""A worker with free slots looks at this part of all shards in turn, besides its own: at each in 6.4 s."""
TURN_WORKERS = 20
"""So many workers take turns at full speed. More take them more slowly, so that all together look no more often."""
SEEN_MS = 1000
"""How long after a look at another's shard the tickers of unack, error and schedules look at it, too."""
SOON_MS = 500
"""A task that is due later than this after its creation needs no look of its own: its shard's owners have seen it."""
FULL_MS = 1000
"""A worker whose slots have been full in all ticks for so long is no owner that others may rely on."""
BACKLOG_MS = 2000
"""Tasks that have been due, and not held, for as long as this are a backlog, which their owners do not get done."""
CENSUS_MS = 600_000
"""A census that began longer ago says nothing about a backlog. That of a million topics takes three minutes, and the
next one begins up to five after it began. A backlog that is over costs a few looks: stealing ends by itself."""
CENSUS_AHEAD_MS = 60_000
"""Nor does one that is ahead by as much: after a failover, the store's clock may be that of another machine."""


class WorkerList(NamedTuple):
    """How many workers look at shards, and which shards this one owns; they were read at `at` (ms)."""

    workers: int
    owned: Sequence[int]
    at: int


class ShardSelector:
    """Selects the shards of each tick of a worker. None stands for all shards.

    `name` makes workers begin their turns at different shards. Times are in ms of the store's clock.
    """

    def __init__(self, shards: int, *, tick_ms: int = 100, name: str = "") -> None:
        self._shards = shards
        self._tick_ms = tick_ms
        self._list: WorkerList | None = None
        self._owned: frozenset[int] = frozenset()
        self._others: Sequence[int] = ()
        self._backlog: CensusBacklog | None = None
        self._start = crc32(name.encode()) % shards
        self._turns: dict[str, _Turn] = {}
        self._created: dict[int, int] = {}
        """When tasks are due that this process has just created in shards of others."""
        self._all_due_at: int | None = None
        """When tasks are due that this process has just moved, in shards that are not known."""
        self._followed: frozenset[int] = frozenset()
        """Shards of others in which the last claim left due tasks behind."""
        self._seen: dict[int, int] = {}
        """When this worker looked at shards of others, lately."""
        self._claimed_nothing = False
        self._is_stealing = False
        self._steal_pause_ms: float = tick_ms
        self._steal_at = 0
        self.is_restricted = False
        """True if the last tick did not select all shards because it might not."""
        self.takes_turn = False
        """True if the last tick selected shards of others in turn."""
        self._ticked_at = 0
        self._free_at = 0
        """When the last tick with free slots was."""
        self.looked_at: int | None = None
        """When the last tick of the delay ticker ended well; None: before the first, and from the stop on."""
        self._is_stopped = False

    # What is known of others

    def use_list(self, workers: WorkerList | None, backlog: CensusBacklog | None) -> None:
        """Use what the last heartbeat has read; None: it could not be read."""
        self._list, self._backlog = workers, backlog
        self._owned = frozenset() if workers is None else frozenset(workers.owned)
        self._others = [shard for shard in range(self._shards) if shard not in self._owned]

    def keep_list(self, now: int) -> None:
        """Go on with the list of before, which must not be old yet: the node that has it is away."""
        if self._list is not None and self._may_restrict(now):
            self._list = self._list._replace(at=now)

    @property
    def owned(self) -> int:
        """How many shards this worker owns, by its last tick: all, if it looks at all."""
        return len(self._owned) if self.is_restricted else self._shards

    @property
    def is_full(self) -> bool:
        """True if the slots were full in each tick for a while."""
        return self._ticked_at - self._free_at >= FULL_MS

    def needs_note(self, due_at: int) -> bool:
        """Return True if tasks that this process has just created are due so soon that `note_created` is needed.

        Their owners do not know of them before their next tick.
        """
        return self.is_restricted and due_at <= self._ticked_at + SOON_MS

    def note_created(self, due_at: int, shards: Collection[int] | None) -> None:
        """Look at these shards, or (None) at all, when tasks are due that this process has created or moved."""
        if shards is None:
            self._all_due_at = due_at if self._all_due_at is None else min(due_at, self._all_due_at)
            return
        for shard in shards:
            if shard not in self._owned:
                self._created[shard] = max(due_at, self._created.get(shard, due_at))

    def stop(self) -> None:
        """Let other workers take over: this one will not look again."""
        self._is_stopped, self.looked_at = True, None

    # The delay ticker

    def for_delay(self, now: int, *, has_free_slots: bool) -> Sequence[int] | None:
        """Return the shards at which a tick of the delay ticker looks."""
        self._ticked_at, self._is_stealing, self.takes_turn = now, False, False
        if has_free_slots:
            self._free_at = now
        self.is_restricted = self._may_restrict(now)
        if not self.is_restricted:
            return None
        if not has_free_slots:
            return sorted(self._owned)
        if self._take_all_due(now) or self._begin_to_steal(now):
            self._note_seen(self._others, now)
            self._created.clear()
            return None
        turn = self._take_turn(now)
        self.takes_turn = bool(turn)
        others = {*turn, *self._followed, *self._take_created(now)}
        others -= self._owned
        self._note_seen(others, now)
        return sorted(self._owned | others)

    def note_look(self, now: int) -> None:
        """Note the end of a tick that went well, without free slots: it could claim nothing."""
        if not self._is_stopped:
            self.looked_at = now

    def note_end(self, now: int, *, claimed: Collection[int], left: Collection[int]) -> None:
        """Note the end of a tick that went well: in which shards it claimed tasks, and left due ones behind.

        Shards that others do not get done are followed, as long as this worker claims something there.
        """
        self.note_look(now)
        if not self.is_restricted:
            return
        self._claimed_nothing = not claimed
        foreign = frozenset(claimed) - self._owned
        self._followed = foreign & frozenset(left)
        if foreign:
            self._steal_pause_ms, self._steal_at = self._tick_ms, now
        elif self._is_stealing:
            self._steal_pause_ms *= 2
            if self._steal_pause_ms > self._tick_ms * TURN_PARTS:
                self._steal_pause_ms = math.inf  # nothing of this backlog is for us; our turns notice if that changes
            else:
                self._steal_at = now + int(self._steal_pause_ms)

    # The other tickers

    def seen(self, now: int) -> Sequence[int] | None:
        """Return the shards of tickers that the delay ticker wakes: those that it has looked at."""
        if not self._may_restrict(now):
            return None
        recent = {shard for shard, at in self._seen.items() if now - SEEN_MS <= at <= now + SEEN_MS}
        return sorted(self._owned | recent)

    def for_upkeep(self, ticker: str, now: int) -> Sequence[int] | None:
        """Return the shards of any other ticker: its own, and some others in turn."""
        if not self._may_restrict(now):
            return None
        turn = self._turn(ticker)
        elapsed = now - turn.at if 0 <= now - turn.at <= self._round_ms else self._round_ms
        turn.at = now
        count = math.ceil(len(self._others) * elapsed / self._round_ms)
        return sorted(self._owned.union(turn.take(self._others, count)))

    def _may_restrict(self, now: int) -> bool:
        found = self._list
        return found is not None and len(found.owned) < self._shards and found.at - LIST_MS < now < found.at + LIST_MS

    # Others' shards

    @property
    def _pace(self) -> int:
        """How many ticks a turn takes: more of them where very many workers take turns."""
        return 1 if self._list is None else max(1, self._list.workers // TURN_WORKERS)

    @property
    def _round_ms(self) -> int:
        return self._tick_ms * TURN_PARTS * self._pace

    def _turn(self, ticker: str) -> _Turn:
        if ticker not in self._turns:
            self._turns[ticker] = _Turn(self._start)
        return self._turns[ticker]

    def _take_turn(self, now: int) -> Sequence[int]:
        """Return the next few shards of others, in each tick, but no more often than `tick_ms`.

        A worker that owns many shards looks at more: the few that are left are seen all the sooner.
        """
        turn, pause_ms = self._turn("delay"), self._tick_ms * self._pace
        if 0 <= now - turn.at < pause_ms - self._tick_ms // 4:
            return ()
        turn.at = now
        return turn.take(self._others, max(1, self._shards // TURN_PARTS, len(self._owned) // 4))

    def _take_created(self, now: int) -> Iterable[int]:
        created = [*self._created]
        self._created = {shard: due_at for shard, due_at in self._created.items() if due_at > now}
        return created

    def _take_all_due(self, now: int) -> bool:
        if self._all_due_at is None or self._all_due_at > now:
            return False
        self._all_due_at = None
        return True

    def _begin_to_steal(self, now: int) -> bool:
        """Return True if this worker had nothing to do in its last tick while others have a backlog.

        Where that leads to nothing, it happens after twice as long again, and then no more: a backlog may be for
        nobody, and a hundred idle workers must not look at all shards for it in each tick.
        """
        if not self._has_backlog(now):
            self._steal_pause_ms, self._steal_at = self._tick_ms, now
            return False
        if not self._claimed_nothing or now < self._steal_at or self._steal_pause_ms == math.inf:
            return False
        self._is_stealing = True
        return True

    def _has_backlog(self, now: int) -> bool:
        if self._backlog is None or not -CENSUS_AHEAD_MS < now - self._backlog.at < CENSUS_MS:
            return False
        at, oldest_due_at = self._backlog
        return oldest_due_at is not None and oldest_due_at <= at - BACKLOG_MS

    def _note_seen(self, shards: Iterable[int], now: int) -> None:
        if len(self._seen) > self._shards // 2:
            self._seen = {shard: at for shard, at in self._seen.items() if now - SEEN_MS <= at <= now}
        self._seen.update(dict.fromkeys(shards, now))


class _Turn:
    """A position in the cycle of others' shards, and when (ms) it was moved on."""

    def __init__(self, start: int) -> None:
        self._next = start
        self.at = 0

    def take(self, shards: Sequence[int], count: int) -> Sequence[int]:
        """Return the next `count` of these shards, which are in order."""
        if not shards:
            return ()
        count = min(count, len(shards))
        first = next((n for n, shard in enumerate(shards) if shard >= self._next), 0)
        taken = [shards[(first + n) % len(shards)] for n in range(count)]
        self._next = taken[-1] + 1 if taken else self._next
        return taken
