"""Child processes of the benchmark, and their CPU time and memory as the kernel reports them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.results import BenchError

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
TIMEOUT_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A started process and the file with its output."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def check(self) -> None:
        """Raise BenchError if the process has ended."""
        if self.popen.poll() is not None:
            last = " | ".join(self.log.read_text(errors="replace").splitlines()[-3:])
            raise BenchError(f"{self.log.stem} ended with {self.popen.returncode}: {last or 'no output'}")

    def wait_for_end(self, within_s: float) -> None:
        """Wait until the process ends. Raises BenchError if it fails or takes longer."""
        try:
            status = self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.log.stem} did not end within {within_s:g} s") from None
        if status:
            self.check()


@contextmanager
def run_process(
    command: Sequence[str | Path], folder: Path, name: str, variables: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a process in `folder` with its output in a file there; at the end terminate or kill it."""
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**_clean_environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Process(process, log)
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_for_result(
    command: Sequence[str | Path],
    folder: Path,
    name: str,
    within_s: float,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a process to its end, and return the JSON object that it printed last."""
    with run_process(command, folder, name, variables) as process:
        process.wait_for_end(within_s)
        return dict(json.loads(process.log.read_text().splitlines()[-1]))


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of the benchmark."""
    return [sys.executable, "-m", f"scripts.bench.{module}", *arguments]


def _clean_environment() -> dict[str, str]:
    """Return the benchmark's environment, without later's variables and with the benchmark on Python's path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATER_")}
    return kept | {"PYTHONPATH": str(ROOT)}


def wait_until(condition: Callable[[], bool], what: str, process: Process, within_s: float = TIMEOUT_S) -> None:
    """Wait until the condition holds. Raises BenchError after `within_s` or if the process ends."""
    deadline = time.monotonic() + within_s
    while not condition():
        process.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {within_s:g} s")
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def count_listeners(port: int) -> int:
    """Return the number of sockets that listen on a port of 127.0.0.1; at most 1 without /proc."""
    with suppress(OSError):
        ending = f":{port:04X}"
        lines = (PROC / "net/tcp").read_text().splitlines()[1:]
        return sum(fields[1].endswith(ending) and fields[3] == "0A" for fields in map(str.split, lines))
    with socket.socket() as probe:
        return int(probe.connect_ex(("127.0.0.1", port)) == 0)


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and its descendants; empty if it has ended or without /proc."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            children.setdefault(int(_stat_fields(int(folder.name))[1]), []).append(int(folder.name))
    found, generation = list[int](), [pid] if (PROC / str(pid)).exists() else []
    while generation:
        found += generation
        generation = [child for parent in generation for child in children.get(parent, [])]
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time of one process so far, in seconds.

    It is read from the process's own clock (clock_getcpuclockid(3)): /proc counts in steps of 10 ms, which is much of a
    short turn.
    """
    return time.clock_gettime(~pid << 3 | 2)


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants so far, in seconds; 0 without /proc."""
    total = 0.0
    for member in process_tree(pid):
        with suppress(OSError):
            total += cpu_s(member)
    return total


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of one process."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchError("the kernel does not say how much memory a process takes")


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before it may hold any character."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
