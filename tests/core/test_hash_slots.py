"""Keys fall into slots by their hash tags, and shards are spread evenly by as few moves as can be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from later.core.hash_slots import SLOTS, SlotMove, even_ranges, key_slot, plan_moves
from tests.cases import each_case

NODES = st.integers(1, 40)
SLOT_LISTS = st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=80, unique=True)


def shards_by_node(slots: list[int], nodes: int, moves: list[SlotMove]) -> list[int]:
    """Return how many shards each node has after these moves of even ranges."""
    owners = {slot: node for node, some in enumerate(even_ranges(nodes)) for slot in some}
    for move in moves:
        assert owners[move.slot] == move.source
        owners[move.slot] = move.target
    counts = Counter(owners[slot] for slot in slots)
    return [counts[node] for node in range(nodes)]


def test_a_key_is_in_the_slot_of_its_hash_tag() -> None:
    assert key_slot(b"123456789") == key_slot(b"x{123456789}y{z}") == 0x31C3
    assert key_slot(b"x{}{123456789}") != 0x31C3  # an empty tag is none


@given(NODES)
def test_even_ranges_have_every_slot_once_and_as_many_to_each_node(nodes: int) -> None:
    ranges = even_ranges(nodes)
    assert [slot for some in ranges for slot in some] == [*range(SLOTS)]
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_even_ranges_are_those_of_valkey_cli() -> None:
    assert even_ranges(3) == [range(5461), range(5461, 10923), range(10923, SLOTS)]


@given(SLOT_LISTS, NODES)
def test_after_the_moves_no_node_has_two_shards_more_than_another(slots: list[int], nodes: int) -> None:
    counts = shards_by_node(slots, nodes, plan_moves(slots, even_ranges(nodes)))
    assert max(counts) - min(counts) <= 1


@given(SLOT_LISTS, NODES)
def test_no_plan_has_fewer_moves(slots: list[int], nodes: int) -> None:
    moves = plan_moves(slots, even_ranges(nodes))
    counts, least, most = shards_by_node(slots, nodes, []), len(slots) // nodes, -(-len(slots) // nodes)
    too_many = sum(max(count - most, 0) for count in counts)
    too_few = sum(max(least - count, 0) for count in counts)
    assert len(moves) == max(too_many, too_few)
    assert len({move.slot for move in moves}) == len(moves)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), NODES)
def test_shards_that_share_a_slot_move_together(slots: list[int], nodes: int) -> None:
    moves = plan_moves(slots, even_ranges(nodes))
    counts, heaviest = shards_by_node(slots, nodes, moves), max(Counter(slots).values())
    assert max(counts) - min(counts) <= max(heaviest, 1)


@each_case(("shards", "nodes", "before"), [(16, 3, (4, 8)), (16, 12, (0, 4)), (64, 12, (3, 7)), (256, 12, (13, 27))])
def test_tags_that_are_numbers_fall_unevenly_on_nodes(shards: int, nodes: int, before: tuple[int, int]) -> None:
    slots = [key_slot(b"{later:%d}:pool" % shard) for shard in range(shards)]
    assert len({*slots}) == shards
    counts = shards_by_node(slots, nodes, [])
    assert (min(counts), max(counts)) == before
    counts = shards_by_node(slots, nodes, plan_moves(slots, even_ranges(nodes)))
    assert (min(counts), max(counts)) == (shards // nodes, -(-shards // nodes))
