"""The signing key of an embedded store: a file in its data directory, made at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from later.core.signing import make_master
from later.embedded.paths import wrap_os_errors


def signing_key_file(data: Path) -> Path:
    return data / "signing.key"


def make_signing_key(data: Path) -> bool:
    """Make the signing key of a data directory, and return True, unless there is one.

    Of several calls at a time, one makes it. The file appears complete, and nobody else can read it.

    Raises:
        EmbeddedError: the file cannot be written.
    """
    file = signing_key_file(data)
    if file.exists():
        return False
    temporary = data / f"temp-signing-{secrets.token_hex(8)}"
    with wrap_os_errors(data):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as opened:
                opened.write(f"{make_master().text}\n")
                opened.flush()
                os.fsync(descriptor)
            try:
                os.link(temporary, file)  # unlike a rename, it replaces nothing
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links; its lock keeps other daemons out of the directory
                temporary.rename(file)
            _sync_directory(data)  # the tasks outlive a power cut, too
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _sync_directory(data: Path) -> None:
    descriptor = os.open(data, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
