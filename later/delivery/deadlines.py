"""The deadlines of all calls, with one timer for many: a timer of its own takes a tenth of a call's time."""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

STEP_MS = 50
"""Deadlines of the same step share a timer: a call ends at most this long after its deadline, and never before.

A step is whole milliseconds because the clock of uvloop shows no others. It shows 0.15 s, which is before 3 * 0.05 s:
the timer would be set again and again for a millisecond.
"""
CLOCK_ERROR_MS = 0.001
"""More than what the event loop's time, a float of seconds, differs from whole milliseconds."""


class TimedCall(Protocol):
    """A call that has a deadline."""

    def on_deadline(self) -> None:
        """End the call."""


class Deadlines:
    """Calls, by the step in which they end unless they are discarded before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: dict[int, set[TimedCall]] = {}
        self._order: list[int] = []
        """A heap of the steps."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: TimedCall, at: float) -> set[TimedCall]:
        """End `call` at `at` (a time of the event loop, in s). Return the set to discard it from when it is over."""
        step = int(at * 1000 / STEP_MS) + 1
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = set()
            heapq.heappush(self._order, step)
            if self._order[0] == step:
                self._schedule()
        calls.add(call)
        return calls

    def close(self) -> None:
        """End no call any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._order[0] * STEP_MS / 1000, self._end_due)

    def _end_due(self) -> None:
        self._timer = None
        due = int((self._loop.time() * 1000 + CLOCK_ERROR_MS) / STEP_MS)
        while self._order and self._order[0] <= due:
            for call in list(self._steps.pop(heapq.heappop(self._order))):
                call.on_deadline()
        if self._order:
            self._schedule()
