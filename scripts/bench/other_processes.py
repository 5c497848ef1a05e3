"""How much of the machine went to processes that are not the bench's: figures from a busy machine tell little."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress

from scripts.bench.processes import PROC, TICKS_PER_S

OUR_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


class Others:
    """Watches from now on. What the bench has started counts as its own once it has ended."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._taken_s = _taken_by_others_s()

    def share(self) -> float | None:
        """Their share of all cores; None where there is no /proc."""
        taken_s = _taken_by_others_s()
        if taken_s is None or self._taken_s is None:
            return None
        seconds = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(taken_s - self._taken_s, 0) / seconds


def _taken_by_others_s() -> float | None:
    """Since the machine has started. What a hypervisor kept to itself is theirs, too."""
    with suppress(OSError):
        user, nice, system, _, _, _, _, stolen, *_ = map(int, (PROC / "stat").read_text().split()[1:11])
        return (user + nice + system + stolen) / TICKS_PER_S - _taken_by_us_s()
    return None


def _taken_by_us_s() -> float:
    used = [resource.getrusage(who) for who in OUR_OWN]
    return sum(one.ru_utime + one.ru_stime for one in used)
