"""A worker dies, or the line to the store is cut, between any two steps of a task's life: nothing is lost.

`Line` cuts it at the n-th round trip: before it is sent, or after the store has done it and before the answer is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis.exceptions

from later.core.errors import StoreDown
from later.core.task import Task
from later.store.connections import Connections
from later.store.doctor import Doctor
from later.store.keys import Bucket
from later.store.scripts import BY_SHA, Command
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import LEASE_MS, assert_sound, done, failed, findings, let_go, take

TASK = a_task(id="a", own_id=True)
REMEMBER_UNTIL = NOW + 10**9
MUCH_LATER = NOW + 10**7
ROUND_TRIPS = 18
"""Of `live`; a test says so if it is wrong."""


class Line:
    """The line to the store: goes dead at one round trip, and works again after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trips = 0
        self.cut_at = -1
        self.answer_lost = False
        whole = Connections.pipeline

        async def cut(connections: Connections, commands: Sequence[Command]) -> list[Any]:
            trip, self.trips = self.trips, self.trips + 1
            if trip != self.cut_at:
                return await whole(connections, commands)
            if self.answer_lost:
                await whole(connections, commands)
            raise redis.exceptions.ConnectionError("the line is cut")

        monkeypatch.setattr(Connections, "pipeline", cut)


@pytest.fixture
async def line(house: House, monkeypatch: pytest.MonkeyPatch) -> Line:
    await house.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    return Line(monkeypatch)


@pytest.fixture
def shards() -> int:
    """One task lives in one shard, however many there are."""
    return 2


every_cut = pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])


async def live(house: House, task: Task) -> None:
    """All that can happen to a task: created, failed, released, lost, given back, delivered."""
    await house.store.create([task])
    [claim] = await take(house)
    await house.store.settle([failed(claim, NOW + 10)])
    await let_go(house, Bucket.ERROR, NOW + 10)
    await take(house, NOW + 10)
    after_lease = NOW + 10 + LEASE_MS
    await let_go(house, Bucket.UNACK, after_lease)
    [claim] = await take(house, after_lease)
    await house.store.give_back([claim])
    await house.store.query([task.id])
    [claim] = await take(house, after_lease)
    await house.store.settle([done(claim, REMEMBER_UNTIL)])


async def recover(house: House) -> list[Task]:
    """What workers deliver that start over long after."""
    delivered = []
    for bucket in (Bucket.UNACK, Bucket.ERROR):
        await let_go(house, bucket, MUCH_LATER)
    for claim in await take(house, MUCH_LATER):
        assert isinstance(claim.task, Task)
        delivered.append(claim.task)
        assert await house.store.settle([done(claim, REMEMBER_UNTIL)]) == [True]
    return delivered


async def test_a_life_without_a_cut_takes_all_its_round_trips(house: House, line: Line) -> None:
    await live(house, TASK)
    assert line.trips == ROUND_TRIPS
    assert await recover(house) == []


@every_cut
@pytest.mark.parametrize("cut_at", range(ROUND_TRIPS))
async def test_a_task_outlives_its_worker(house: House, line: Line, cut_at: int, answer_lost: bool) -> None:
    line.cut_at, line.answer_lost = cut_at, answer_lost
    with pytest.raises(StoreDown):
        await live(house, TASK)

    sight = await assert_sound(house, MUCH_LATER)
    never_created = cut_at == 0 and not answer_lost
    delivered = TASK.id in sight.done
    assert delivered == (cut_at == ROUND_TRIPS - 1 and answer_lost)
    assert sight.pool == (set() if never_created or delivered else {TASK.id})
    assert await recover(house) == ([] if never_created or delivered else [TASK])
    assert (await assert_sound(house, MUCH_LATER)).pool == set()


@every_cut
async def test_a_create_sent_again_by_its_caller_is_made_once(house: House, line: Line, answer_lost: bool) -> None:
    line.cut_at, line.answer_lost = 0, answer_lost
    with pytest.raises(StoreDown):
        await house.store.create([TASK])
    assert await house.store.create([TASK]) == [not answer_lost]
    assert await recover(house) == [TASK]


@every_cut
@pytest.mark.parametrize("settlement", [done, lambda claim: failed(claim, NOW + 10)], ids=["done", "failed"])
async def test_a_settle_may_be_sent_again(house: House, line: Line, settlement: Any, answer_lost: bool) -> None:
    await house.store.create([TASK])
    [claim] = await take(house)
    line.cut_at, line.answer_lost = line.trips, answer_lost
    with pytest.raises(StoreDown):
        await house.store.settle([settlement(claim)])
    assert await house.store.settle([settlement(claim)]) == [not answer_lost]
    sight = await assert_sound(house, NOW + 10)
    assert len(sight.pool) == (0 if settlement is done else 1)


@every_cut
async def test_a_delete_sent_again_says_that_it_is_gone(house: House, line: Line, answer_lost: bool) -> None:
    await house.store.create([TASK])
    line.cut_at, line.answer_lost = line.trips + 1, answer_lost
    with pytest.raises(StoreDown):
        await house.store.delete([TASK.id])
    await house.store.delete([TASK.id])
    assert (await assert_sound(house)).pool == set()


@every_cut
@pytest.mark.parametrize("cut_after", range(3), ids=["scan", "look", "mend"])
async def test_a_mend_that_was_cut_is_begun_anew(house: House, line: Line, cut_after: int, answer_lost: bool) -> None:
    await house.store.create([TASK])
    shard = house.keys.shard_of(TASK.id)
    await house.redis.delete(shard.bucket(Bucket.DELAY, b"order"), shard.wakes[Bucket.DELAY])
    [finding] = await findings(house)
    line.cut_at, line.answer_lost = line.trips + cut_after, answer_lost
    with pytest.raises(StoreDown):
        await Doctor(house.client, house.keys).mend(finding, NOW)
    for found in await findings(house):
        assert await Doctor(house.client, house.keys).mend(found, NOW)
    assert (await assert_sound(house)).places(TASK.id) == [(Bucket.DELAY, "order", NOW)]
