"""How long a daemon takes at most to stop, from its own limits."""

from __future__ import annotations

from typing import Final

from later.config import load
from later.embedded import server
from later.processes.supervisor import STOP_GRACE_S

STORE_STOP_S: Final = 2 * server.STOP_TIMEOUT_S
"""The embedded store gets this long twice: to end by itself, and to end once it is killed."""


def longest_stop_s(command: str) -> float:
    """Return the seconds of a stop of `later up`, `serve` or `worker` with its defaults, in any number of processes."""
    drain_s = load(command, {}, {}).drain_ms / 1000
    return drain_s + STOP_GRACE_S + (STORE_STOP_S if command == "up" else 0)
