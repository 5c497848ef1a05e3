"""CPU time taken by processes outside the benchmark, because figures from a busy machine are unreliable."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress

from scripts.bench.processes import PROC, TICKS_PER_S

OWN_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


class OtherProcessesMeter:
    """A meter of the CPU time of other processes, from its creation on.

    Processes that the benchmark started count as its own once they have ended.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._taken_before_s = _cpu_of_others_s()

    def share(self) -> float | None:
        """Return their share of all cores, 0 to 1; None without /proc."""
        taken_s = _cpu_of_others_s()
        if taken_s is None or self._taken_before_s is None:
            return None
        seconds = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(taken_s - self._taken_before_s, 0) / seconds


def _cpu_of_others_s() -> float | None:
    """Return the CPU seconds of other processes since boot, including time stolen by a hypervisor."""
    with suppress(OSError):
        user, nice, system, _, _, _, _, stolen, *_ = map(int, (PROC / "stat").read_text().split()[1:11])
        return (user + nice + system + stolen) / TICKS_PER_S - _own_cpu_s()
    return None


def _own_cpu_s() -> float:
    usages = [resource.getrusage(who) for who in OWN_PROCESSES]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
