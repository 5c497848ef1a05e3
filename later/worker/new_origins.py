"""Origins without calls: how their last one went, and when new ones are called although many others hang."""

from __future__ import annotations

from collections import OrderedDict

from later.core.origin import Origin

WELL_MS = 10_000
"""How long an origin without calls is known to be well, after a call that ended promptly."""
SLOW_MS = 60_000
"""How long an origin without calls is known to be slow, after a call that did not. Most retries are made by then."""
MAX_KNOWN = 1000
"""How many origins without calls are known to be well, and how many to be slow, in all topics: those that ended a call
last."""
MAX_SAVED_TURNS = 2
MAX_NEXT = 8
"""How many new origins are known that come before others that wait."""


class OriginHistory:
    """The ends of the last calls to origins without calls, by topic, as far as they were a moment ago."""

    def __init__(self) -> None:
        self._well: OrderedDict[tuple[str, Origin], int] = OrderedDict()
        """Until when (ms) each is known to be well; the one whose call ended first comes first."""
        self._slow: OrderedDict[tuple[str, Origin], int] = OrderedDict()

    def add(self, topic: str, origin: Origin, now: int, *, was_prompt: bool | None) -> None:
        """Remember how the last call to an origin went. None: no call has ended."""
        key = (topic, origin)
        self._well.pop(key, None)
        if self._slow:
            self._slow.pop(key, None)
        if was_prompt is None:
            return
        origins, kept_ms = (self._well, WELL_MS) if was_prompt else (self._slow, SLOW_MS)
        origins[key] = now + kept_ms
        if len(origins) > MAX_KNOWN:
            origins.popitem(last=False)

    def is_well(self, topic: str, origin: Origin, now: int) -> bool:
        return self._well.get((topic, origin), 0) > now

    def is_slow(self, topic: str, origin: Origin, now: int) -> bool:
        return self._slow.get((topic, origin), 0) > now


class NewOriginPace:
    """The turns of a topic's new origins, one by one, while those that were called first hang.

    A turn that nobody takes is saved, but no more than two. The second one is for an origin that is due for the first
    time: it need not wait behind a thousand others that may hang as well. Those that come too soon for that are next.
    """

    def __init__(self, now: int) -> None:
        self._turn_at = now
        """When (ms) the next turn is; if it has passed, the turn is saved."""
        self._next: list[Origin] = []
        """Origins that came when there was no turn, the one that came last at the end."""

    def admits(self, origin: Origin, now: int, interval_ms: int, *, waited: bool) -> bool:
        """Return True if a new origin has its turn now. `waited`: a task of it was put back before."""
        is_next = self._next[-1:] == [origin]
        needed = 1 if is_next or not waited else MAX_SAVED_TURNS
        if now < self._turn_at + (needed - 1) * interval_ms:
            if not waited:
                self._next = [*self._next[1 - MAX_NEXT :], origin]
            return False
        self._turn_at = max(self._turn_at, now - (MAX_SAVED_TURNS - 1) * interval_ms) + interval_ms
        if origin in self._next:
            self._next.remove(origin)
        return True
