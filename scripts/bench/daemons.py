"""What is measured: later's own daemons, and the bare handlers that they are measured beside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from scripts.bench.environment import Setting
from scripts.bench.processes import (
    Running,
    a_process,
    eventually,
    family_cpu_s,
    free_port,
    listeners,
    python,
)
from scripts.bench.stores import OwnStore


class Daemon(NamedTuple):
    """Processes that do one thing together; `url` is where they answer, "" where nowhere."""

    url: str
    running: list[Running]

    @property
    def pids(self) -> list[int]:
        return [one.pid for one in self.running]

    def cpu_s(self) -> float:
        return sum(family_cpu_s(pid) for pid in self.pids)

    def check(self) -> None:
        for one in self.running:
            one.check()


@contextmanager
def an_api(setting: Setting, command: str, store: OwnStore, processes: int = 1) -> Iterator[Daemon]:
    """`later up` or `later serve` on this store, listening."""
    port = free_port()
    listen = ["--listen", f"127.0.0.1:{port}"]
    with _later(setting, command, store, processes, *listen) as running:
        eventually(lambda: listeners(port) > 0, f"later {command} listens", running)
        yield Daemon(f"http://127.0.0.1:{port}", [running])


@contextmanager
def a_worker(setting: Setting, store: OwnStore, processes: int = 1) -> Iterator[Daemon]:
    """`later worker` on this store."""
    with _later(setting, "worker", store, processes, "--health", "off") as running:
        _await_event("store found", running)
        yield Daemon("", [running])


@contextmanager
def _later(setting: Setting, command: str, store: OwnStore, processes: int, *options: str) -> Iterator[Running]:
    line = [sys.executable, "-m", "later", command, "--redis", store.url, "--log-format", "json", *options]
    if processes > 1:
        line += ["--processes", str(processes)]
    with setting.a_folder() as folder, a_process(line, folder, f"later-{command}") as running:
        if processes > 1:
            _await_event("all processes are up", running)  # connections go to those that listen when they are made
        yield running


def _await_event(event: str, running: Running) -> None:
    eventually(lambda: f'"{event}"' in running.log.read_text(), f"{running.log.stem} says {event!r}", running)


@contextmanager
def bare_handlers(setting: Setting, answer: str, processes: int = 1) -> Iterator[Daemon]:
    """Handlers that do nothing but read and answer, all on one port."""
    port = free_port()
    with setting.a_folder() as folder, ExitStack() as running:
        started = [
            running.enter_context(a_process(python("bare_handler", str(port), answer), folder, f"bare-{number}"))
            for number in range(processes)
        ]
        eventually(lambda: listeners(port) >= processes, f"{processes} bare handlers listen", started[0])
        yield Daemon(f"http://127.0.0.1:{port}", started)
