"""Who owns a data directory: two locks of the kind that the operating system drops when its last holder dies.

So nothing left behind by a `kill -9` ever blocks a start:

- `lock` is held on a descriptor that the store inherits: it is taken while the owner or the store lives.
- `owner.lock` is the owner's alone: where it is free and `lock` is taken, a store lives that lost its owner.

Two stores on one directory would lose what they acknowledged; whoever starts one has taken both locks first.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from later.embedded.paths import EmbeddedError, socket_path
from later.embedded.resp import info

log = structlog.get_logger("later.embedded")

PATIENCE_S = 10.0  # how long a store that lost its owner may take over its last flush before it is killed


@contextmanager
def owner_lock(data: Path) -> Iterator[None]:
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
        async with asyncio.timeout(PATIENCE_S):
            while not _locked(descriptor):  # noqa: ASYNC110 - a lock that falls free raises no event
                await asyncio.sleep(0.02)
            return True
    return False


async def take_lock_from_orphan(data: Path, lock: int) -> None:
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
    told = (await info(data, b"server")).get("process_id", "")
    return int(told) if told.isdecimal() else None


def _listener(data: Path) -> int | None:
    """None also where the listener is in another process namespace (then the kernel says 0)."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as ours:
        ours.connect(str(socket_path(data)))
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid or None
    return None
