"""Whoever has lost a lease cannot touch the task any more, whatever has become of it since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from later.core.errors import LaterError
from later.store.keys import Bucket
from later.store.types import Claim
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import LEASE_MS, assert_sound, died, done, failed, let_go, see, take

LATE = NOW + LEASE_MS
Verb = Callable[[House, Claim], Awaitable[list[bool | LaterError]]]
LATE_VERBS: dict[str, Verb] = {
    "done": lambda house, claim: house.store.settle([done(claim, NOW + 10**9)]),
    "failed": lambda house, claim: house.store.settle([failed(claim, LATE + 10_000)]),
    "died": lambda house, claim: house.store.settle([died(claim)]),
    "given back": lambda house, claim: house.store.give_back([claim]),
}
pytestmark = pytest.mark.parametrize("late", LATE_VERBS.values(), ids=LATE_VERBS)


@pytest.fixture
def shards() -> int:
    """One id lives in one shard, however many there are."""
    return 2


async def the_claim(house: House, now: int = NOW) -> Claim:
    [claim] = await take(house, now)
    return claim


async def create(house: House, **changes: Any) -> None:
    assert await house.store.create([a_task(id="a", own_id=True, **changes)]) == [True]


async def assert_changes_nothing(house: House, late: Verb, claim: Claim, now: int = LATE) -> None:
    before = await see(house)
    assert await late(house, claim) == [False]
    assert await see(house) == before
    await assert_sound(house, now)


async def test_after_its_lease_ran_out(house: House, late: Verb) -> None:
    await create(house)
    lost = await the_claim(house)
    await let_go(house, Bucket.UNACK, LATE)
    await assert_changes_nothing(house, late, lost)


async def test_after_another_claimed_it(house: House, late: Verb) -> None:
    await create(house)
    lost = await the_claim(house)
    await let_go(house, Bucket.UNACK, LATE)
    held = await the_claim(house, LATE)
    await assert_changes_nothing(house, late, lost)
    assert await house.store.settle([done(held)]) == [True]
    assert (await assert_sound(house, LATE)).pool == set()


@pytest.mark.parametrize("by_another", LATE_VERBS.values(), ids=LATE_VERBS)
async def test_after_another_claimed_and_ended_it(house: House, late: Verb, by_another: Verb) -> None:
    await create(house)
    lost = await the_claim(house)
    await let_go(house, Bucket.UNACK, LATE)
    assert await by_another(house, await the_claim(house, LATE)) == [True]
    await assert_changes_nothing(house, late, lost)


@pytest.mark.parametrize("first", LATE_VERBS.values(), ids=LATE_VERBS)
async def test_after_it_was_settled_already(house: House, late: Verb, first: Verb) -> None:
    await create(house)
    claim = await the_claim(house)
    assert await first(house, claim) == [True]
    await assert_changes_nothing(house, late, claim)


async def test_twice_in_one_call_counts_once(house: House, late: Verb) -> None:
    await create(house)
    claim = await the_claim(house)
    assert await house.store.settle([done(claim), failed(claim, LATE), died(claim)]) == [True, False, False]
    await assert_changes_nothing(house, late, claim)


async def test_after_it_was_given_back_and_claimed_again(house: House, late: Verb) -> None:
    await create(house)
    claim = await the_claim(house)
    await house.store.give_back([claim])
    await the_claim(house)
    await assert_changes_nothing(house, late, claim)


async def test_after_it_was_deleted(house: House, late: Verb) -> None:
    await create(house)
    claim = await the_claim(house)
    await house.store.delete(["a"])
    await assert_changes_nothing(house, late, claim)


@pytest.mark.parametrize("topic", ["order", "other"])
async def test_after_it_was_deleted_and_created_anew(house: House, late: Verb, topic: str) -> None:
    await create(house)
    claim = await the_claim(house)
    await house.store.delete(["a"])
    await create(house, topic=topic)
    await assert_changes_nothing(house, late, claim)


@pytest.mark.parametrize("topic", ["order", "other"])
async def test_while_the_new_life_of_the_id_is_in_flight(house: House, late: Verb, topic: str) -> None:
    await create(house)
    lost = await the_claim(house)
    await house.store.delete(["a"])
    await create(house, topic=topic)
    held = await the_claim(house)
    assert held.fence > lost.fence
    await assert_changes_nothing(house, late, lost)
    assert await late(house, held) == [True]
    await assert_sound(house, LATE)


async def test_after_it_failed_and_was_claimed_again(house: House, late: Verb) -> None:
    await create(house)
    claim = await the_claim(house)
    await house.store.settle([failed(claim, NOW + 1)])
    await let_go(house, Bucket.ERROR, NOW + 1)
    await the_claim(house, NOW + 1)
    await assert_changes_nothing(house, late, claim)
