"""Where a store is. It imports nothing of Redis's: who only passes a place on need not have it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """Where a store is, what its keys begin with, and how long (s) it may take to answer."""

    url: str
    prefix: str
    timeout_s: float
