"""BullMQ as a peer: its packages, installed by npm into `build`, and its worker in processes of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.environment import Environment
from scripts.bench.processes import ROOT, Process, run_for_result, run_process, wait_until
from scripts.bench.programs import Program
from scripts.bench.stores import BenchStore

SOURCE = Path(__file__).parent / "bullmq"
INSTALLED = ROOT / "build" / "bullmq"
INSTALL_TIMEOUT_S = 120
SEED_TIMEOUT_S = 120
FINISH_TIMEOUT_S = 120
SEEDED_PER_S = 2_000
"""A rate at which BullMQ adds jobs even on a busy machine, in jobs per second."""
START_S = 2.0
"""How long its workers may take until they are ready."""


def install_bullmq(environment: Environment) -> str:
    """Install BullMQ from its lock, unless it is installed. Return why it cannot run here; empty if it can."""
    if environment.node is None:
        return "Node with npm is not installed"
    lock = SOURCE / "package-lock.json"
    INSTALLED.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE / "worker.mjs", INSTALLED)
    marker = INSTALLED / "installed-lock.json"
    if marker.exists() and marker.read_bytes() == lock.read_bytes():
        return ""
    for file in (SOURCE / "package.json", lock):
        shutil.copy(file, INSTALLED)
    command = [str(shutil.which("npm")), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=INSTALLED, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"npm ci did not end within {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        return f"npm ci failed: {' '.join(re.findall('^npm error (.+)', done.stderr, re.MULTILINE)[:2])}"
    shutil.copy(lock, marker)
    return ""


def seed_jobs(environment: Environment, store: BenchStore, count: int, due_ms: int = 0) -> None:
    """Add jobs that are due at one instant (ms since the epoch; 0: now)."""
    with environment.temporary_folder() as folder:
        arguments = [str(count), str(due_ms)]
        with run_process(_command(environment, "seed", store, *arguments), folder, "bullmq-seed") as process:
            process.wait_for_end(SEED_TIMEOUT_S)


def finish_jobs(environment: Environment, store: BenchStore, count: int) -> dict[str, Any]:
    """Let its worker claim and finish so many jobs, 64 at a time; return the time and its CPU time (s)."""
    with environment.temporary_folder() as folder:
        command_line = _command(environment, "finish", store, str(count))
        return run_for_result(command_line, folder, "bullmq-finish", FINISH_TIMEOUT_S)


@contextmanager
def run_bullmq(environment: Environment, store: BenchStore, url: str, processes: int) -> Iterator[Program]:
    """Run BullMQ's worker in processes, and wait until each is ready."""
    with environment.temporary_folder() as folder, ExitStack() as stack:
        command_line = _command(environment, "work", store, url)
        workers = [stack.enter_context(run_process(command_line, folder, f"bullmq-{n}")) for n in range(processes)]
        for worker in workers:
            wait_until(partial(_is_ready, worker), "BullMQ's worker is ready", worker)
        yield Program("", workers)


def _is_ready(worker: Process) -> bool:
    return "ready" in worker.log.read_text()


def _command(environment: Environment, command: str, store: BenchStore, *arguments: str) -> list[str]:
    return [str(environment.node), str(INSTALLED / "worker.mjs"), command, str(store.socket), *arguments]
