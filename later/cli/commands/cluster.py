"""The commands of the group `cluster`: how the shards of a store fall on the nodes of a cluster."""

from __future__ import annotations

import json

import click

from later.cli.groups import OrderedGroup
from later.cli.options import examples, json_option
from later.cli.tables import print_number_table
from later.core.hash_slots import SlotMove, even_ranges, key_slot, plan_moves
from later.store.keys import Keys

MAX_NODES = 1000
"""As many as the specification of Redis Cluster recommends at most."""


@click.group(cls=OrderedGroup)
def cluster() -> None:
    """Plan how shards fall on the nodes of a cluster."""


@cluster.command(
    epilog=examples("later cluster plan --nodes 6 --shards 64", "later cluster plan --nodes 3 --shards 16 --json")
)
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), required=True, help="Primaries of the cluster.")
@click.option(
    "--shards", type=click.IntRange(1, 16_384), required=True, help="Shards of the store, as `later status` shows them."
)
@click.option("--prefix", default="later", show_default=True, help="Prefix of the store's keys.")
@json_option
def plan(*, nodes: int, shards: int, prefix: str, as_json: bool) -> int:
    """Show which slots to move so that each node has as many shards.

    Only as many of the 16,384 slots hold tasks as the store has shards. This is for a store that was laid out on one
    server; one that was laid out in a cluster is spread evenly already. The nodes are assumed to have the slots that
    `valkey-cli --cluster create` gives them: ranges of the same length, in the order in which the nodes were named.
    """
    slots = [key_slot(shard.pool) for shard in Keys(prefix, shards).shards]
    ranges = even_ranges(nodes)
    moves = plan_moves(slots, ranges)
    if as_json:
        _print_json(slots, ranges, moves)
    else:
        _print_text(slots, ranges, moves)
    return 0


def _shards_by_node(slots: list[int], ranges: list[range], moves: list[SlotMove]) -> list[tuple[int, int]]:
    """Return how many shards each node has now, and after the moves."""
    counts = []
    for node, some in enumerate(ranges):
        now = sum(slot in some for slot in slots)
        come = sum(slots.count(move.slot) for move in moves if move.target == node)
        go = sum(slots.count(move.slot) for move in moves if move.source == node)
        counts.append((now, now + come - go))
    return counts


def _print_json(slots: list[int], ranges: list[range], moves: list[SlotMove]) -> None:
    counts = zip(ranges, _shards_by_node(slots, ranges, moves), strict=True)
    nodes = [
        {"node": number, "first_slot": some[0], "last_slot": some[-1], "shards": now, "shards_then": then}
        for number, (some, (now, then)) in enumerate(counts, 1)
    ]
    rows = [
        {"slot": move.slot, "shard": slots.index(move.slot), "from": move.source + 1, "to": move.target + 1}
        for move in moves
    ]
    print(json.dumps({"nodes": nodes, "moves": rows}))


def _print_text(slots: list[int], ranges: list[range], moves: list[SlotMove]) -> None:
    counts = zip(ranges, _shards_by_node(slots, ranges, moves), strict=True)
    print_number_table(
        ("node", "first slot", "last slot", "shards", "then"),
        [
            [str(number), str(some[0]), str(some[-1]), str(now), str(then)]
            for number, (some, (now, then)) in enumerate(counts, 1)
        ],
    )
    print()
    if not moves:
        print("no slot needs to move")
        return
    print("1 slot to move:" if len(moves) == 1 else f"{len(moves)} slots to move:")
    print_number_table(
        ("slot", "shard", "from node", "to node"),
        [[str(move.slot), str(slots.index(move.slot)), str(move.source + 1), str(move.target + 1)] for move in moves],
    )
