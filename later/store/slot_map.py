"""The map of a cluster's slots: in which one a command belongs, and which node serves it. Pure."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from later.address_types import Address
from later.core.hash_slots import SLOTS, key_slot
from later.store.scripts import Command

_SCRIPT_CALLS = frozenset({"EVALSHA", "EVALSHA_RO"})
_KEYLESS = frozenset({
    "CLUSTER", "CONFIG", "INFO", "PING", "PUBLISH", "ROLE", "SCAN", "SCRIPT", "TIME",
})  # fmt: skip
"""Commands that name no key: any node may run them, or the caller says which."""


def command_slot(command: Command) -> int | None:
    """Return the slot of a command's first key; None if it names no key. All keys of a command lie in one slot."""
    name = command[0]
    if name in _SCRIPT_CALLS:
        key = command[3]
    elif name in _KEYLESS:
        return None
    else:
        key = command[1]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


@cache
def shard_tags(prefix: str, shards: int) -> tuple[str, ...]:
    """Return a hash tag for each shard, whose slots divide all slots evenly: `later:<shard>.<k>`.

    Shard i of n has the smallest k with which the slot lies in the i-th of n equal parts. The CRC-16 of short decimal
    numbers is not even: without k, one of twelve nodes would have 1.3 times its part of 256 shards.
    """
    return tuple(_shard_tag(prefix, index, shards) for index in range(shards))


def _shard_tag(prefix: str, index: int, shards: int) -> str:
    low, high = index * SLOTS, (index + 1) * SLOTS
    head = crc_hqx(f"{prefix}:{index}.".encode(), 0)
    k = 0
    while not low <= crc_hqx(b"%d" % k, head) % SLOTS * shards < high:
        k += 1
    return f"{prefix}:{index}.{k}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotMap:
    """The nodes of a cluster as one of them knows them: the owner of each slot, all primaries, and all nodes.

    `epoch` is the node's current epoch. `is_ok` is true if it says that the cluster serves.
    """

    epoch: int
    is_ok: bool
    owners: tuple[Address | None, ...]
    primaries: tuple[Address, ...]
    nodes: tuple[Address, ...]


def newest_map(maps: Iterable[SlotMap]) -> SlotMap | None:
    """Return the map to go by: that of the highest epoch, of a node that serves if there is one.

    A node that is cut off has an old map. It says so only after the node timeout.
    """
    return max(maps, key=lambda found: (found.is_ok, found.epoch), default=None)


def parse_map(shards: Any, slots: Any, info: bytes, asked: Address, *, uses_tls: bool) -> SlotMap:
    """Return the map in a node's answers to CLUSTER SHARDS, or else (None) to CLUSTER SLOTS, and to CLUSTER INFO.

    A node that names no host means its own, which is that of the address at which it was `asked`.
    """
    facts = dict(line.partition(b":")[::2] for line in info.split())
    ranges = _ranges_of_slots(slots, asked) if shards is None else _ranges_of_shards(shards, asked, uses_tls=uses_tls)
    owners: list[Address | None] = [None] * SLOTS
    primaries, nodes = dict[Address, None](), dict[Address, None]()
    for low, high, members in ranges:
        primaries[members[0]] = None
        nodes |= dict.fromkeys(members)
        owners[low : high + 1] = [members[0]] * (high + 1 - low)
    return SlotMap(
        epoch=int(facts.get(b"cluster_current_epoch", 0)),
        is_ok=facts.get(b"cluster_state") == b"ok",
        owners=tuple(owners),
        primaries=tuple(primaries),
        nodes=tuple(nodes),
    )


def _ranges_of_shards(
    answer: Sequence[Sequence[Any]], asked: Address, *, uses_tls: bool
) -> Iterator[tuple[int, int, list[Address]]]:
    """Yield the ranges of slots in an answer to CLUSTER SHARDS, each with its nodes, the primary first."""
    for shard in map(_fields, answer):
        nodes = [_fields(node) for node in shard[b"nodes"]]
        # after a failover the primary before is still listed, as one that failed
        nodes.sort(key=lambda node: (node[b"role"] != b"master", node.get(b"health", b"online") != b"online"))
        ports = (b"tls-port", b"port") if uses_tls else (b"port", b"tls-port")
        members = [
            node_address(
                node.get(b"endpoint", node.get(b"ip")), next(node[port] for port in ports if port in node), asked
            )
            for node in nodes
        ]
        bounds = shard[b"slots"]
        for low, high in zip(bounds[::2], bounds[1::2], strict=True):
            yield int(low), int(high), members


def _ranges_of_slots(answer: Sequence[Sequence[Any]], asked: Address) -> Iterator[tuple[int, int, list[Address]]]:
    """Yield the ranges of slots in an answer to CLUSTER SLOTS, each with its nodes, the primary first."""
    for low, high, *nodes in answer:
        yield int(low), int(high), [node_address(node[0], node[1], asked) for node in nodes]


def node_address(host: bytes | str | None, port: int | bytes, asked: Address) -> Address:
    """Return the address that a node tells; it may leave out the host (`""`, `?` or nil): that is the one asked."""
    name = host.decode() if isinstance(host, bytes) else host
    return Address(name if name and name != "?" else asked.host, int(port))


def _fields(flat: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
