"""How commands speak to whoever runs them: one line at a time."""

from __future__ import annotations

import sys
from contextlib import suppress


def one_line(text: str) -> str:
    """The text, fit for a terminal: what servers and callers wrote must not move its cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(text: str) -> None:
    """Tell on standard error, in one line; after what was printed before, where both go to the same place."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    print(f"later: {one_line(' '.join(text.split()))}", file=sys.stderr)
