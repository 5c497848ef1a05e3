"""The store, open, as a Config says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from later.config import Config
from later.core.clock import Clock
from later.metrics import Metrics
from later.store.open import Store, build, build_as_laid_out
from later.store.schema import check_store
from later.store.settings import StoreSettings


@asynccontextmanager
async def open_memory(config: Config) -> AsyncIterator[Store]:
    """The store for a command that looks at it: laid out as its data is, whatever --shards says.

    Raises:
        StoreDown: it cannot be reached.
    """
    place = _place(config, config.store_url)
    memory = await build_as_laid_out(place, config.shards, config.policy, a_clock(), Metrics().observe_round_trip)
    try:
        yield memory
    finally:
        await memory.client.aclose()


def build_memory(config: Config, url: str, metrics: Metrics) -> Store:
    """The store for a daemon: nothing is written before it was checked."""
    check = partial(check_store, prefix=config.prefix, shards=config.shards)
    return build(_place(config, url), config.shards, config.policy, a_clock(), metrics.observe_round_trip, check)


def a_clock() -> Clock:
    return Clock(time.monotonic, time.time)


def _place(config: Config, url: str) -> StoreSettings:
    return StoreSettings(url=url, prefix=config.prefix, timeout_s=config.store_timeout_ms / 1000)
