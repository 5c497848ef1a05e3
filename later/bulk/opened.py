"""The store, open for a job: as a daemon has laid it out, and only if it can serve."""

from __future__ import annotations

import time

from later.core.clock import Clock
from later.core.errors import LaterError
from later.core.policy import DEFAULT
from later.store.open import Store, build_as_laid_out
from later.store.schema import check_store, stored_shards
from later.store.settings import StoreSettings


async def opened(place: StoreSettings) -> Store:
    """The store at a place; whoever asked closes its client.

    Raises:
        LaterError: there is nothing of later's, for a mistyped URL is no empty store.
        StoreMismatch: its data is of another version, or not safe there.
        StoreDown: it cannot be reached.
    """
    memory = await build_as_laid_out(place, 1, DEFAULT, Clock(time.monotonic, time.time), _unseen)
    try:
        if await stored_shards(memory.client.execute_each, place.prefix) is None:
            raise LaterError(
                f'there is nothing of later\'s in the store (its keys would begin with "{place.prefix}"): start a '
                "daemon on it first, which lays its data out"
            )
        await check_store(memory.client.execute_each, place.prefix, memory.shards)
    except BaseException:
        await memory.client.aclose()
        raise
    return memory


def _unseen(verb: str, seconds: float) -> None:
    """Nobody looks at an executor's metrics."""
