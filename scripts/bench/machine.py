"""The machine of the measurement and the versions of all programs involved."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median

import later
from scripts.bench.environment import Environment

MEASURED_FLUSHES = 50
PACKAGES = ("aiohttp", "uvloop", "redis", "hiredis", "msgspec")


def describe_machine(environment: Environment) -> dict[str, str]:
    """Return the facts about the machine, by name."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": f"a write is flushed in {_flush_ms(environment.folder):.2f} ms (median of {MEASURED_FLUSHES})",
    }


def find_versions(environment: Environment) -> dict[str, str]:
    """Return the versions of the programs and packages, by name."""
    programs = {"store": [str(environment.store_program), "--version"]}
    programs |= {"wrk": [environment.wrk, "-v"]} if environment.wrk else {}
    programs |= {"nginx": [environment.nginx, "-v"]} if environment.nginx else {}
    programs |= {"Node": [environment.node, "--version"]} if environment.node else {}
    return {
        "Python": platform.python_version(),
        "later": later.__version__,
        **{name: version(name) for name in PACKAGES},
        **{name: _version_of(command) for name, command in programs.items()},
    }


def _cpu_model() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _version_of(command: list[str]) -> str:
    """Return the version that a program prints, without build and copyright."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = (done.stdout + done.stderr).splitlines()[0]
    found = re.search(r"(valkey|redis)[ _]server v=(\S+)|(wrk|nginx)\D*([\d.]+)", line, re.IGNORECASE)
    if not found:
        return line
    return f"{found[1].capitalize()} {found[2]}" if found[1] else f"{found[4]}"


def _flush_ms(folder: Path) -> float:
    """Return how long (ms) the disk takes to flush a small write, as a store with `appendfsync always` does."""
    times: list[float] = []
    flush = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    path = folder / "flushed"
    with path.open("wb", buffering=0) as file:
        for _ in range(MEASURED_FLUSHES):
            file.write(b"x" * 200)
            started = time.perf_counter()
            flush(file.fileno())
            times.append(time.perf_counter() - started)
    path.unlink()
    return median(times) * 1000
