"""The syntax of Spark's paths, which are URLs when it writes and glob patterns when it reads.

This module does not import Spark, so that a command can check a name before Spark starts.
"""

from __future__ import annotations

import re

from later.core.errors import Refused

_SCHEME = re.compile(r"[^/:]*:")
_HOST = re.compile(r"//[^/]*")
_GLOB_CHARACTERS = re.compile(r"[\[\]{}*?\\]")


def check_output_path(name: str) -> str:
    """Return the name if Spark can read again what it writes there.

    Raises:
        Refused: The name is empty or a whole file system, Spark would ignore it, or its colon needs a ./ before it.
    """
    scheme = _SCHEME.match(name)
    path = name if scheme is None else name[scheme.end() :]
    if scheme and not path.startswith("/"):
        raise Refused(f"Spark takes the part before a colon for a file system; a local directory is ./{name}")
    host = _HOST.match(path)
    last = path[host.end() if host else 0 :].rstrip("/").rpartition("/")[2]
    if not last:
        raise Refused("expected the name of a directory")
    if last.startswith(("_", ".")):
        raise Refused(f"Spark ignores names that begin with _ or ., such as {last}: choose another name")
    return name


def escape_glob(name: str) -> str:
    """Return the glob pattern that matches only this name."""
    return _GLOB_CHARACTERS.sub(r"\\\g<0>", name)
