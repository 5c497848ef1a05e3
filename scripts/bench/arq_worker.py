"""arq as a peer: its packages, installed by pip into `build`, and its worker in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from scripts.bench.environment import Environment
from scripts.bench.processes import ROOT, module_command, run_for_result
from scripts.bench.stores import BenchStore

LOCK = Path(__file__).parent / "arq" / "requirements.txt"
INSTALLED = ROOT / "build" / "arq"
INSTALL_TIMEOUT_S = 120
TIMEOUT_S = 300


def install_arq(environment: Environment) -> str:
    """Install arq from its lock, unless it is installed. Return why it cannot run here; empty if it can.

    Its dependencies are its own, because it needs an older redis-py than later; only hiredis is shared.
    """
    if environment.pip is None:
        return "pip is not installed"
    marker = INSTALLED / "installed-requirements.txt"
    if marker.exists() and marker.read_bytes() == LOCK.read_bytes():
        return ""
    shutil.rmtree(INSTALLED, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(INSTALLED)]
    command = [environment.pip, "--disable-pip-version-check", "install", *options, "--requirement", str(LOCK)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip install did not end within {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        return f"pip install failed: {' '.join(done.stderr.split('ERROR: ')[-1].split())}"
    shutil.copy(LOCK, marker)
    return ""


def seed_jobs(environment: Environment, store: BenchStore, count: int) -> None:
    """Add jobs that are due now."""
    _run(environment, "seed", store, count)


def finish_jobs(environment: Environment, store: BenchStore, count: int) -> dict[str, Any]:
    """Let its worker claim and finish so many jobs, 64 at a time; return the time and its CPU time (s)."""
    return _run(environment, "finish", store, count)


def _run(environment: Environment, what: str, store: BenchStore, count: int) -> dict[str, Any]:
    command = module_command("arq_jobs", what, str(store.socket), str(count))
    with environment.temporary_folder() as folder:
        variables = {"PYTHONPATH": os.pathsep.join([str(INSTALLED), str(ROOT)])}
        return run_for_result(command, folder, f"arq-{what}", TIMEOUT_S, variables)
