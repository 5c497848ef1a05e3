"""Methods that are called in each process that is forked from this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_methods: set[WeakMethod[Callable[[], None]]] = set()


def call_after_fork(method: Callable[[], None]) -> None:
    """Let a method be called in each child, as long as its object lives. It forgets what only the parent has."""
    _methods.add(WeakMethod(method, _methods.discard))


def _call_all() -> None:
    for reference in [*_methods]:
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_call_all)
