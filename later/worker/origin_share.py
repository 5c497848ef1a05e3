"""Fair sharing of a topic's delivery slots among the origins of its callbacks.

The rule of topics, one level down: of the slots that a topic may use, an origin may hold at most three times those that
are free. Three groups of origins share like one origin each: those that are new, those that were well a
moment ago, and those that are slow. Otherwise forty hosts that hang would take all slots together. Of a thousand hosts
that hang, some would always be new. So the new ones and the slow ones together leave slots to the others; and while
they hold three times the free ones, new ones get the rest one by one, spread over the time after which calls time out.

The origin of a task is known only after its claim. So a claim assumes that all tasks to come are of the fullest origin
that ends calls, which is exact for a topic with one receiver. A few more are claimed ten times a second, to find tasks
of other origins behind them; what is of a full origin is put back. Tasks of origins that end no calls are passed over
as fast as possible.
"""

from __future__ import annotations

from later.core.origin import Origin
from later.worker.fair_share import share
from later.worker.new_origins import NewOriginPace, OriginHistory

NEW_MS = 100
"""How long an origin that begins calls is taken to be well: one that has ended none by then is slow."""
PROMPT_CALL_MS = 1000
"""A call that ends within this time shows that its origin is not slow, for as long again."""
UNPROVEN_PER_FREE = 3
"""While new and slow origins together hold more than this many times the slots that are free, new ones take turns."""
MAX_UNPROVEN_PER_FREE = 15
"""New and slow origins together may hold this many times the slots that are free: new ones that hang are slow soon."""
STALL_MS = 100
"""An origin stalls if it ends no call for this long, and twice the time that its last call took."""
PROBE_EVERY_MS = 100
"""How often more is claimed than the fullest origin may take."""
MIN_PROBE = 16
"""How many tasks more are claimed then, and how many may be put back so often that are not of stalled origins.

While most that is put back is of stalled origins, more is claimed at once, each time fourfold.
"""
MAX_ENDED_PER_PROBE = 10
"""No more is claimed if so many times as many calls ended meanwhile: the tasks behind come nearly as fast without."""
MAX_PROBE = 1000
"""How many it may become. Each claim costs three round trips, and a thousand tasks some 16 ms of CPU."""
MIN_PAUSE_MS, MAX_PAUSE_MS = 100, 10_000
"""The pause of a task that was put back: as long as its origin has neither begun nor ended a call."""
TASKS_PER_PAUSE = 10_000
"""How many tasks of a topic come due again within a pause: at first 100,000 a second, 1,000 if origins hang for long.

Otherwise a receiver that hiccups once, or whose first connections take long, would get all its tasks at 1,000 a second.
"""
PUT_BACK_GRID_MS = 50
"""Tasks that were put back come due at multiples of this: a tick for each of them would take a core."""
FORGET_MS = 1000
"""How long an origin without calls is known after its last task has come due again: its pause may go on."""


def on_grid(at: float, step_ms: int = PUT_BACK_GRID_MS) -> int:
    """Return the first multiple of `step_ms` that is not before `at` (ms)."""
    return -int(-at // step_ms) * step_ms


_NEW, _WELL, _SLOW, _PROMPT = range(4)
"""The groups of origins: new ones, those that were well before they were without calls, slow ones, and others, which
end calls promptly. Each of the first three groups shares like one origin; others share one by one."""


class _OriginSlots:
    """The slots that an origin holds in a topic, and the line of its tasks that were put back. Times are in ms."""

    __slots__ = ("calls", "changed_at", "first_group", "in_use", "line_end", "prompt_until", "stalls_at", "was_prompt")

    def __init__(self, first_group: int, now: int) -> None:
        self.first_group = first_group
        """Its group until a call ends, or should have."""
        self.in_use = 0
        self.calls = 0
        """How many of its slots have a call under way; the others have one to settle."""
        self.was_prompt: bool | None = None
        """True if the call that ended last ended promptly; None if none has ended."""
        self.prompt_until = now
        self.stalls_at = now
        self.changed_at = now
        """When it began or ended a call last."""
        self.line_end = 0.0
        """When the last of its tasks that were put back comes due."""

    def is_idle(self, now: int) -> bool:
        """Return True if it holds no slot and no task waits for it."""
        return not self.in_use and self.line_end + FORGET_MS <= now

    def stalls(self, now: int) -> bool:
        return self.was_prompt is False or (self.calls > 0 and now >= self.stalls_at)

    def group(self, now: int) -> int:
        if self.was_prompt is False or (self.calls and now >= self.prompt_until):
            return _SLOW
        return self.first_group if self.was_prompt is None else _PROMPT

    def begin(self, count: int, now: int) -> None:
        if not self.calls:
            self.prompt_until = max(self.prompt_until, now + NEW_MS)
            self.stalls_at = max(self.stalls_at, now + STALL_MS)
        self.in_use += count
        self.calls += count
        self.changed_at = now

    def end_call(self, took_ms: int, now: int) -> None:
        self.calls -= 1
        self.changed_at = now
        self.was_prompt = took_ms < PROMPT_CALL_MS
        if self.was_prompt:
            self.prompt_until = now + PROMPT_CALL_MS
            self.stalls_at = now + STALL_MS + 2 * took_ms

    def release(self, count: int, now: int) -> None:
        self.in_use -= count
        self.calls = min(self.calls, self.in_use)  # some deliveries end without an outcome of their call
        self.changed_at = now


class _TopicOrigins:
    """The origins of one topic that hold slots, or whose tasks wait in line."""

    __slots__ = (
        "any_stalls",
        "busy",
        "ended",
        "history",
        "name",
        "origins",
        "pace",
        "probe_at",
        "probe_size",
        "waiting",
        "waiting_at",
    )

    def __init__(self, name: str, history: OriginHistory, now: int) -> None:
        self.name = name
        self.history = history
        self.pace = NewOriginPace(now)
        self.origins: dict[Origin, _OriginSlots] = {}
        self.busy: dict[Origin, _OriginSlots] = {}
        """Those of them that hold slots: no more than there are slots."""
        self.waiting = 0
        """About how many of them have tasks that wait in line: those that did at `waiting_at`, and those since."""
        self.waiting_at = now
        self.probe_size = MIN_PROBE
        self.probe_at = now + PROBE_EVERY_MS
        self.ended = 0
        """How many calls ended since it was decided last whether to claim more than the fullest origin may take."""
        self.any_stalls = False
        """True if an origin stalled at the last call of `fullest`."""

    def of(self, origin: Origin, now: int) -> _OriginSlots:
        slots = self.origins.get(origin)
        if slots is None:
            slots = self.origins[origin] = _OriginSlots(self.first_group(origin, now), now)
        return slots

    def first_group(self, origin: Origin, now: int) -> int:
        """Return the group of an origin that has no calls."""
        if self.history.is_well(self.name, origin, now):
            return _WELL
        return _SLOW if self.history.is_slow(self.name, origin, now) else _NEW

    def count_groups(self, now: int) -> list[int]:
        """Return how many slots each group holds."""
        counts = [0, 0, 0, 0]
        for slots in self.busy.values():
            counts[slots.group(now)] += slots.in_use
        return counts

    def fullest(self, now: int) -> int:
        """Return how many slots the origin or group holds that holds most, without origins that stall."""
        moving = [slots for slots in self.busy.values() if not slots.stalls(now)]
        self.any_stalls = len(moving) < len(self.origins)  # one that holds no slot has tasks that wait
        if not moving:
            return 0
        groups = self.count_groups(now)
        groups[_PROMPT] = 0
        return max([max(slots.in_use, groups[slots.group(now)]) for slots in moving])

    def wants_probe(self, now: int) -> bool:
        """Return True if more is to be claimed now than the fullest origin may take. Call it after `fullest`."""
        if now < self.probe_at:
            return False
        if self.any_stalls or self.ended <= MAX_ENDED_PER_PROBE * self.probe_size:
            return True
        self.ended = 0
        self.probe_at = now + PROBE_EVERY_MS
        return False

    def count_waiting(self, now: int) -> None:
        """Count the origins whose tasks wait in line."""
        self.waiting = sum(slots.line_end > now for slots in self.origins.values())
        self.waiting_at = now

    def forget_idle(self, now: int) -> None:
        for origin in [origin for origin, slots in self.origins.items() if slots.is_idle(now)]:
            del self.origins[origin]


class OriginShare:
    """The slots that each origin holds in each topic. Origins without calls and waiting tasks are forgotten."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicOrigins] = {}
        self._history = OriginHistory()
        self._planned: dict[str, int] = {}
        """How many slots each topic may take by the plan under way."""
        self._probed: set[str] = set()
        """Topics of which tasks of full origins may be claimed by that plan."""

    def __len__(self) -> int:
        """Return how many origins are known, those of different topics counted apart."""
        return sum(len(known.origins) for known in self._topics.values())

    def in_use(self, topic: str, origin: Origin) -> int:
        """Return how many slots the origin holds in the topic."""
        known = self._topics.get(topic)
        slots = None if known is None else known.origins.get(origin)
        return 0 if slots is None else slots.in_use

    def count_full(self, now: int) -> int:
        """Return how many origins have tasks that wait for other calls to end."""
        return sum(slots.line_end > now for known in self._topics.values() for slots in known.origins.values())

    def start_plan(self) -> None:
        """Forget what the last plan gave to each topic."""
        self._planned.clear()
        self._probed.clear()

    def claim_limit(self, topic: str, open_slots: int, now: int) -> int:
        """Return how many tasks to claim of a topic that may take `open_slots` by the plan under way."""
        self._planned[topic] = open_slots
        known = self._topics.get(topic)
        if known is None:
            return share(open_slots, 0)
        limit = share(open_slots, known.fullest(now))
        goes_beyond = limit < open_slots and known.wants_probe(now)
        if goes_beyond or known.any_stalls:
            self._probed.add(topic)
        return limit + known.probe_size if goes_beyond else limit

    def probes(self, topic: str) -> bool:
        """Return True if tasks of full origins may be among those that were claimed by the plan.

        The plan says so, not the slots in use: all calls that were under way may have ended during the claim.
        """
        return topic in self._probed

    def closed_until(self, topic: str, open_slots: int, now: int) -> int:
        """Return when (ms) tasks of the topic may be claimed next; 0 for now."""
        known = self._topics.get(topic)
        if known is None or now >= known.probe_at or share(open_slots, known.fullest(now)):
            return 0
        return known.probe_at

    def admission(self, topic: str, now: int, timeout_ms: int) -> Admission:
        """Return the decisions on tasks of a topic that were claimed together by the plan; its calls end by a timeout.

        No more of them may begin than were planned: the other free slots are those of topics that were planned later.
        """
        return Admission(self._of(topic, now), self._planned[topic], now, timeout_ms)

    def acquire(self, topic: str, origin: Origin, now: int, count: int = 1) -> None:
        """Begin calls."""
        known = self._topics.get(topic) or self._of(topic, now)
        slots = known.of(origin, now)
        known.busy[origin] = slots
        slots.begin(count, now)

    def end_call(self, topic: str, origin: Origin, took_ms: int, now: int) -> None:
        """End a call, with or without an answer. Its slot is released when its delivery is settled.

        If an origin ended its calls only then, a store or a process that is slow would make it look as if it stalled.
        """
        known = self._topics[topic]
        known.ended += 1
        known.origins[origin].end_call(took_ms, now)

    def release(self, topic: str, origin: Origin, now: int, count: int = 1) -> None:
        known = self._topics[topic]
        slots = known.origins[origin]
        slots.release(count, now)
        if not slots.in_use:
            del known.busy[origin]
            self._history.add(topic, origin, now, was_prompt=slots.was_prompt)
            if slots.is_idle(now):
                del known.origins[origin]
                if not known.origins:
                    del self._topics[topic]

    def forget_idle(self, now: int) -> None:
        """Forget origins that hold no slot and for which no task waits."""
        for topic, known in list(self._topics.items()):
            known.forget_idle(now)
            if not known.origins:
                del self._topics[topic]

    def _of(self, topic: str, now: int) -> _TopicOrigins:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _TopicOrigins(topic, self._history, now)
        return known


class Admission:
    """The decisions on tasks of one topic that were claimed together: which begin, and when the others are due again.

    `open_slots` is how many of them may begin.
    """

    def __init__(self, known: _TopicOrigins, open_slots: int, now: int, timeout_ms: int) -> None:
        self._known = known
        self._open_slots = open_slots
        self._now = now
        self._timeout_ms = timeout_ms
        self._groups = known.count_groups(now)
        if now >= known.waiting_at + MIN_PAUSE_MS:
            known.count_waiting(now)
        self._put_back = 0
        self._stalled = 0

    def admit(self, origin: Origin) -> bool:
        """Return True if a call to the origin may begin. The caller begins it at once."""
        in_use, group = self._in_use_and_group(origin)
        if group != _PROMPT:
            in_use = max(in_use, self._groups[group])
        if not share(self._open_slots, in_use) or (group == _NEW and not self._admits_new(origin)):
            return False
        self._open_slots -= 1
        self._groups[group] += 1
        return True

    def _in_use_and_group(self, origin: Origin) -> tuple[int, int]:
        slots = self._known.origins.get(origin)
        if slots is None:
            return 0, self._known.first_group(origin, self._now)
        return slots.in_use, slots.group(self._now)

    def _admits_new(self, origin: Origin) -> bool:
        """Return True if a call to a new origin may begin beside the other new and slow ones."""
        if not self._are_unproven_many:
            return True
        unproven = self._groups[_NEW] + self._groups[_SLOW]
        if unproven > MAX_UNPROVEN_PER_FREE * self._open_slots:
            return False
        slots = unproven + self._open_slots
        turns = slots // (1 + UNPROVEN_PER_FREE) - slots // (1 + MAX_UNPROVEN_PER_FREE)
        waited = origin in self._known.origins
        return self._known.pace.admits(origin, self._now, self._timeout_ms // max(turns, 1), waited=waited)

    @property
    def _are_unproven_many(self) -> bool:
        """True if new and slow origins hold so many slots together that new ones take turns."""
        return self._groups[_NEW] + self._groups[_SLOW] > UNPROVEN_PER_FREE * self._open_slots

    @property
    def is_topic_full(self) -> bool:
        """True if no other task of the topic may begin, of whatever origin."""
        return self._open_slots <= 0

    def put_back_at(self, origin: Origin) -> int:
        """Return when (ms) a task is due again that was not admitted."""
        slots = self._known.of(origin, self._now)
        now = self._now
        self._put_back += 1
        stalls = slots.stalls(now) or (self._are_unproven_many and slots.group(now) in (_NEW, _SLOW))
        self._stalled += stalls
        if slots.line_end <= now:
            self._known.waiting += 1
        pause_ms = min(max(now - slots.changed_at, MIN_PAUSE_MS), MAX_PAUSE_MS)
        due_at: float = now + pause_ms
        if stalls:  # of others, few are claimed at a time
            due_at = max(due_at, slots.line_end + pause_ms * self._known.waiting / TASKS_PER_PAUSE)
        slots.line_end = max(slots.line_end, due_at)
        return on_grid(due_at)

    def pass_over(self) -> None:
        """Count a task that was put back because its origin is held, which ends no calls meanwhile."""
        self._put_back += 1
        self._stalled += 1

    def end(self) -> None:
        """Decide when to look for tasks behind those of full origins again, and how far."""
        known = self._known
        others = self._put_back - self._stalled
        if others > MIN_PROBE:
            known.probe_size = max(known.probe_size * MIN_PROBE // others, MIN_PROBE)
        elif self._stalled and others * 4 <= MIN_PROBE:
            known.probe_size = min(known.probe_size * 4, MAX_PROBE)
        if self._put_back:
            known.ended = 0
            known.probe_at = self._now + min(others, MIN_PROBE) * PROBE_EVERY_MS // MIN_PROBE
