"""The exceptions by which a handler says what is to become of its task."""

from __future__ import annotations

from abc import abstractmethod

from later.core.durations import Seconds, to_seconds
from later.core.retry import Outcome, OutcomeKind
from later.core.validation import to_milliseconds


class ControlException(Exception):
    """The base of the exceptions that a handler raises on purpose. Dependencies and logs do not take it for an error.

    `reason` is text for people, of which 200 characters are kept: `/query` and the lists of dead tasks show it.

    Raises:
        Refused: `after` is a text that is no duration.
    """

    def __init__(self, reason: str = "", after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # a handler may have given the error itself
        self.after_ms = None if after is None else to_milliseconds(max(to_seconds("after", after), 0))

    @abstractmethod
    def to_outcome(self) -> Outcome:
        """Return the outcome of the attempt."""


class Retry(ControlException):
    """The attempt failed: it costs a retry. The next one comes after `after`, or else after the topic's backoff.

    Raises:
        Refused: `after` is a text that is no duration.
    """

    def to_outcome(self) -> Outcome:
        message = self.reason or "retry"
        return Outcome(kind=OutcomeKind.FAILED, reason="retry", message=message, later_after_ms=self.after_ms)


class Busy(ControlException):
    """Not now: this task, and no other, comes again after `after`, or else after 10 s. It costs no retry.

    Raises:
        Refused: `after` is a text that is no duration.
    """

    def to_outcome(self) -> Outcome:
        message = self.reason or "busy"
        return Outcome(kind=OutcomeKind.BUSY, reason="busy", message=message, later_after_ms=self.after_ms)


class Hold(ControlException):
    """Not now, and no other task of this topic within `after`: a third party's rate limit. It costs no retry.

    A consumer can hold only the task that it has: there, it is the same as Busy.

    Raises:
        Refused: `after` is a text that is no duration.
    """

    def __init__(self, after: Seconds, reason: str = "") -> None:
        super().__init__(reason, after)

    def to_outcome(self) -> Outcome:
        message = self.reason or "hold"
        return Outcome(kind=OutcomeKind.BUSY, reason="hold", message=message, retry_after_ms=self.after_ms)


class Dead(ControlException):
    """Never: the task is dead at once, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def to_outcome(self) -> Outcome:
        return Outcome(kind=OutcomeKind.GONE, reason="dead", message=self.reason)


def find_control(error: BaseException) -> ControlException | None:
    """Return the control exception that an error is, or that is all of a group, as a `TaskGroup` raises it.

    A group of several exceptions is an ordinary error: no one of them may speak for the others.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ControlException) else None
