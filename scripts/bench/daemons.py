"""The measured programs: later's daemons and the bare handlers they are compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from scripts.bench.environment import Environment
from scripts.bench.processes import (
    Process,
    count_listeners,
    free_port,
    module_command,
    run_process,
    tree_cpu_s,
    wait_until,
)
from scripts.bench.stores import BenchStore


class Daemon(NamedTuple):
    """One or more processes with the same work. `url` is where they answer, empty if they do not."""

    url: str
    processes: list[Process]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def cpu_s(self) -> float:
        return sum(tree_cpu_s(pid) for pid in self.pids)

    def check(self) -> None:
        for process in self.processes:
            process.check()


@contextmanager
def run_api(environment: Environment, command: str, store: BenchStore, processes: int = 1) -> Iterator[Daemon]:
    """Run `later up` or `later serve` on a store; it listens."""
    port = free_port()
    listen = ["--listen", f"127.0.0.1:{port}"]
    with _run_later(environment, command, store, processes, *listen) as running:
        wait_until(lambda: count_listeners(port) > 0, f"later {command} listens", running)
        yield Daemon(f"http://127.0.0.1:{port}", [running])


@contextmanager
def run_worker(environment: Environment, store: BenchStore, processes: int = 1) -> Iterator[Daemon]:
    """Run `later worker` on a store."""
    with _run_later(environment, "worker", store, processes, "--health", "off") as running:
        _wait_for_event("store found", running)
        yield Daemon("", [running])


@contextmanager
def _run_later(
    environment: Environment, command: str, store: BenchStore, processes: int, *options: str
) -> Iterator[Process]:
    line = [sys.executable, "-m", "later", command, "--redis", store.url, "--log-format", "json", *options]
    if processes > 1:
        line += ["--processes", str(processes)]
    with environment.temporary_folder() as folder, run_process(line, folder, f"later-{command}") as running:
        if processes > 1:
            _wait_for_event(
                "all processes are up", running
            )  # the kernel spreads connections over the processes that listen when they are made
        yield running


def _wait_for_event(event: str, running: Process) -> None:
    wait_until(lambda: f'"{event}"' in running.log.read_text(), f"{running.log.stem} says {event!r}", running)


@contextmanager
def run_bare_handlers(environment: Environment, answer: str, processes: int = 1) -> Iterator[Daemon]:
    """Run handlers that only read and answer, all on one port."""
    port = free_port()
    with environment.temporary_folder() as folder, ExitStack() as running:
        started = [
            running.enter_context(
                run_process(module_command("bare_handler", str(port), answer), folder, f"bare-{number}")
            )
            for number in range(processes)
        ]
        wait_until(lambda: count_listeners(port) >= processes, f"{processes} bare handlers listen", started[0])
        yield Daemon(f"http://127.0.0.1:{port}", started)
