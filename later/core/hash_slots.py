"""Hash slots of a cluster: which slot a key is in, and which slots to move so that shards are spread evenly over nodes.

A shard is one hash tag, so all of it is in one slot. A store of N shards thus fills N of 16,384 slots, and a cluster
whose nodes have as many slots each may still have most shards on one node.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SLOTS = 16_384
"""Slots of every cluster."""


class SlotMove(NamedTuple):
    """A slot to be moved from one node to another."""

    slot: int
    source: int
    target: int


def key_slot(key: bytes) -> int:
    """Return the slot of a key: the CRC-16 (XMODEM) of its hash tag, or of all of it (Redis Cluster specification)."""
    start = key.find(ord("{"))
    end = key.find(ord("}"), start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % SLOTS


def even_ranges(nodes: int) -> list[range]:
    """Return the slots of each node as `valkey-cli --cluster create` shares them out: in ranges, as many to each."""
    ends = [round(SLOTS * (node + 1) / nodes) for node in range(nodes)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def plan_moves(slots: Sequence[int], owned: Sequence[range]) -> list[SlotMove]:
    """Return the fewest moves of slots after which no node has two shards more than another.

    `slots` has the slot of each shard, `owned` the slots of each node. Shards that share a slot move together: then a
    node may have more than that.
    """
    shards = Counter(slots)
    nodes = [sorted(slot for slot in shards if slot in some) for some in owned]
    counts = [sum(shards[slot] for slot in node) for node in nodes]
    moves: list[SlotMove] = []
    while True:
        source, target = counts.index(max(counts)), counts.index(min(counts))
        difference = counts[source] - counts[target]
        movable = [slot for slot in nodes[source] if shards[slot] < difference]
        if difference < 2 or not movable:
            return sorted(moves)
        slot = min(movable, key=lambda slot: shards[slot])
        nodes[source].remove(slot)
        nodes[target].append(slot)
        counts[source] -= shards[slot]
        counts[target] += shards[slot]
        moves.append(SlotMove(slot, source, target))
