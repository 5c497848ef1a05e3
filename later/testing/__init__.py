"""Tests of applications: a virtual clock in the place of the daemon, and single deliveries.

The names below are loaded when they are first used (PEP 562): pytest imports this package wherever later is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from later.core.retry import Outcome, OutcomeKind
    from later.testing.application_clock import Delivery, VirtualClock, virtual_clock
    from later.testing.single_delivery import deliver, deliver_sync

_MODULES = {
    "Delivery": "later.testing.application_clock",
    "Outcome": "later.core.retry",
    "OutcomeKind": "later.core.retry",
    "VirtualClock": "later.testing.application_clock",
    "deliver": "later.testing.single_delivery",
    "deliver_sync": "later.testing.single_delivery",
    "virtual_clock": "later.testing.application_clock",
}

__all__ = ["Delivery", "Outcome", "OutcomeKind", "VirtualClock", "deliver", "deliver_sync", "virtual_clock"]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name):
        """Import a public name, and keep it (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
