"""Processes of later's, as a user starts them: each one's log goes to a file and can be read while it runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from tests.system.api_client import get
from tests.system.waiting import wait_until

HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "later")
TERMINAL = (sys.executable, str(HERE / "terminal.py"))
"""The same, in the foreground of the terminal named first."""
LISTEN_OPTIONS = {"up": "--listen", "serve": "--listen", "worker": "--health"}

_numbers = itertools.count()


class Daemon:
    """A running `later`."""

    def __init__(self, process: Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        return str(self.wait_for_event("listening")["url"])

    def events(self) -> list[dict[str, Any]]:
        """What it has logged: whole lines, without what a failure says at the end."""
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        """The first such event; waits for it."""

        def look() -> dict[str, Any] | None:
            found = next((line for line in self.events() if line["event"] == event), None)
            assert found or self.process.poll() is None, f"it ended: {self.log.read_text()}"
            return found

        return wait_until(look, f"{event!r} in {self.log.name}") or {}

    def is_ready(self) -> bool:
        return get(self.url, "/readyz").status == 200

    def children(self) -> list[int]:
        """The ids of its processes, where it is the supervisor of several."""
        with suppress(FileNotFoundError):
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            return [int(pid) for pid in found if b"later.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return []

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """To it first, or it would start those again that end."""
        if self.process.poll() is None:
            for pid in (self.pid, *self.children()):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """`kill -9`, all its processes too; an embedded store lives on."""
        self.send_all(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.send(signal.SIGTERM)
        return self.wait_for_exit()

    def wait_for_exit(self, within: float = 40) -> int:
        """Wait until it has ended; the exit status."""
        return self.process.wait(within)


def run_daemon(command: str, folder: Path, *options: str, **started: Any) -> AbstractContextManager[Daemon]:
    """`later up`, `serve` or `worker` on a free port."""
    return run_process(command, folder, LISTEN_OPTIONS[command], "127.0.0.1:0", *options, **started)


@contextmanager
def run_process(
    command: str,
    folder: Path,
    *options: str,
    by: Sequence[str] = COMMAND,
    env: Mapping[str, str] | None = None,
    **started: Any,
) -> Iterator[Daemon]:
    """`later up`, `serve` or `worker`, listening where it does by default; killed at the end, if it has not ended then.

    `env` is what its environment has beside ours.

    Whatever the test does to it, it must not log an error: that is a fault of our own.
    """
    log = folder / f"{next(_numbers):03d}-{command}.log"
    line = [*by, command, "--log-format", "json", *options]
    with log.open("wb") as file:
        process = Popen(
            line, stdin=DEVNULL, stdout=DEVNULL, stderr=file, env={**environment(), **(env or {})}, **started
        )
    later = Daemon(process, log)
    try:
        yield later
    finally:
        later.kill()
    faults = [event for event in later.events() if event["level"] in ("error", "critical")]
    assert not faults, faults


@contextmanager
def run_up(folder: Path, data: Path, *options: str, **started: Any) -> Iterator[Daemon]:
    """`later up` on the embedded store in `data`, listening."""
    with run_daemon("up", folder, "--data", str(data), *options, **started) as later:
        _ = later.url
        yield later


def run_command(*arguments: str, within: float = 60, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command to its end: its exit status, what it printed and what it said."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=within,
        env=environment(),
        check=False,
    )


def environment() -> dict[str, str]:
    """Ours, without what would configure later; but how many processes it has is the test's to say.

    A disk that all tests share may keep a store that is well for longer than the default.
    """
    kept = {"LATER_PROCESSES"}
    ours = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("LATER_")}
    return ours | {"LATER_STORE_TIMEOUT": "10"}


def shards_option(processes: int) -> tuple[str, str]:
    """The option: one for a daemon that is alone, many for one of several processes."""
    return "--shards", "1" if processes == 1 else "16"


def simulated_fault(oddity: str) -> dict[str, str]:
    """The environment on a machine that is not quite right: see there."""
    return {"PYTHONPATH": str(HERE / "simulated_faults"), "SIMULATED_FAULT": oddity}


def embedded_store_pid(data: Path) -> int | None:
    """The process id of the embedded store that listens in `data`, by the kernel's word."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(1)
        ours.connect(str(data / "store.sock"))
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)
    return None


def kill_orphaned_store(data: Path) -> None:
    """End the embedded store that listens in `data`, if any does."""
    pid = embedded_store_pid(data)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: embedded_store_pid(data) is None, "the store ends")
