"""A purge or a redrive that fails says whether it may have moved tasks before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.store.keys import Bucket
from later.store.scripts import MAX_TASKS
from later.store.types import BucketRange, MoveResult
from tests.builders import NOW, a_task
from tests.store.inspection import FAILURE, claim_due, died
from tests.store_fixture import StoreFixture

DEAD = BucketRange("order", Bucket.DEAD)
MOVES: dict[str, Callable[[StoreFixture], Awaitable[MoveResult]]] = {
    "purge": lambda store: store.dead_letters.purge([DEAD]),
    "sweep": lambda store: store.dead_letters.purge_dead(DEAD, FAILURE.reason),
    "redrive": lambda store: store.dead_letters.redrive(DEAD, now=NOW + 5000),
}
"""By the verb that moves the tasks."""
MORE_THAN_A_SLICE = MAX_TASKS + 100


@pytest.fixture
async def dead_store(store: StoreFixture) -> StoreFixture:
    await store.tasks.create([a_task() for _ in range(MORE_THAN_A_SLICE)])
    while claims := await claim_due(store):
        await store.tasks.settle([died(claim) for claim in claims])
    return store


def fail_call(store: StoreFixture, monkeypatch: pytest.MonkeyPatch, verb: str, number: int) -> None:
    """Let one call of a verb fail before it is sent."""
    original, calls = store.client.execute_each, 0

    async def execute_each(name: str, commands: Sequence[Any]) -> list[Any]:
        nonlocal calls
        calls += name == verb
        if name == verb and calls == number:
            raise StoreDown("gone")
        return await original(name, commands)

    monkeypatch.setattr(store.client, "execute_each", execute_each)


@pytest.mark.parametrize("verb", MOVES)
@pytest.mark.parametrize(("failing_call", "unknown"), [(1, False), (2, True)])
async def test_a_move_may_have_moved_tasks_unless_its_first_call_failed(
    dead_store: StoreFixture, monkeypatch: pytest.MonkeyPatch, verb: str, failing_call: int, unknown: bool
) -> None:
    fail_call(dead_store, monkeypatch, verb, failing_call)
    with pytest.raises(StoreDown) as caught:
        await MOVES[verb](dead_store)
    assert caught.value.unknown is unknown


@pytest.mark.parametrize("shards", [2])
@pytest.mark.parametrize("verb", ["sweep", "redrive"])
@pytest.mark.parametrize(("has_moved", "unknown"), [(False, False), (False, True), (True, False)])
async def test_a_move_of_which_one_shard_failed_may_have_moved_the_tasks_of_another(
    dead_store: StoreFixture, monkeypatch: pytest.MonkeyPatch, verb: str, has_moved: bool, unknown: bool
) -> None:
    original = dead_store.client.execute_each

    async def execute_each(name: str, commands: Sequence[Any]) -> list[Any]:
        if name != verb:
            return await original(name, commands)
        first = await original(name, commands[:1]) if has_moved else [StoreDown("full")]
        return [*first, StoreDown("gone", unknown=unknown)]

    monkeypatch.setattr(dead_store.client, "execute_each", execute_each)
    with pytest.raises(StoreDown) as caught:
        await MOVES[verb](dead_store)
    assert caught.value.unknown is (has_moved or unknown)
