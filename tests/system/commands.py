"""Commands of later with the address of a daemon: each in a process of its own, or in this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess
from unittest.mock import patch

from later.cli.program import run
from tests.system import canaries
from tests.system.daemons import COMMAND, environment


def run_at(url: str, *arguments: str) -> CompletedProcess[str]:
    """Run a command on the API at `url` to its end, and return its exit status and output.

    It has a process of its own where the daemons have one process. Where they have several, only their part can be
    another: there it runs in this process, because most of a command's time is its start.
    """
    env = {**environment(), "LATER_URL": url}
    return _run_in_own_process(arguments, env) if env["LATER_PROCESSES"] == "1" else _run_here(arguments, env)


def _run_in_own_process(arguments: tuple[str, ...], env: Mapping[str, str]) -> CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)


def _run_here(arguments: tuple[str, ...], env: Mapping[str, str]) -> CompletedProcess[str]:
    output, errors = StringIO(), StringIO()
    canaries.check("\0".join(arguments), "the arguments of a command")
    with patch.dict(os.environ, env, clear=True), redirect_stdout(output), redirect_stderr(errors):
        code = run(arguments).code
    for printed in (output, errors):
        canaries.check(printed.getvalue(), "the output of a command")
    return CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())
