"""Waiting for a condition, with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
PROPAGATION_S = 2.0
"""Every process knows a change of a policy after this time."""

Result = TypeVar("Result")


def wait_until(condition: Callable[[], Result], what: str, within_s: float = TIMEOUT_S) -> Result:
    """Call `condition` until it returns a true value, and return that. The test fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain: {what}"
        time.sleep(POLL_INTERVAL_S)
    return found


def sleep_until(moment: float) -> None:
    """Sleep until a time of the wall clock (Unix seconds)."""
    time.sleep(max(0.0, moment - time.time()))
