"""The deadlines of all calls, with one timer for many: a timer of its own takes a tenth of a call's time."""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

STEP_S = 0.05
"""Deadlines of the same step share a timer: a call ends at most this long after its deadline, and never before."""


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
        step = int(at / STEP_S) + 1
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
        self._timer = self._loop.call_at(self._order[0] * STEP_S, self._end_due)

    def _end_due(self) -> None:
        self._timer = None
        due = int(self._loop.time() / STEP_S)
        while self._order and self._order[0] <= due:
            for call in list(self._steps.pop(heapq.heappop(self._order))):
                call.on_deadline()
        if self._order:
            self._schedule()
