"""Files of a data directory, and the error that says why it cannot hold a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from later.core.errors import LaterError

MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""Size of `sun_path` without its final NUL; see unix(7)."""


class EmbeddedError(LaterError):
    """The embedded store cannot run; the text says what the operator can do."""


class DirectoryInUse(EmbeddedError):
    """Another process runs the store of this directory."""


def socket_url(data: Path) -> str:
    """Return the URL of the data directory's server, `unix:///…/store.sock`, percent-encoded."""
    return "unix://" + quote(str(socket_path(data)))


def socket_path(data: Path) -> Path:
    return data.absolute() / "store.sock"


def log_file(data: Path) -> Path:
    return data / "store.log"


def holds_store(data: Path) -> bool:
    """Return True if a store was ever started in a directory: a mistyped one must not pass for an empty store."""
    return (data / "appendonlydir").exists() or socket_path(data).exists()


def prepare_directory(data: Path) -> None:
    """Create the data directory if it is missing. Raises EmbeddedError if it cannot hold a store."""
    length = len(os.fsencode(socket_path(data)))
    if length > MAX_SOCKET_PATH_BYTES:
        raise EmbeddedError(
            f"the socket path {socket_path(data)} has {length} bytes, but the operating system allows "
            f"{MAX_SOCKET_PATH_BYTES}; choose a --data with a shorter path"
        )
    if data.exists() and not data.is_dir():
        raise EmbeddedError(f"{data} is not a directory; choose another --data")
    data.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def wrap_os_errors(data: Path) -> Iterator[None]:
    """Raise any OSError of the block as an EmbeddedError."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(f"{data} cannot hold the store: {error}; fix that or choose another --data") from error
