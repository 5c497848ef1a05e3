"""Permissions of a data directory: its files hold contents and headers of tasks, so other users must not read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from later.embedded.paths import EmbeddedError

log = structlog.get_logger("later.embedded")

OTHERS = 0o077
OTHERS_WRITE = 0o022
PRIVATE_UMASK = 0o077

_NAMES = (
    "store.sock", "store.pid", "store.log", "lock", "owner.lock", "appendonlydir", "dump.rdb", "signing.key",
    "lost+found",
)  # fmt: skip
"""Names of the files in a data directory, also after a BGSAVE, or in the root of a file system."""
_TEMPORARY_PREFIX = "temp-"
"""The beginning of the name of a file that the server writes and then renames."""


def secure_directory(data: Path) -> None:
    """Close a directory of ours to other users. It is ours if this user owns it and nothing but the store is in it.

    A directory that holds other files, too, keeps its mode if only this user can write there: the store's files are
    private by themselves.

    Raises:
        EmbeddedError: another user could read or replace the store's files there.
    """
    status = data.stat()
    if status.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{data} belongs to another user (uid {status.st_uid}), who could read and replace the tasks in it; "
            f"choose a directory of your own, such as --data {data / 'later-data'}, or change its owner (`chown`)"
        )
    mode = stat.S_IMODE(status.st_mode)
    if not mode & OTHERS:
        return
    foreign = sorted(name for name in os.listdir(data) if not _is_of_the_store(data / name))
    if not foreign:
        data.chmod(mode & ~OTHERS)
        log.info("data directory closed to other users", data=str(data), mode_before=f"{mode:04o}")
    elif mode & OTHERS_WRITE:
        raise EmbeddedError(
            f"other users can write into {data} (mode {mode:04o}), and it holds other files than the store's "
            f"({foreign[0]}); choose a directory of its own, such as --data {data / 'later-data'}"
        )


def secure_files(data: Path) -> None:
    """Close the store's files to other users: an older version left them open. Call it with both locks held."""
    for name in _NAMES:
        _close_to_others(data / name)
    folder = data / "appendonlydir"
    if folder.is_dir():
        for file in folder.iterdir():
            _close_to_others(file)


def _is_of_the_store(path: Path) -> bool:
    """Return True if the store made this file; one of another user is foreign, whatever its name."""
    if path.name not in _NAMES and not path.name.startswith(_TEMPORARY_PREFIX):
        return False
    try:
        return path.lstat().st_uid == os.geteuid() or path.name == "lost+found"
    except FileNotFoundError:  # a server that runs there has just renamed it
        return True


def _close_to_others(path: Path) -> None:
    """Remove the permissions of other users, if this user owns the file and there is one."""
    if path.exists() and path.lstat().st_uid == os.geteuid():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)
