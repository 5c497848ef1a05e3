"""`later` with standard input, output or error closed: its output must not reach another file or socket."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import later.cli.program
from later.cli.exit import ExitStatus

def report_descriptors(arguments):
    print("output")
    print("output", file=sys.stderr)
    sys.stdout.flush()
    all_open = all(os.get_inheritable(number) for number in (0, 1, 2))
    return ExitStatus(7 if all_open and os.open(os.devnull, os.O_RDONLY) > 2 and sys.stdin.read() == "" else 1)

later.cli.program.run = report_descriptors
sys.modules["later.cli.main"].main()
"""


@pytest.mark.parametrize("processes", [1], indirect=True, ids=["alone"])
@pytest.mark.parametrize("closed", ["", "0<&-", "1>&-", "2>&-", "0<&- 1>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_opened_files_never_get_a_standard_descriptor(closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 7, ended.stderr
    assert (ended.stdout, ended.stderr) == ("" if "1>" in closed else "output\n", "" if "2>" in closed else "output\n")
