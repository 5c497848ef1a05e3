from __future__ import annotations

import uuid

from later.core.ordered_ids import COUNTER_SIZE, order_id
from later.core.task import is_uuid, new_id, pack_id
from tests.builders import NOW

FAR = NOW + 10 * 365 * 86_400_000
"""Later than any time of another test: the ids of a process go on from the last one."""


def time_of(id: str) -> int:
    return int(id[:8] + id[9:13], 16)


def test_an_id_is_a_uuid_of_version_7_with_its_time() -> None:
    id = order_id(new_id(), FAR)
    assert is_uuid(id)
    assert uuid.UUID(id).version == 7
    assert uuid.UUID(id).variant == uuid.RFC_4122
    assert time_of(id) == FAR
    assert len(pack_id(id)) == 16


def test_ids_of_one_ms_sort_as_they_were_made_also_beyond_the_counter() -> None:
    ids = [order_id(new_id(), FAR + 1) for _ in range(3 * COUNTER_SIZE)]
    packed = [pack_id(id) for id in ids]
    assert packed == sorted(packed)
    assert len(set(packed)) == len(ids)
    assert time_of(ids[COUNTER_SIZE - 1]) == FAR + 1
    assert time_of(ids[-1]) == FAR + 3


def test_ids_go_on_if_the_clock_goes_back_or_has_not_caught_up() -> None:
    ids = [order_id(new_id(), at) for at in (FAR + 100, FAR + 50, FAR + 100, FAR + 101)]
    assert ids == sorted(ids)
    assert time_of(ids[-1]) == FAR + 101
