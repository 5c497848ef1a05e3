"""Messages on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress


def printable(text: str) -> str:
    """Escape unprintable characters, so that text from servers and callers cannot control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def notify(text: str) -> None:
    """Print one line to standard error, after all that was printed to standard output before."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    print(f"later: {printable(' '.join(text.split()))}", file=sys.stderr)
