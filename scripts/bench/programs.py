"""The measured programs: later's daemons and the bare handlers they are compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
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


class Program(NamedTuple):
    """A measured program: one or more processes with the same work. `url` is empty if they serve no HTTP."""

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
def run_api(
    environment: Environment,
    command: str,
    store: BenchStore,
    processes: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Run `later up` or `later serve` on a store and wait until it listens."""
    port = free_port()
    listen = ["--listen", f"127.0.0.1:{port}"]
    with _run_later(environment, command, store, processes, *listen, variables=variables) as process:
        wait_until(lambda: count_listeners(port) > 0, f"later {command} listens", process)
        yield Program(f"http://127.0.0.1:{port}", [process])


@contextmanager
def run_worker(
    environment: Environment, store: BenchStore, processes: int = 1, variables: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Run `later worker` on a store and wait until it has found the store. It ends at once, whatever it is calling."""
    options = ("--health", "off", "--drain", "0s")
    with _run_later(environment, "worker", store, processes, *options, variables=variables) as process:
        _wait_for_event("store found", process)
        yield Program("", [process])


@contextmanager
def _run_later(
    environment: Environment,
    command: str,
    store: BenchStore,
    processes: int,
    *options: str,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    command_line = [sys.executable, "-m", "later", command, "--redis", store.url, "--log-format", "json", *options]
    command_line += ["--guard-allow", "127.0.0.0/8,::1"]  # where the receivers are
    if processes > 1:
        command_line += ["--processes", str(processes)]
    with (
        environment.temporary_folder() as folder,
        run_process(command_line, folder, f"later-{command}", variables) as process,
    ):
        if processes > 1:
            # The kernel spreads connections over the processes that listen when the connections are made.
            _wait_for_event("all processes are up", process)
        yield process


def _wait_for_event(event: str, process: Process) -> None:
    wait_until(lambda: f'"{event}"' in process.log.read_text(), f"{process.log.stem} logs {event!r}", process)


@contextmanager
def run_bare_handlers(environment: Environment, *answers: str, processes: int = 1) -> Iterator[Program]:
    """Run processes with the bare handlers of these calls, all on one port, and wait until they listen."""
    port = free_port()
    with environment.temporary_folder() as folder, ExitStack() as stack:
        command_line = module_command("bare_handler", str(port), *answers)
        handlers = [
            stack.enter_context(run_process(command_line, folder, f"bare-{number}")) for number in range(processes)
        ]
        wait_until(lambda: count_listeners(port) >= processes, f"{processes} bare handlers listen", handlers[0])
        yield Program(f"http://127.0.0.1:{port}", handlers)
