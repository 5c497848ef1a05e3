"""The API key of a caller, from a file or from the environment.

No option holds the key itself: every user of a machine can read the command lines of its processes, and Spark shows the
options of data sources in plans and logs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from later.core.api_keys import check_key_text, has_key_form
from later.core.errors import ConfigError
from later.regular_file import read_regular_file

KEY = "LATER_KEY"
KEY_FILE = "LATER_KEY_FILE"


def read_key(file: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the key in a file, otherwise that of the environment, which may name a file; None for no key.

    Raises:
        ConfigError: a file cannot be read, what was found is no key or mistyped, or the environment has two. The text
            never shows a key.
    """
    if file is not None:
        return _read_file(file, "key file")
    key, file = environ.get(KEY) or None, environ.get(KEY_FILE) or None
    if key is not None and file is not None:
        raise ConfigError(f"{KEY} and {KEY_FILE}: expected one of them, got both")
    if file is not None:
        return _read_file(file, KEY_FILE)
    return None if key is None else _check(key, KEY)


def is_readable_by_others(file: str) -> bool:
    """Return True if a file of this user can be read or written by others, as ssh judges it.

    Files of other users are what a container or an orchestrator mounts: their modes are not this user's to change.
    """
    try:
        status = Path(file).stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):  # on Windows, modes say nothing
        return False
    return status.st_uid == os.getuid() and bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def _read_file(file: str, source: str) -> str:
    """Return the key on a file's first line."""
    if has_key_form(file.strip()):
        raise ConfigError(f"{source}: expected the name of a file, got a key: put it into a file, or into {KEY}")
    try:
        line = read_regular_file(file).decode().partition("\n")[0]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        if isinstance(error, OSError) and error.errno == errno.EINVAL:
            why = f"{why}; {KEY} takes what a pipe would say"
        raise ConfigError(f"{source} {file}: it cannot be read: {why}") from None
    return _check(line, f"{source} {file}")


def _check(text: str, source: str) -> str:
    try:
        return check_key_text(text)
    except ValueError as error:
        raise ConfigError(f"{source}: expected {error}") from None
