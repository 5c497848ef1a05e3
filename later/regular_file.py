"""Reading of the small files that options name: keys, passwords and certificates."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_MIB = 4
"""The size of the longest file that is read: the certificates of all authorities that a machine trusts take a tenth."""

_WITHOUT_WAITING: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
"""The flags of the platform: Windows has the last one only."""


def read_regular_file(file: str | Path) -> bytes:
    """Return the content of a file, without waiting: a FIFO may have no writer, and a device no end.

    Most of these files are read more than once, which a FIFO does not allow either.

    Raises:
        OSError: it cannot be read, is no regular file, or is too long; `strerror` says which.
    """
    descriptor = os.open(file, os.O_RDONLY | _WITHOUT_WAITING)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file, which can be read again")
        with open(descriptor, "rb", closefd=False) as opened:
            content = opened.read(MAX_MIB * 1024 * 1024 + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_MIB * 1024 * 1024:
        raise OSError(errno.EFBIG, f"Longer than {MAX_MIB} MiB")
    return content
