"""Waiting, always for something and never for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30.0
POLL_S = 0.02

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], what: str, within: float = PATIENCE_S) -> Found:
    """The first truthy thing that `look` answers."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {within:g} s in vain: {what}"
        time.sleep(POLL_S)
    return found


def until(moment: float) -> None:
    """Sleep until this time of the wall clock (s)."""
    time.sleep(max(0.0, moment - time.time()))
