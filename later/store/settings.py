"""The settings of a store. This module imports no Redis client: a process that only passes them on needs none."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The store's URL, which may have a password, the prefix of every key, and how long (s) a round trip may take."""

    url: str = field(repr=False)
    prefix: str
    timeout_s: float
