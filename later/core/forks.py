"""Objects that forget something in each process that is forked from this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")

_methods: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def call_after_fork(owner: Owner, forget: Callable[[Owner], None]) -> None:
    """Let `forget` be called with its owner in each child, as long as the owner lives."""
    _methods[owner] = forget


def _call_all() -> None:
    for owner, forget in [*_methods.items()]:
        forget(owner)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_call_all)
