"""The form of holds in the wake set of delay. Only this module, and prelude.lua, know the sign of its entries.

A topic's entry there is a moment (ms), or a hold: the topic is not claimed until a moment, or until it is resumed. A
hold is stored below zero, so that no search for due topics finds it and no `create` lowers it; a hold that was set for
a rate is half a millisecond off.
"""

from __future__ import annotations

import math

UNHELD_RANGE = (0, "+inf", "BYSCORE")
"""Arguments of ZRANGE for the topics that are not held, by their moment."""
HELD_RANGE = ("(0", "(-inf", "BYSCORE", "REV")
"""Arguments of ZRANGE for the topics that are held until a moment, by that moment."""
PAUSED_RANGE = ("-inf", "-inf", "BYSCORE")
"""Arguments of ZRANGE for the topics that are held until they are resumed."""


def hold_entry(until: int | None, *, for_rate: bool = False) -> float:
    """Return the entry of a hold until a moment, or (None) until the topic is resumed."""
    if until is None:
        return -math.inf
    return 0.5 - until if for_rate else -until


def is_held(entry: float, now: int | None = None) -> bool:
    """Return True if the entry is a hold that lasts at `now`, or, without `now`, if it is any hold."""
    return entry < 0 and (now is None or -entry > now)


def held_until(entry: float) -> int | None:
    """Return when the hold ends; None if the topic is held until it is resumed."""
    return None if entry == -math.inf else math.ceil(-entry)


def is_for_rate(entry: float) -> bool:
    """Return True if the entry is a hold that keeps to a rate."""
    return not entry.is_integer() and not math.isinf(entry)
