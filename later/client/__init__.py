"""Clients of later's HTTP API: `Client` and `AsyncClient` for applications, and what the command line and Spark use.

The names below are loaded when they are first used (PEP 562): Spark's executors and the command line import modules of
this package that need less.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from later.client.aio import AsyncClient
    from later.client.answers import (
        AppliedField,
        AppliedPolicy,
        ClaimedTask,
        DeadLetter,
        Deleted,
        DueTask,
        Enqueued,
        Explained,
        FailedAttempt,
        FiringError,
        Info,
        JobTotals,
        LastError,
        LastFiring,
        ScheduleInfo,
        ScheduleResult,
        TopicInfo,
    )
    from later.client.calls import draft
    from later.client.sync import Client
    from later.core.task import Draft

_MODULES = {
    "AsyncClient": "later.client.aio",
    "Client": "later.client.sync",
    "Draft": "later.core.task",
    "draft": "later.client.calls",
}
"""The module of each name that is not in `later.client.answers`."""

__all__ = [
    "AppliedField",
    "AppliedPolicy",
    "AsyncClient",
    "ClaimedTask",
    "Client",
    "DeadLetter",
    "Deleted",
    "Draft",
    "DueTask",
    "Enqueued",
    "Explained",
    "FailedAttempt",
    "FiringError",
    "Info",
    "JobTotals",
    "LastError",
    "LastFiring",
    "ScheduleInfo",
    "ScheduleResult",
    "TopicInfo",
    "draft",
]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name):
        """Import a public name, and keep it (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES.get(name, "later.client.answers"))
        value = globals()[name] = getattr(module, name)
        return value
