"""Owners of shards: which workers look at which shards, computed alike by all of them from the list of workers.

Bounded rendezvous hashing: each shard in turn takes the workers with the highest hashes of worker and shard that have
not got their part yet. So shares are even, and few shards change hands when a worker comes or goes. Ownership is
advisory: claims are safe by any number of workers, so two lists that differ for a moment do no harm.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from functools import lru_cache
from hashlib import shake_128
from heapq import nlargest, nsmallest
from typing import NamedTuple

MIN_LOOKS_TO_SHARE = 64
"""Workers times shards below which every worker looks at all shards.

More workers would also race for each task that becomes due: all of them wake at its time.
"""
OWNERS = 2
"""Owners of a shard, at least: one may be gone, or busy, without a delay of the shard's tasks."""
HASH_BYTES = 4


class CensusBacklog(NamedTuple):
    """When (ms) the last census began, and the due time of the oldest task that nothing held; None: there was none."""

    at: int
    oldest_due_at: int | None


def owner_count(workers: int, shards: int) -> int:
    """Return how many owners each shard has: so many that each worker owns about two shards, and `OWNERS` at least."""
    return min(max(OWNERS, math.ceil(OWNERS * workers / shards)), workers)


def assign_shards(workers: Collection[str], shards: int) -> dict[str, list[int]]:
    """Return the shards that each worker owns. The order of `workers` does not matter.

    No worker gets more than `ceil(shards * owners / workers)`, unless too few others have room for the last shards.
    """
    names = sorted(set(workers))
    owners = owner_count(len(names), shards)
    if len(names) * shards < MIN_LOOKS_TO_SHARE or owners == len(names):
        return {name: list(range(shards)) for name in names}
    most = math.ceil(shards * owners / len(names))
    owned: list[list[int]] = [[] for _ in names]
    with_room = list(range(len(names)))
    for shard, hashes in enumerate(zip(*(_hashes(name, shards) for name in names), strict=True)):
        chosen = nlargest(owners, with_room, key=hashes.__getitem__)
        if len(chosen) < owners:
            others = set(range(len(names))).difference(chosen)
            chosen += nsmallest(owners - len(chosen), sorted(others), key=lambda number: len(owned[number]))
        for number in chosen:
            owned[number].append(shard)
        if any(len(owned[number]) >= most for number in chosen):
            with_room = [number for number in with_room if len(owned[number]) < most]
    return dict(zip(names, owned, strict=True))


@lru_cache(maxsize=4096)
def _hashes(worker: str, shards: int) -> tuple[int, ...]:
    """Return the hashes of a worker with each shard. One call of SHAKE-128 makes all of them."""
    return struct.unpack(f"<{shards}I", shake_128(worker.encode()).digest(HASH_BYTES * shards))
