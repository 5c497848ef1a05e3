"""The conflicts of a change with the state of its task, in the words that callers get."""

from __future__ import annotations

from later.core.errors import Conflict, InFlight


def edit_conflict(id: str, state: str) -> Conflict:
    """Return why a task that is dead, or else in flight, is not edited."""
    if state == "dead":
        return Conflict(f"task {id!r} is dead: /redrive or /run-now bring it back, then it can be edited")
    return InFlight(f"task {id!r} is in flight: it can be edited if its delivery fails, or deleted now")


def other_topic_conflict(id: str, there: str, wanted: str) -> Conflict:
    """Return why a create does not edit the task of its id, which waits in another topic."""
    return Conflict(f"the task {id!r} is of the topic {there!r}: no edit moves it to {wanted!r}")


def run_now_conflict(id: str) -> Conflict:
    """Return why a task in flight is not run now."""
    return InFlight(f"task {id!r} is in flight: it runs already")


def redrive_conflict(id: str, state: str) -> Conflict:
    """Return why a task that is not dead is not redriven."""
    if state == "unack":
        return InFlight(f"task {id!r} is in flight, not dead: wait for what its delivery comes to")
    return Conflict(f"task {id!r} is in {state}, not dead: /run-now makes it due now")


def not_pending(id: str) -> Conflict:
    """Return why a dead task is left by a delete of those that are pending."""
    return Conflict(f"the task {id!r} is dead: it is not pending")
