"""Where in the data directory the store keeps what, and what is wrong when it cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from later.core.errors import LaterError

_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103  # sun_path, less its final NUL: see unix(7)


class EmbeddedError(LaterError):
    """The operator's fault, or the machine's: the embedded store cannot run; the text says what to do."""


def socket_url(data: Path) -> str:
    """Where the data directory's store listens while it runs: `unix:///…/store.sock`, percent-encoded."""
    return "unix://" + quote(str(socket_path(data)))


def socket_path(data: Path) -> Path:
    return data.absolute() / "store.sock"


def log_file(data: Path) -> Path:
    return data / "store.log"


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def prepare(data: Path) -> None:
    length = len(os.fsencode(socket_path(data)))
    if length > _SOCKET_PATH_BYTES:
        raise EmbeddedError(
            f"the path of the store's socket, {socket_path(data)}, has {length} bytes; the operating system "
            f"takes {_SOCKET_PATH_BYTES}: choose a --data with a shorter path"
        )
    if data.exists() and not data.is_dir():
        raise EmbeddedError(f"{data} is not a directory; choose another --data")
    data.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def wrap_os_errors(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{data} cannot hold the store: {error}"
        raise EmbeddedError(f"{what}; mend that or choose another --data") from error
