"""The errors of later: each class says whose fault it is. `later.errors` has those that the Python library raises."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy

STORE_FULL_REASON = "the store's memory is full (maxmemory)"
"""The reason of a `StoreDown`, and the beginning of each message about it, while the store accepts no more tasks."""


class LaterError(Exception):
    """The base of every error that later raises on purpose. Its text is one line for people."""


class Refused(LaterError):
    """The caller's fault: the request is not allowed, or not understood.

    `field` names the part of the request that is wrong; None stands for the request as a whole.
    """

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


class PolicyRefusal(Refused):
    """The caller's fault: the policy of the task's topic does not allow it.

    Another process may just have changed the policy. So before a caller is told, the policies are read anew.
    """


class TooLarge(Refused):
    """The caller's fault: the request is larger than this server accepts."""


class Unsupported(Refused):
    """The caller's fault: the request's body is encoded in a way that this server does not take."""


class UnknownExpectation(Unsupported):
    """The caller's fault: the request expects of the server what it cannot do."""


class SlowBody(Refused):
    """The caller's fault: the request's body does not arrive in time."""


class CrossSite(Refused):
    """The caller's fault: a web page of another site made a browser send this, or it is addressed to another host."""


class Denied(Refused):
    """The caller's fault: its key is missing or does not allow this. `reason` is the kind of denial, a metric's label.

    The reasons are `no_key`, `mistyped`, `unknown`, `ended`, `scope`, `namespace` and `rate`.
    """

    def __init__(self, detail: str, field: str | None = None, *, reason: str) -> None:
        super().__init__(detail, field)
        self.reason = reason


class NotKnown(Denied):
    """The caller's fault: it sent no key, or one that this server does not know, or that has ended."""


class NotAllowed(Denied):
    """The caller's fault: its key is not for this call, or not for this namespace."""


class TooOften(Denied):
    """The caller's fault: it sent more tasks than its key allows in a second. It may go on after `retry_after_s`."""

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail, reason="rate")
        self.retry_after_s = retry_after_s


class IdTaken(Refused):
    """The caller's fault: a UUID that it chose as an id is that of another namespace's task."""

    def __init__(self) -> None:
        super().__init__("id: this UUID is not for this namespace: choose another one", "id")


class InputUnreadable(LaterError):
    """The caller's fault: a file or a table does not exist, or cannot be read; the text says why."""


class NotFound(LaterError):
    """Nobody's fault: there is no such task, or no longer.

    `ended` is true while the id is remembered: the task was done, or it was dead and its retention is over.
    """

    def __init__(self, task_id: str, *, ended: bool = False, text: str | None = None) -> None:
        super().__init__(text or f"no task has the id {task_id!r}" + (": it has ended" if ended else ""))
        self.task_id = task_id
        self.ended = ended


class ScheduleNotFound(NotFound):
    """Nobody's fault: there is no such schedule, or no longer."""

    def __init__(self, id: str) -> None:
        super().__init__(id, text=f"no schedule has the id {id!r}")


class Conflict(LaterError):
    """Nobody's fault: the task's present state does not allow it; the text says why."""


class Exists(Conflict):
    """Nobody's fault: the id of a create that asked for a free one is in use, or remembered."""


class InFlight(Conflict):
    """Nobody's fault: the task is in flight, which does not allow it."""


class PushedTopic(Conflict):
    """Nobody's fault: the tasks of this topic are delivered to their callbacks, so nobody can claim them."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the tasks of the topic {topic!r} are delivered to their callbacks: its policy's deliver is push, not pull"
        )


class TooManySecrets(Conflict):
    """Nobody's fault: as many secrets sign, or were rotated by themselves, as may; the text says what can be done."""


class TooManySchedules(Conflict):
    """Nobody's fault: there are as many schedules as may be, and this one would be one more."""


class NoSigningKey(Conflict):
    """The operator's fault: this process has no signing key, so it can derive no secret."""


class MissingMaster(LaterError):
    """The operator's fault: a secret cannot be derived, because its master is not among the signing keys."""


class StoreDown(LaterError):
    """The environment's fault: the store cannot be reached, or does not take this command now.

    The text is the reason. If `unknown` is true, a write that raised this may have been made or not; otherwise it was
    not made.
    """

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


@contextmanager
def unknown_after(changed: bool) -> Iterator[None]:
    """Run a block whose StoreDown is `unknown` if `changed`: a part of the request was carried out before it."""
    try:
        yield
    except StoreDown as error:
        if not changed or error.unknown:
            raise
        unknown = copy(error)  # others may get the same error
        unknown.unknown = True
        raise unknown from error


class NodeDown(StoreDown):
    """The environment's fault: the node of a cluster that has this key is away. Other nodes may answer."""


class WriteRefused(NodeDown):
    """The environment's fault: the node that has this key answers, but takes no writes for now."""


def first_fault(answers: Iterable[object]) -> LaterError | None:
    """Return the first error among answers, but for those whose nodes are away; None if there is no other."""
    return next((a for a in answers if isinstance(a, LaterError) and not isinstance(a, NodeDown)), None)


class StoreFull(StoreDown):
    """The environment's fault: the store's memory is full."""


class NotDurable(LaterError):
    """The environment's fault: a write was made, but has not reached the durability that was asked for in time.

    It is not undone, because another copy may have it: it may be repeated with the same id. `reached` is the level that
    it has reached. `id` is that of the task; None stands for all tasks of a request. It is not `stored` if there was
    nothing to write, and it is that which has not reached its durability.
    """

    def __init__(self, text: str, *, reached: str, id: str | None = None, stored: bool = True) -> None:
        super().__init__(text)
        self.stored = stored
        self.reached = reached
        self.id = id


class TooManyWaiting(StoreDown):
    """The environment's fault: too many requests wait already, for the store or for their answers to be sent."""


class TooManyWaiters(StoreDown):
    """The environment's fault: as many claims wait for tasks as may wait at a time."""


class NotReady(LaterError):
    """The environment's fault: this daemon is being stopped, or processes of it are missing or do not answer."""


class NotAlive(LaterError):
    """The daemon's own fault: a part of it hangs, and only a restart helps."""


class StoreMismatch(LaterError):
    """The operator's fault: this store cannot serve this configuration (the text says why)."""


class StoreEmpty(StoreMismatch):
    """The operator's fault: the store holds nothing of later. A mistyped URL must not pass for an empty store."""


class StoreFault(LaterError):
    """A fault of later: the store gave an answer that it never should."""


class ConfigError(LaterError):
    """The operator's fault: the value of an option is wrong; the text names both."""


class UnreadableBody(LaterError):
    """A stored task's body cannot be decoded."""


# Errors of calls to later's API, and of the Python library


NOT_LATER = "is this the URL of later?"
"""The end of each error about an answer that later's API does not give."""


class CallFailed(LaterError):
    """The failure of a call. The text is the reason, in the server's words if it gave one.

    `status` is None if no answer came.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class Unavailable(CallFailed):
    """A failed call that may work later.

    If `unknown` is true, the call may have been carried out; otherwise it was not. `retry_after_ms` is the pause that
    the server asked for, if it did.
    """

    def __init__(
        self, reason: str, status: int | None = None, unknown: bool = False, *, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(reason, status)
        self.reason = reason
        self.unknown = unknown
        self.retry_after_ms = retry_after_ms


class DurabilityMissed(Unavailable):
    """A call that was carried out, but has not reached the durability that was asked for. It may be sent again.

    `id` is that of the task, if the call was for one; `reached` is the level that was reached.
    """

    def __init__(self, reason: str, id: str | None, reached: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(reason, 503, unknown=True, retry_after_ms=retry_after_ms)
        self.id = id
        self.reached = reached


class NotConfigured(LaterError):
    """The application's fault: the library was used before it was told where `later` is."""


class HandlerExists(LaterError):
    """The application's fault: the topic has a handler already."""


class LeaseLost(LaterError):
    """Nobody's fault: the lease on a claimed task is not in force any more. The task may be claimed by others."""


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without their texts: those may quote contents."""
    cause = error.__cause__ or error.__context__
    earlier = "" if cause is None else format_traceback(cause) + "\n\nThen:\n\n"
    return f"{earlier}Traceback:\n{''.join(traceback.format_tb(error.__traceback__))}{type(error).__qualname__}"
