"""Group commit: items of one turn of the loop share a call, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from later.core.errors import LaterError, NotFound, StoreDown, StoreFault
from later.store.group_commit import MAX_BYTES, MAX_ITEMS, MAX_ROUND_TRIPS, GroupCommit, NodeGroups
from tests.cases import each_case


class Calls:
    """A call that doubles numbers, refuses odd ones, and can be blocked."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, items: Sequence[int]) -> list[int | LaterError]:
        self.groups.append(list(items))
        await self.may_answer.wait()
        return [NotFound(str(item)) if item % 2 else item * 2 for item in items]


async def test_items_of_one_turn_share_a_call() -> None:
    calls = Calls()
    group = GroupCommit(calls, queue_timeout_s=60)
    assert await asyncio.gather(*(group(item) for item in (2, 4, 6))) == [4, 8, 12]
    assert calls.groups == [[2, 4, 6]]


async def test_an_error_reaches_exactly_the_caller_whose_item_it_was() -> None:
    group = GroupCommit(Calls(), queue_timeout_s=60)
    answers = await asyncio.gather(group(2), group(3), group(4), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, NotFound, int]


async def test_a_call_that_fails_fails_for_each_of_its_callers_and_for_no_other() -> None:
    async def call(items: Sequence[int]) -> list[int | LaterError]:
        if 1 in items:
            raise StoreDown("away")
        return list(items)

    group = GroupCommit(call, queue_timeout_s=60)
    failed = await asyncio.gather(group(1), group(2), return_exceptions=True)
    assert [type(answer) for answer in failed] == [StoreDown, StoreDown]
    assert await group(2) == 2


@each_case("answered", [0, 1, 3])
async def test_a_call_that_answers_too_few_or_too_many_fails_for_each_of_its_callers(answered: int) -> None:
    async def call(items: Sequence[int]) -> list[int | LaterError]:
        return [7] * answered

    group = GroupCommit(call, queue_timeout_s=60)
    async with asyncio.timeout(1):
        failed = await asyncio.gather(group(1), group(2), return_exceptions=True)
    assert list(map(str, failed)) == [f"the store's call answered {answered} of 2 items"] * 2
    assert {type(error) for error in failed} == {StoreFault}


async def test_a_call_that_was_cancelled_fails_for_each_of_its_callers() -> None:
    async def call(items: Sequence[int]) -> list[int | LaterError]:
        raise asyncio.CancelledError

    group = GroupCommit(call, queue_timeout_s=60)
    async with asyncio.timeout(1):
        failed = await asyncio.gather(group(1), group(2), return_exceptions=True)
    assert [isinstance(error, StoreDown) and error.unknown for error in failed] == [True, True]


async def test_a_call_that_was_cancelled_makes_room_for_others() -> None:
    async def call(items: Sequence[int]) -> list[int | LaterError]:
        if 1 in items:
            raise asyncio.CancelledError
        return list(items)

    group = GroupCommit(call, queue_timeout_s=60)
    for _ in range(MAX_ROUND_TRIPS):
        group(1)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(1):
        assert await group(2) == 2


async def test_items_that_arrive_during_calls_wait_together() -> None:
    calls = Calls()
    calls.may_answer.clear()
    group = GroupCommit(calls, queue_timeout_s=60)
    waiting = []
    for item in range(0, 40, 2):
        waiting.append(group(item))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(calls.groups) == MAX_ROUND_TRIPS
    calls.may_answer.set()
    assert await asyncio.gather(*waiting) == [item * 2 for item in range(0, 40, 2)]
    assert len(calls.groups) == MAX_ROUND_TRIPS + 1


async def test_a_call_has_a_limited_number_of_items() -> None:
    calls = Calls()
    group = GroupCommit(calls, queue_timeout_s=60)
    await asyncio.gather(*(group(item) for item in range(0, 5 * MAX_ITEMS, 2)))
    assert max(map(len, calls.groups)) == MAX_ITEMS


async def test_large_items_are_sent_a_few_at_a_time() -> None:
    calls = Calls()
    group = GroupCommit(calls, queue_timeout_s=60)
    await asyncio.gather(*(group(item, MAX_BYTES // 2) for item in range(0, 20, 2)))
    assert {len(items) for items in calls.groups} == {2}


async def test_an_item_larger_than_a_group_is_sent_alone() -> None:
    calls = Calls()
    group = GroupCommit(calls, queue_timeout_s=60)
    assert await asyncio.gather(*(group(item, 10 * MAX_BYTES) for item in (2, 4))) == [4, 8]
    assert calls.groups == [[2], [4]]


async def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    calls = Calls()
    calls.may_answer.clear()
    group = GroupCommit(calls, queue_timeout_s=60)
    cancelled, stays = group(2), group(4)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled.cancel()
    calls.may_answer.set()
    assert await stays == 8
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_an_item_that_has_waited_too_long_is_not_sent() -> None:
    calls = Calls()
    calls.may_answer.clear()
    group = GroupCommit(calls, queue_timeout_s=0)
    waiting = []
    for item in range(0, 8, 2):
        waiting.append(group(item))
        await asyncio.sleep(0)
    calls.may_answer.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreDown}
    assert calls.groups == []


async def test_an_item_that_is_under_way_does_not_time_out() -> None:
    calls = Calls()
    calls.may_answer.clear()
    group = GroupCommit(calls, queue_timeout_s=0.3)
    first = [group(item) for item in range(0, 2 * MAX_ROUND_TRIPS * MAX_ITEMS, 2)]
    last = group(2)
    await asyncio.sleep(0.4)
    calls.may_answer.set()
    assert await asyncio.gather(*first) == [item * 2 for item in range(0, 2 * MAX_ROUND_TRIPS * MAX_ITEMS, 2)]
    with pytest.raises(StoreDown, match="took no request within"):
        await last


async def test_items_of_a_node_that_is_slow_do_not_hold_up_those_of_others() -> None:
    slow, answered = asyncio.Event(), list[Sequence[str]]()

    async def call(items: Sequence[str]) -> list[str | LaterError]:
        if items[0].startswith("slow"):
            await slow.wait()
        answered.append(items)
        return list(items)

    groups = NodeGroups(call, lambda item: item[:4], queue_timeout_s=60)
    held_up = [groups(f"slow-{n}") for n in range(MAX_ROUND_TRIPS + 1)]
    assert [*await asyncio.gather(groups("fast-1"), groups("fast-2"))] == ["fast-1", "fast-2"]
    assert answered == [["fast-1", "fast-2"]]
    slow.set()
    assert len(await asyncio.gather(*held_up)) == len(held_up)
