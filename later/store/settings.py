"""The settings of a store. This module imports no Redis client: a process that only passes them on needs none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The store's URL, the prefix of every key, and how long (s) a round trip may take."""

    url: str
    prefix: str
    timeout_s: float
