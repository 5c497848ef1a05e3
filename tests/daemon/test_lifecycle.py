"""The lifecycle of a process: what signals do to it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SIGNALLED_AFTERWARDS = """
import os, sys
if sys.argv[2] == "asyncio":
    sys.modules["uvloop"] = None  # as if it were not installed
from later.daemon.lifecycle import Lifecycle, run_in_loop

async def do_nothing():
    pass

async def run():
    lifecycle = Lifecycle(force_exit=lambda: None)
    lifecycle.request_stop()
    return await lifecycle.run(do_nothing, do_nothing)

status = run_in_loop(run())
os.kill(os.getpid(), int(sys.argv[1]))
os._exit(status)
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_signal_after_the_end_of_a_stop_does_not_change_the_exit_status(number: signal.Signals, loop: str) -> None:
    command = [sys.executable, "-c", SIGNALLED_AFTERWARDS, str(int(number)), loop]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
