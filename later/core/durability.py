"""Levels of durability: in how many places a write is before it is acknowledged.

`replica` holds what is on another machine: it may be on a replica that is cut off together with the primary.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from later.core.errors import Refused
from later.core.validation import EXPECTED, refusal

REMEMBER_MS = 3_600_000
"""How long the id of a task above `primary` is remembered after its end, if the caller chose none: it may be asked to
repeat the create with the id that it was answered."""


class Durability(StrEnum):
    """A level of durability, the lowest first. Each contains those before it, as far as the store offers them."""

    PRIMARY = "primary"
    """The memory of the primary, and its file as its `appendfsync` says."""
    DISK = "disk"
    """The disk of the primary."""
    REPLICA = "replica"
    """Also the memory of a replica."""
    REPLICA_DISK = "replica-disk"
    """Also the disk of a replica."""


PRIMARY = Durability.PRIMARY
"""The member by a name of its own: on the way of every create, the lookup in its class would take longer."""
_RANKS = {level: rank for rank, level in enumerate(Durability)}


class NoOffer(NamedTuple):
    """A level that cannot be had, and why."""

    level: Durability
    reason: str


def highest(level: Durability, other: Durability) -> Durability:
    """Return the higher of two levels."""
    return level if _RANKS[level] >= _RANKS[other] else other


def contains(reached: Durability, level: Durability) -> bool:
    """Return True if a write that reached a level has also reached another one."""
    return _RANKS[reached] >= _RANKS[level]


def parse_durability(text: str | None, field: str = "durability") -> Durability:
    """Return the level that a request names; `primary` if it names none. Raises Refused."""
    if text is None:
        return PRIMARY
    try:
        return Durability(text)
    except ValueError:
        raise refusal(field, text, EXPECTED["durability"]) from None


def not_offered(offer: NoOffer) -> Refused:
    """Return the refusal of a level that the store cannot give."""
    return Refused(f"durability: {offer.level} cannot be had from this store: {offer.reason}", "durability")
