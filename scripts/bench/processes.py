"""Processes of the bench's own: started, watched, ended; and what the kernel says of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from scripts.bench.results import BenchError

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
PATIENCE_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Running(NamedTuple):
    """A process that was started, and where its output goes."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raise BenchError where it has ended."""
        if self.process.poll() is not None:
            last = " | ".join(self.log.read_text(errors="replace").splitlines()[-3:])
            raise BenchError(f"{self.log.stem} ended with {self.process.returncode}: {last or 'no word'}")

    def await_end(self, within_s: float) -> None:
        """Wait until it ends well."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.log.stem} did not end within {within_s:g} s") from None
        if status:
            self.check()


@contextmanager
def a_process(command: Sequence[str | Path], folder: Path, name: str) -> Iterator[Running]:
    """A process in `folder`, its output in a file there; asked to end at the end, killed where it does not."""
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield Running(process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module of the bench."""
    return [sys.executable, "-m", f"scripts.bench.{module}", *arguments]


def _environment() -> dict[str, str]:
    """Ours, without what would configure later, and with the bench where Python finds it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATER_")}
    return kept | {"PYTHONPATH": str(ROOT)}


def eventually(condition: Callable[[], bool], what: str, running: Running, within_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds. Raises BenchError where it does not in time, or the process has ended."""
    deadline = time.monotonic() + within_s
    while not condition():
        running.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {within_s:g} s")
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        return int(ours.getsockname()[1])


def listeners(port: int) -> int:
    """How many sockets listen on a port of 127.0.0.1; one at most where there is no /proc."""
    with suppress(OSError):
        ending = f":{port:04X}"
        lines = (PROC / "net/tcp").read_text().splitlines()[1:]
        return sum(fields[1].endswith(ending) and fields[3] == "0A" for fields in map(str.split, lines))
    with socket.socket() as ours:
        return int(ours.connect_ex(("127.0.0.1", port)) == 0)


def family(pid: int) -> list[int]:
    """A process and all that descend from it; none where it is gone, or where there is no /proc."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found, generation = list[int](), [pid] if (PROC / str(pid)).exists() else []
    while generation:
        found += generation
        generation = [child for parent in generation for child in children.get(parent, [])]
    return found


def cpu_s(pid: int) -> float:
    """The CPU time of one process so far, in seconds."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def family_cpu_s(pid: int) -> float:
    """The CPU time of a process and its descendants so far, in seconds; 0 where there is no /proc."""
    total = 0.0
    for one in family(pid):
        with suppress(OSError):
            total += cpu_s(one)
    return total


def peak_resident_bytes(pid: int) -> int:
    """The most resident memory that one process ever had."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchError("the kernel does not say how much memory a process takes")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: what comes before may hold anything."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
