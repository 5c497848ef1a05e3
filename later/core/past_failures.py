"""The failures of a task before its last one, which are kept with that one: a few, with short messages."""

from __future__ import annotations

import msgspec

MAX_FAILURES = 5
"""The most failures that are kept of a task, with the last one. `--keep-failures` may say fewer."""
MAX_PAST_MESSAGE_CHARS = 80


class PastFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that was not done, and that another failure followed. `at` is in ms.

    `took_ms` is how long the call took; None if there was none, or if that is not known.
    """

    attempt: int
    at: int
    reason: str
    status: int | None
    took_ms: int | None
    message: str

    def shortened(self) -> PastFailure:
        """Return this failure with no more of its message than is kept of one in the past."""
        if len(self.message) <= MAX_PAST_MESSAGE_CHARS:
            return self
        return msgspec.structs.replace(self, message=f"{self.message[: MAX_PAST_MESSAGE_CHARS - 1]}…")


PastFailures = tuple[PastFailure, ...]
"""Failures, the oldest first."""


def keep_last(failures: PastFailures, keep: int) -> PastFailures:
    """Return those of the past failures that are kept if `keep` are kept with the last one: short, the newest."""
    return tuple([failure.shortened() for failure in failures[-(keep - 1) :]]) if keep > 1 else ()
