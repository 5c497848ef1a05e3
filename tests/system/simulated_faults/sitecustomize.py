"""Simulated faults for each Python that starts with this folder in PYTHONPATH; SIMULATED_FAULT names one:

- `names-hang`: the lookup of a name that ends in .hangs.test takes 5 s, cannot be cancelled, and fails.
- `clock-ahead`: the wall clock that processes read is an hour ahead.
- `second-dies`: the second of several processes exits as soon as it starts.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

HANG_S = 5.0
AHEAD_S = 3600.0
EXIT_STATUS = 3
"""The exit status of the process that exits."""


def delay_name_lookups() -> None:
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
        if str(host).endswith(".hangs.test"):
            time.sleep(HANG_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return look_up(host, *arguments, **named)

    socket.getaddrinfo = getaddrinfo


def set_clock_ahead() -> None:
    wall = time.time
    time.time = lambda: wall() + AHEAD_S


def exit_second_process() -> None:
    if "2/2" in sys.orig_argv:
        os._exit(EXIT_STATUS)


FAULTS = {"names-hang": delay_name_lookups, "clock-ahead": set_clock_ahead, "second-dies": exit_second_process}

if "SIMULATED_FAULT" in os.environ:
    FAULTS[os.environ["SIMULATED_FAULT"]]()
