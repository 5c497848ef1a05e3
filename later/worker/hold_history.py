"""The holds that this process has met: what a task met between the time when it was due and its claim."""

from __future__ import annotations

from typing import NamedTuple

from later.core.held import Held
from later.core.policy import Deliver
from later.core.policy_scopes import Level, Policies, namespace_from_topic

SAME_HOLD_MS = 1000
"""A hold that begins this soon after another one's end goes on with it: a worker meets a limit with each claim."""
RESUME_MS = 1600
"""How long after a pause its topics may still be held: until a worker has resumed them."""
MAX_HOLDS = 10_000
"""Topics that are remembered at least before those whose holds are over are dropped."""


class _Hold(NamedTuple):
    """A hold of one topic, and the time (ms) over which it held."""

    kind: Held
    since: int
    until: int


class HoldHistory:
    """The last hold of each topic that had one. Topics without limits and pauses cost nothing here.

    A hold that begins within `same_hold_ms` after the last one's end goes on with it.
    """

    def __init__(self, same_hold_ms: int = SAME_HOLD_MS) -> None:
        self.same_hold_ms = same_hold_ms
        self._holds: dict[str, _Hold] = {}
        self._namespaces: dict[str, _Hold] = {}
        """Pauses of whole namespaces."""
        self._policies: Policies | None = None
        self._drop_above = MAX_HOLDS
        """The number of topics above which those are dropped whose holds are over."""

    @property
    def is_empty(self) -> bool:
        """True if no hold was met: then nothing held any task."""
        return not (self._holds or self._namespaces)

    def held_by(self, topic: str, due_at: int, now: int) -> Held:
        """Return what held a task that was due at `due_at` (ms) and is claimed at `now`."""
        hold = self._holds.get(topic)
        if hold is not None and due_at <= hold.until and hold.since < now:
            return hold.kind
        if self._namespaces:
            hold = self._namespaces.get(namespace_from_topic(topic))
            if hold is not None and due_at <= hold.until:
                return hold.kind
        return Held.NO

    def add(self, topic: str, kind: Held, now: int, until: int) -> None:
        """Remember that a topic is held at `now`, until `until` (ms)."""
        last = self._holds.get(topic)
        since = last.since if last is not None and self._goes_on(last, now) else now
        self._holds[topic] = _Hold(kind, since, until)
        if len(self._holds) > self._drop_above:
            self._holds = {topic: hold for topic, hold in self._holds.items() if self._goes_on(hold, now)}
            self._drop_above = max(MAX_HOLDS, 2 * len(self._holds))  # or each of many more would look at all others

    def current(self, topic: str, now: int) -> Held:
        """Return what holds the topic now, or did a moment ago."""
        hold = self._holds.get(topic) or self._namespaces.get(namespace_from_topic(topic))
        return hold.kind if hold is not None and self._goes_on(hold, now) else Held.NO

    def add_ended_pauses(self, policies: Policies, now: int) -> None:
        """Remember the pauses that a change of the policies ended, also by consumers. Cheap if nothing has changed."""
        before, self._policies = self._policies, policies
        if before is policies or before is None:
            return
        for scope, settings in before.settings.without(policies.settings):
            fields = settings.fields
            if (fields.get("paused") or fields.get("deliver") == Deliver.PULL) and not policies.for_scope(
                scope
            ).is_held:
                hold = _Hold(Held.PAUSE, now - 1, now + RESUME_MS)
                holds = self._holds if scope.level is Level.TOPIC else self._namespaces
                holds[scope.name] = hold

    def _goes_on(self, hold: _Hold, now: int) -> bool:
        return hold.until >= now - self.same_hold_ms
