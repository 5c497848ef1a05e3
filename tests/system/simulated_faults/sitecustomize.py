"""Simulated faults for each Python that starts with this folder in PYTHONPATH; SIMULATED_FAULT names one:

- `names-hang`: the lookup of a name that ends in .hangs.test takes 5 s, cannot be cancelled, and fails.
- `clock-ahead`: the wall clock that processes read is an hour ahead.
- `no-uvloop`: the library is not installed, so the event loop is asyncio's.
- `no-opentelemetry`: nothing of it is installed.
- `second-dies`: the second of several processes exits as soon as it starts.
- `second-hangs`: in the second of several processes a ticker hangs at its first tick, and ten seconds are its minute.
- `dies-in-claim`: the first process that has claimed tasks for a consumer kills itself before it answers. It leaves the
  file that SIMULATED_DEATH names, and no other process does the same.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
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


def hide_uvloop() -> None:
    hidden: dict[str, Any] = {"uvloop": None}
    sys.modules.update(hidden)


def hide_opentelemetry() -> None:
    hidden: dict[str, Any] = {"opentelemetry": None}
    sys.modules.update(hidden)


def exit_second_process() -> None:
    if "2/2" in sys.orig_argv:
        os._exit(EXIT_STATUS)


def hang_in_second_process() -> None:
    if "2/2" not in sys.orig_argv:
        return

    async def hang(expirer: Any, now: int) -> None:
        await import_module("asyncio").Event().wait()

    import_module("later.worker.ticker").HANGS_AFTER_S = 10.0  # type: ignore[attr-defined]  # a constant of ours
    import_module("later.worker.expiry").Expirer.tick = hang


def die_before_a_claim_is_answered() -> None:
    names = vars(import_module("later.api.claims"))
    answer = names["is_sent"]

    async def die_once(request: Any, response: Any) -> bool:
        with suppress(FileExistsError):
            os.close(os.open(os.environ["SIMULATED_DEATH"], os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return bool(await answer(request, response))

    names["is_sent"] = die_once


FAULTS = {
    "names-hang": delay_name_lookups,
    "clock-ahead": set_clock_ahead,
    "no-uvloop": hide_uvloop,
    "no-opentelemetry": hide_opentelemetry,
    "second-dies": exit_second_process,
    "second-hangs": hang_in_second_process,
    "dies-in-claim": die_before_a_claim_is_answered,
}

if "SIMULATED_FAULT" in os.environ:
    FAULTS[os.environ["SIMULATED_FAULT"]]()
