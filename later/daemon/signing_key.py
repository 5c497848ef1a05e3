"""The signing key of a command: where its masters are, and what they are."""

from __future__ import annotations

import re
from pathlib import Path

from later.config import Config
from later.core.errors import ConfigError
from later.core.signing import MASTER_PREFIX, Master, parse_masters
from later.embedded.key_file import signing_key_file
from later.regular_file import read_regular_file

_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
"""The form of a key without its prefix: it must not be taken for a path, which is shown if there is no such file."""


def read_masters(config: Config) -> tuple[Master, ...]:
    """Return the masters of the signing key; empty if there is none. Blocks.

    Without --signing-key, an embedded store has its own.

    Raises:
        ConfigError: the key cannot be read.
    """
    given = config.signing_key
    if given is not None and (MASTER_PREFIX in given or _KEY.search(given)):
        return _parse(given, "LATER_SIGNING_KEY")
    if given is None and not (config.data_given or config.runs_store):
        return ()
    file = signing_key_file(config.data) if given is None else Path(given)
    try:
        text = read_regular_file(file).decode("ascii")
    except FileNotFoundError:
        if given is None and not file.is_symlink():  # `up` makes it, unless a link says where it should be
            return ()
        raise ConfigError(f"--signing-key {file}: no such file; `later secrets init` prints a new key") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"--signing-key {file}: cannot be read: {reason}") from None
    return _parse(text, f"--signing-key {file}")


def format_masters(masters: tuple[Master, ...]) -> str | None:
    """Return the masters as one text, which `read_masters` reads from the configuration; None for none."""
    return "\n".join(master.text for master in masters) or None


def _parse(text: str, origin: str) -> tuple[Master, ...]:
    try:
        return parse_masters(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: expected {error}") from None
