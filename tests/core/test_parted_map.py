"""The map in parts against a dict, and copies that share their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core import parted_map
from later.core.parted_map import PartedMap, PartedMapBuilder

Numbers = PartedMap[int, int]

NAMES = st.text("abcdé/", min_size=1, max_size=3)
CHANGES = st.lists(st.tuples(NAMES, st.none() | st.integers(0, 9)), max_size=60)


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """Let five names be too many for one part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parted_map, "MAX_PART", 4)
        yield


def total(values: Mapping[str, int]) -> int:
    return sum(values.values())


def changed(base: Numbers, changes: list[tuple[str, int | None]]) -> Numbers:
    builder = PartedMapBuilder(base)
    for name, value in changes:
        builder.set(name, value)
    return builder.build()


def as_dict(numbers: Numbers) -> dict[str, int | None]:
    return {name: numbers.get(name) for name in numbers}


@given(st.lists(CHANGES, max_size=6))
def test_it_holds_what_a_dict_holds(rounds: list[list[tuple[str, int | None]]]) -> None:
    numbers, expected = Numbers(total), dict[str, int]()
    for changes in rounds:
        before, known = numbers, dict(expected)
        numbers = changed(before, changes)
        for name, value in changes:
            expected.pop(name, None)
            if value is not None:
                expected[name] = value
        assert as_dict(numbers) == expected
        assert [*numbers] == sorted(expected, key=str.encode)
        assert len(numbers) == len(expected)
        assert sum(part.summary for part in numbers.parts) == sum(expected.values())
        assert as_dict(before) == known


@given(CHANGES, NAMES | st.just(""), NAMES | st.just(""), st.integers(1, 8))
def test_names_between_two_others(changes: list[tuple[str, int | None]], start: str, end: str, limit: int) -> None:
    numbers = changed(Numbers(total), changes)
    expected = [name for name in numbers if start < name and (name < end or not end)]
    assert numbers.names_between(start, end, limit, lambda part: part.names) == expected[:limit]


def test_a_change_copies_one_part() -> None:
    before = changed(Numbers(total), [(f"{number:03}", number) for number in range(100)])
    after = changed(before, [("050", 7)])
    assert len(before.parts) > 20
    assert len({*after.parts} - {*before.parts}) == 1


def test_a_map_does_not_change_with_the_builder_that_built_it() -> None:
    builder = PartedMapBuilder(Numbers(total))
    builder.set("a", 1)
    first = builder.build()
    builder.set("a", 2)
    assert (first.get("a"), builder.build().get("a")) == (1, 2)
