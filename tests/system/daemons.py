"""Processes of later, started as a user does. Each logs to a file that tests read while it runs."""

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

from tests.system import canaries
from tests.system.api_client import get
from tests.system.waiting import wait_until

HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "later")
TERMINAL = (sys.executable, str(HERE / "terminal.py"))
"""The command in the foreground of a terminal; the terminal's name must follow."""
LISTEN_OPTIONS = {"up": "--listen", "dev": "--listen", "serve": "--listen", "worker": "--health"}

_numbers = itertools.count()


class Daemon:
    """A running `later up`, `serve` or `worker`."""

    def __init__(self, process: Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        """Wait until the daemon listens and return its URL."""
        return str(self.wait_for_event("listening")["url"])

    def events(self) -> list[dict[str, Any]]:
        """Return the events logged so far: whole lines, without the final line of a failure."""
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        """Wait for an event in the log and return the first of that name."""

        def find() -> dict[str, Any] | None:
            found = next((line for line in self.events() if line["event"] == event), None)
            assert found or self.process.poll() is None, f"it ended: {self.log.read_text()}"
            return found

        return wait_until(find, f"{event!r} in {self.log.name}") or {}

    def is_ready(self) -> bool:
        return get(self.url, "/readyz").status == 200

    def children(self) -> list[int]:
        """Return the process ids of its child processes; empty for a single process."""
        with suppress(FileNotFoundError):
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            return [int(pid) for pid in found if b"later.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return []

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the daemon and its children; the daemon first, because otherwise it restarts them."""
        if self.process.poll() is None:
            for pid in (self.pid, *self.children()):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """Kill the daemon and its children with SIGKILL. An embedded store lives on."""
        self.send_all(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM, wait for the exit and return its status."""
        self.send(signal.SIGTERM)
        return self.wait_for_exit()

    def wait_for_exit(self, within_s: float = 40) -> int:
        """Wait for the exit and return its status."""
        return self.process.wait(within_s)


def run_daemon(command: str, folder: Path, *options: str, **popen_options: Any) -> AbstractContextManager[Daemon]:
    """Run `later up`, `serve` or `worker` on a free port."""
    return run_daemon_as_given(command, folder, LISTEN_OPTIONS[command], "127.0.0.1:0", *options, **popen_options)


@contextmanager
def run_daemon_as_given(
    command: str,
    folder: Path,
    *options: str,
    program: Sequence[str] = COMMAND,
    env: Mapping[str, str] | None = None,
    **popen_options: Any,
) -> Iterator[Daemon]:
    """Run `later up`, `serve` or `worker` at the address that the options name, if any; kill it at the end.

    `program` is the command line before the arguments; `env` is added to the environment. The test fails if the daemon
    logs an error, whatever the test does to it.
    """
    log = folder / f"{next(_numbers):03d}-{command}.log"
    command_line = [*program, command, "--log-format", "json", *options]
    with log.open("wb") as file:
        process = Popen(
            command_line,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=file,
            env={**environment(), **(env or {})},
            **popen_options,
        )
    later = Daemon(process, log)
    try:
        yield later
    finally:
        canaries.check_arguments()
        if command == "dev" and process.poll() is None:  # killed, it would leave its store running until the next one
            with suppress(subprocess.TimeoutExpired):
                later.stop()
        later.kill()
    errors = [event for event in later.events() if event["level"] in ("error", "critical")]
    assert not errors, errors


@contextmanager
def run_up(folder: Path, data: Path, *options: str, **popen_options: Any) -> Iterator[Daemon]:
    """Run `later up` on the embedded store in `data` and wait until it listens."""
    with run_daemon("up", folder, "--data", str(data), *options, **popen_options) as later:
        _ = later.url
        yield later


def run_command(*arguments: str, within_s: float = 60, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit status and output."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=within_s,
        env=environment(),
        check=False,
    )


def environment() -> dict[str, str]:
    """Return our environment without later's variables, except the number of processes.

    The store timeout is longer than the default because the tests share a disk. The receivers are on loopback.
    Commands send a canary as their key.
    """
    kept = {"LATER_PROCESSES"}
    ours = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("LATER_")}
    return ours | {"LATER_STORE_TIMEOUT": "10", "LATER_GUARD_ALLOW": "127.0.0.0/8,::1", "LATER_KEY": canaries.KEY}


def shards_option(processes: int) -> tuple[str, str]:
    """Return the option --shards: 1 for a single process, 16 for several."""
    return "--shards", "1" if processes == 1 else "16"


def simulated_fault(fault: str) -> dict[str, str]:
    """Return the environment of a machine with a fault: see simulated_faults/sitecustomize.py."""
    return {"PYTHONPATH": str(HERE / "simulated_faults"), "SIMULATED_FAULT": fault}


def embedded_store_pid(data: Path) -> int | None:
    """Return the process id of the embedded store that listens in `data`, from the kernel; None if there is none."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(1)
        ours.connect(str(data / "store.sock"))
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)
    return None


def kill_orphaned_store(data: Path) -> None:
    """Kill the embedded store that listens in `data`, if there is one."""
    pid = embedded_store_pid(data)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: embedded_store_pid(data) is None, "the store exits")


def secret_of(data: Path, *options: str) -> str:
    """Return the signing secret of a daemon on this data; `options` are those of `secrets show`."""
    done = run_command("secrets", "show", "--data", str(data), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
