"""What a directory may be called that Spark is to write, and to read again: names are URLs to it, and patterns."""

from __future__ import annotations

import re

from later.core.errors import Refused

_SCHEME = re.compile(r"[^/:]*:")
_HOST = re.compile(r"//[^/]*")
_OF_PATTERNS = re.compile(r"[\[\]{}*?\\]")


def check_output_path(name: str) -> str:
    """The name, if what is written there can be read.

    Raises:
        Refused: it is none, a file system's whole tree, or hidden from Spark; or its colon has no ./ before it.
    """
    scheme = _SCHEME.match(name)
    path = name if scheme is None else name[scheme.end() :]
    if scheme and not path.startswith("/"):
        raise Refused(f"what is before a colon is a file system's name to Spark; a directory here is ./{name}")
    host = _HOST.match(path)
    last = path[host.end() if host else 0 :].rstrip("/").rpartition("/")[2]
    if not last:
        raise Refused("expected the name of a directory")
    if last.startswith(("_", ".")):
        raise Refused(f"to Spark {last} is hidden, as all that begins with _ or .: choose another name")
    return name


def escape_glob(name: str) -> str:
    """The pattern that this name alone fits."""
    return _OF_PATTERNS.sub(r"\\\g<0>", name)
