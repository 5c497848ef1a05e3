"""Generators that run side by side are merged: each item comes once, and a generator waits for its taker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from later.store.merge import merge


async def count(name: str, items: int) -> AsyncGenerator[str]:
    for n in range(items):
        await asyncio.sleep(0)
        yield f"{name}{n}"


async def test_every_item_of_each_comes_once_and_in_its_order() -> None:
    merged = [item async for item in merge((count(name, items) for name, items in [("a", 3), ("b", 0), ("c", 5)]), 2)]
    assert [item for item in merged if item[0] == "a"] == ["a0", "a1", "a2"]
    assert [item for item in merged if item[0] == "c"] == ["c0", "c1", "c2", "c3", "c4"]
    assert len(merged) == 8


async def test_none_has_no_items() -> None:
    assert [item async for item in merge([count("a", 0)], 4)] == []


async def test_so_many_run_at_once_and_no_more() -> None:
    running: set[int] = set()
    seen: list[int] = []

    async def note(number: int) -> AsyncGenerator[int]:
        running.add(number)
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(len(running))
        yield number
        running.discard(number)

    assert sorted([item async for item in merge(map(note, range(9)), 4)]) == [*range(9)]
    assert max(seen) == 4


async def test_a_generator_goes_on_after_its_item_was_processed() -> None:
    processed: list[str] = []
    ahead: list[str] = []

    async def watch(name: str) -> AsyncGenerator[str]:
        for n in range(3):
            yield (item := f"{name}{n}")
            if item not in processed:
                ahead.append(item)

    async for item in merge(map(watch, "abc"), 3):
        await asyncio.sleep(0.001)
        processed.append(item)
    assert (len(processed), ahead) == (9, [])


async def test_an_error_of_one_ends_all_and_closes_them() -> None:
    closed: list[str] = []

    async def wait_forever(name: str) -> AsyncGenerator[str]:
        try:
            await asyncio.Event().wait()
            yield name
        finally:
            closed.append(name)

    async def fail() -> AsyncGenerator[str]:
        await asyncio.sleep(0)
        if not closed:
            raise OSError("away")
        yield "unreachable"

    with pytest.raises(OSError, match="away"):
        [item async for item in merge([wait_forever("a"), fail(), wait_forever("b")], 3)]
    assert sorted(closed) == ["a", "b"]


async def test_who_stops_taking_closes_all() -> None:
    closed: list[str] = []

    async def endless(name: str) -> AsyncGenerator[str]:
        try:
            while True:
                await asyncio.sleep(0)
                yield name
        finally:
            closed.append(name)

    merged = merge(map(endless, "ab"), 2)
    await anext(merged)
    await merged.aclose()
    assert sorted(closed) == ["a", "b"]
