"""Data directories that last as long as their daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from later.embedded.locks import owner_lock, take_lock_from_orphan
from later.embedded.paths import EmbeddedError

PREFIX = "later-dev-"
STARTING_S = 60.0
"""A younger directory without an owner may be that of a daemon which is about to take it."""


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a data directory for the block. First remove those of daemons that were killed, and end their servers."""
    asyncio.run(_remove_abandoned(list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _remove_abandoned(directories: Iterable[Path]) -> None:
    for directory in directories:
        with suppress(OSError, EmbeddedError):
            state = directory.lstat()
            is_ours = state.st_uid == os.geteuid() and (directory / "owner.lock").exists()
            if not is_ours or time.time() - state.st_mtime < STARTING_S:
                continue
            with owner_lock(directory):
                lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    await take_lock_from_orphan(directory, lock)
                    shutil.rmtree(directory)
                finally:
                    os.close(lock)
