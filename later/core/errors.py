"""The error tree: an error says whose fault it is."""

from __future__ import annotations


class LaterError(Exception):
    """Root of every error that later raises on purpose; its text is one line fit for a person."""


class Refused(LaterError):
    """The caller's fault: what was asked is not allowed, or not understood.

    `field` names the part of the request that is wrong, None where it is the request as a whole.
    """

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


class TooLarge(Refused):
    """The caller's fault: the request is larger than this server takes."""


class NotFound(LaterError):
    """Nobody's fault: there is no such task (any more).

    `ended` is true while the id is still remembered: the task was delivered, or swept from `dead`.
    """

    def __init__(self, task_id: str, *, ended: bool = False) -> None:
        super().__init__(f"no task has the id {task_id!r}" + (": it has ended" if ended else ""))
        self.task_id = task_id
        self.ended = ended


class Conflict(LaterError):
    """Nobody's fault: it cannot be done as things are now; the text says why."""


class StoreDown(LaterError):
    """The world's fault: the store cannot be reached, or does not take this command now.

    The text is the reason. Whether a write that raised this was made is not known.
    """


class StoreMismatch(LaterError):
    """The operator's fault: this store cannot serve this configuration (the text says why)."""


class StoreFault(LaterError):
    """Our own fault: the store answered something that it never should."""


class ConfigError(LaterError):
    """The operator's fault: an option's value is wrong; the text names option and value."""


class UnreadableBody(LaterError):
    """A stored task's body cannot be decoded."""
