"""Nodes whose clocks differ: no task is early by any of them, each is late by as much, and it is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from later.address_types import Address
from later.core.clock import Clock
from later.core.hash_slots import SLOTS
from later.core.policy import DEFAULT_POLICY
from later.store.keys import Bucket
from later.store.node_clocks import failovers
from later.store.open import Store, connect_store
from later.store.settings import StoreSettings
from later.store.slot_map import SlotMap
from later.store.types import ClaimRequest, ClaimResult
from tests.builders import a_task
from tests.cases import each_case
from tests.cluster_service import run_cluster
from tests.shifted_nodes import shift, shift_clocks

SHARDS = 16
TIMEOUT_S = 10.0


@asynccontextmanager
async def store_at(addresses: list[Address], jumps: list[float]) -> AsyncIterator[Store]:
    """Open a store in the cluster of these nodes, and note its failovers' jumps."""
    url = f"redis+cluster://{','.join(map(str, addresses))}"
    settings = StoreSettings(url=url, prefix="later", timeout_s=TIMEOUT_S)
    store = connect_store(
        settings,
        SHARDS,
        Clock(time.monotonic, time.time),
        DEFAULT_POLICY,
        "this",
        lambda verb: lambda seconds: None,
        note_clock_jump=jumps.append,
    )
    try:
        yield store
    finally:
        await store.aclose()


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, which takes as long as a cluster needs for a failover, say."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def here_ms() -> float:
    return time.time() * 1000


A, B, C, NEW = (Address("10.0.0.1", port) for port in (1, 2, 3, 4))


def a_map(owners: Sequence[Address], replicas: Sequence[Address] = ()) -> SlotMap:
    """Return a map in which these nodes have as many slots each."""
    primaries = tuple(dict.fromkeys(owners))
    slots = tuple(owner for owner in owners for _ in range(SLOTS // len(owners)))
    return SlotMap(epoch=1, is_ok=True, owners=slots, primaries=primaries, nodes=(*primaries, *replicas))


@each_case(("before", "now", "found"), [
    (a_map([A, B], [C]), a_map([A, B], [C]), {}),
    (a_map([A, B], [C]), a_map([C, B], [A]), {A: C}),
    (a_map([A, B], [C]), a_map([C, B]), {A: C}),
    (a_map([A, B], [C]), a_map([B, B], [C]), {}),  # an operator has moved all slots of A to B
    (a_map([A, B]), a_map([NEW, B]), {}),  # and here to a node that was empty
    (a_map([A, A, B, B], [C]), a_map([A, C, B, B]), {}),  # and some of them to what was a replica
])  # fmt: skip
def test_a_failover_is_a_replica_that_takes_the_place_of_a_primary(
    before: SlotMap, now: SlotMap, found: dict[Address, Address]
) -> None:
    assert failovers(before, now) == found


def test_an_answer_to_time_is_shifted_and_nothing_else() -> None:
    answer = b"*2\r\n$10\r\n1700000000\r\n$6\r\n900000\r\n"
    assert shift(b"+OK\r\n" + answer, 200_000) == b"+OK\r\n*2\r\n$10\r\n1700000001\r\n$6\r\n100000\r\n"
    assert shift(answer, -900_000) == b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"


@pytest.mark.system
async def test_tasks_are_early_by_no_clock_and_late_by_their_difference(tmp_path: Path) -> None:
    with run_cluster(tmp_path, 2, replicas=0) as service:
        slow, fast = service.first_primaries
        async with shift_clocks(service, {slow: 0, fast: 300}) as proxies, store_at([proxies[slow]], []) as store:
            await store.client.open()
            known = await store.time.now()
            assert known.low <= here_ms() <= here_ms() + 300 <= known.high + 50
            assert store.clock.spread_s() == pytest.approx(0.3, abs=0.05)
            assert 300 <= known.high - known.low <= 400
            created_at = here_ms()
            due_at = known.high + 500
            tasks = [a_task(id=f"t{number}", execute_at=due_at) for number in range(64)]
            assert await store.tasks.create(tasks) == [True] * 64
            claimed = await claim_all(store, len(tasks))
            assert min(claimed) >= due_at  # by the clock of the slow node, and so by that of the fast one
            assert min(claimed) - created_at >= 800


async def claim_all(store: Store, count: int) -> list[float]:
    """Claim tasks as a worker does, as soon as they are due; return the times of this machine at which they were."""
    claimed: list[float] = []
    async with asyncio.timeout(20):
        while len(claimed) < count:
            due = await store.tasks.due_topics(Bucket.DELAY, 1000)
            now = (await store.time.now()).low
            at = here_ms()
            requests = [ClaimRequest(wake.topic, wake.shard, 500) for wake in due.topics if wake.at <= now]
            for answer in await store.tasks.claim(requests, now, now + 30_000):
                assert isinstance(answer, ClaimResult)
                claimed += [at] * len(answer.claims)
    return claimed


@pytest.mark.system
@pytest.mark.parametrize("ahead_s", [20, -20])
async def test_a_failover_to_a_clock_that_is_wrong_is_counted_and_told(tmp_path: Path, ahead_s: int) -> None:
    jumps: list[float] = []
    with run_cluster(tmp_path, 3, replicas=1) as service:
        first, *others = service.first_primaries
        (replica,) = service.replicas_of(first)
        shifts = dict.fromkeys(service.nodes, 0) | {replica: ahead_s * 1000}
        async with shift_clocks(service, shifts) as proxies, store_at([proxies[others[0]]], jumps) as store:
            await store.client.open()
            assert store.clock.spread_s() < 0.05
            with capture_logs() as logged:
                await asyncio.to_thread(service.kill, first)
                await eventually(lambda: bool(jumps))
            assert jumps == [pytest.approx(ahead_s, abs=0.1)]
            events = [line for line in logged if line["event"] in ("store failed over", "store clock jumped")]
            assert events[0]["before"] == str(proxies[first])
            assert events[0]["now"] == str(proxies[replica])
            assert events[1]["by_s"] == pytest.approx(ahead_s, abs=0.1)
            assert store.clock.spread_s() == pytest.approx(20, abs=0.1)
            assert await store.tasks.create([a_task(id=f"t{number}") for number in range(64)]) == [True] * 64


@pytest.mark.system
async def test_a_node_that_does_not_answer_is_counted_for_ten_seconds(tmp_path: Path) -> None:
    with run_cluster(tmp_path, 2, replicas=0) as service:
        slow, fast = service.first_primaries
        async with shift_clocks(service, {slow: 0, fast: 300}) as proxies, store_at([proxies[slow]], []) as store:
            await store.client.open()
            with service.pause(fast):
                await asyncio.sleep(5)
                assert store.clock.spread_s() == pytest.approx(0.3, abs=0.05)
                await eventually(lambda: store.clock.spread_s() == 0)
            await eventually(lambda: store.clock.spread_s() > 0)
            assert store.clock.spread_s() == pytest.approx(0.3, abs=0.05)
