"""Ownership of a data directory: two file locks that the operating system drops when their last holder exits.

So nothing left behind by a `kill -9` ever blocks a start:

- `lock` is on a descriptor that the server inherits: it is held while the owner or the server lives.
- `owner.lock` belongs to the owner alone: if it is free and `lock` is held, an orphaned server is running.

Two servers on one directory would lose acknowledged writes, so a server is started only by a holder of both locks.
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

from later.embedded.paths import DirectoryInUse, EmbeddedError, socket_path
from later.embedded.probe import read_info

log = structlog.get_logger("later.embedded")

STOP_TIMEOUT_S = 10.0
"""How long an orphaned server may take for its last flush before it is killed."""
POLL_S = 0.02


@contextmanager
def owner_lock(data: Path) -> Iterator[None]:
    """Hold owner.lock, with our process id in it for the next one to read. Raises DirectoryInUse if it is held."""
    descriptor = os.open(data / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)  # close-on-exec: see PEP 446
    try:
        if not _try_lock(descriptor):
            owner = os.pread(descriptor, 20, 0).decode().strip() or "unknown"
            raise DirectoryInUse(
                f"{data} is in use by another `later up` (pid {owner}); stop it or choose another --data"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


async def take_lock_from_orphan(data: Path, lock: int) -> None:
    """Take `lock`, and stop the server that holds it: we hold owner.lock, so that server has no owner.

    Raises:
        EmbeddedError: the holder does not exit.
    """
    if _try_lock(lock):
        return
    for signals in ((signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)):
        pid = await _find_orphan(data)
        if pid is not None:
            log.warning("stopping an orphaned store", pid=pid, signal=signals[0].name)
            with suppress(ProcessLookupError):
                for number in signals:
                    os.kill(pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while not _try_lock(lock):  # noqa: ASYNC110 - the release of a lock raises no event
                    await asyncio.sleep(POLL_S)
                return
    raise EmbeddedError(
        f"{data}/lock is held by a process that does not exit (`fuser {data}/lock` names it); "
        f"stop it or choose another --data"
    )


def _try_lock(descriptor: int) -> bool:
    """Return True if the descriptor holds its file's lock now; the lock lasts until its last copy is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _find_orphan(data: Path) -> int | None:
    """Return the id of the process that listens on our socket: unlike a pidfile's, that number is never reused.

    None if no process listens, or if the listener is in another process namespace: the kernel then says 0.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return (await read_info(data, "server")).get("process_id")
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        client.connect(str(socket_path(data)))  # the kernel answers for a server that hangs, too
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid or None
    return None
