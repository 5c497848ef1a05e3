"""Owners of shards: all workers compute the same ones, evenly, and few change when a worker comes or goes."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from later.core.shard_owners import MIN_LOOKS_TO_SHARE, OWNERS, assign_shards, owner_count
from tests.cases import each_case

FLEETS = st.integers(1, 40).flatmap(lambda count: st.sets(st.text(max_size=12), min_size=count, max_size=count))
SHARDS = st.sampled_from([1, 2, 4, 16, 64, 256])


def fleet(count: int) -> list[str]:
    return [f"host-{number}:{100 + number}:{number * 2654435761 % 65536:04x}" for number in range(count)]


@given(FLEETS, SHARDS, st.randoms(use_true_random=False))
def test_the_same_workers_in_any_order_have_the_same_shards(
    workers: set[str], shards: int, shuffled: random.Random
) -> None:
    order = sorted(workers)
    shuffled.shuffle(order)
    assert assign_shards(order, shards) == assign_shards([*workers, *workers], shards)


@given(FLEETS, SHARDS)
def test_each_shard_has_two_different_owners_or_all_workers(workers: set[str], shards: int) -> None:
    owned = assign_shards(workers, shards)
    owners = Counter(shard for some in owned.values() for shard in set(some))
    assert owned.keys() == workers
    assert set(owners) == set(range(shards))
    assert min(owners.values()) >= min(OWNERS, len(workers))
    assert all(some == sorted(set(some)) for some in owned.values())


@given(FLEETS, SHARDS)
def test_no_worker_has_much_more_than_its_part(workers: set[str], shards: int) -> None:
    owned = assign_shards(workers, shards)
    if len(workers) * shards < MIN_LOOKS_TO_SHARE:
        assert all(len(some) == shards for some in owned.values())
    else:
        seats = shards * owner_count(len(workers), shards)
        assert sum(map(len, owned.values())) == seats
        assert max(map(len, owned.values())) <= math.ceil(seats / len(workers)) + OWNERS


@each_case("workers, shards", [(20, 64), (100, 256), (300, 256)])
def test_few_shards_change_owners_when_a_worker_goes(workers: int, shards: int) -> None:
    names = fleet(workers)
    before = assign_shards(names, shards)
    for gone in names[:4]:
        after = assign_shards([name for name in names if name != gone], shards)
        moved = sum(len({*after[name]}.difference(before[name])) for name in after)
        assert moved <= 4 * math.ceil(shards * owner_count(workers, shards) / workers)


def test_of_a_thousand_workers_each_looks_at_three_shards_at_most() -> None:
    owned = assign_shards(fleet(1000), 256)
    assert max(map(len, owned.values())) <= 3
    assert sum(map(len, owned.values())) == 2048


def test_the_owners_are_the_same_on_every_machine_and_version() -> None:
    owned = assign_shards(fleet(5), 16)
    first, second = fleet(2)
    assert owned[first] == [0, 2, 3, 4, 5, 9, 11]
    assert owned[second] == [2, 6, 8, 12, 13, 14, 15]
