"""The timer of all deadlines, on an event loop whose clock shows whole milliseconds, as uvloop's does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from later.delivery.deadlines import Deadlines


class MillisecondLoop:
    """The part of an event loop that deadlines use: its time is `now_ms`, and its timer is run by hand."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._timer: tuple[float, Callable[[], object]] | None = None

    def time(self) -> float:
        return self.now_ms / 1000

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        self._timer = (when, callback)

    def run_timer(self) -> None:
        """Let the time come for which the timer was set, and run it."""
        assert self._timer is not None
        when, run = self._timer
        self.now_ms += round((when - self.time()) * 1000)
        run()


class Call:
    has_ended = False

    def on_deadline(self) -> None:
        self.has_ended = True


@given(st.integers(0, 10**11), st.integers(0, 120_000))
def test_a_call_ends_when_its_timer_runs_for_the_first_time_and_never_before_its_deadline(
    now_ms: int, timeout_ms: int
) -> None:
    """A timer that comes too early is set again, for no time: it runs over and over until the clock shows more."""
    loop, call = MillisecondLoop(now_ms), Call()
    Deadlines(cast(asyncio.AbstractEventLoop, loop)).add(call, loop.time() + timeout_ms / 1000)
    loop.run_timer()
    assert (call.has_ended, loop.now_ms >= now_ms + timeout_ms) == (True, True)
