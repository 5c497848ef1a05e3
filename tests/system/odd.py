"""`later`, on a machine that is not quite right: `python odd.py ODDITY later's arguments`.

ODDITY is `names-hang` (the lookup of a name that ends in .hangs.test takes 5 s and then finds nothing: as real ones do,
deaf to whoever has given up on it) or `clock-ahead` (this process's wall clock, alone, is an hour ahead).
"""

from __future__ import annotations

import runpy
import socket
import sys
import time
from typing import Any

HANG_S = 5.0
AHEAD_S = 3600.0


def names_hang() -> None:
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
        if str(host).endswith(".hangs.test"):
            time.sleep(HANG_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return look_up(host, *arguments, **named)

    socket.getaddrinfo = getaddrinfo


def clock_ahead() -> None:
    wall = time.time
    time.time = lambda: wall() + AHEAD_S


if __name__ == "__main__":
    {"names-hang": names_hang, "clock-ahead": clock_ahead}[sys.argv.pop(1)]()
    sys.path[0] = ""  # as with -m: what is to be run is where the test runs
    runpy.run_module("later", run_name="__main__", alter_sys=True)
