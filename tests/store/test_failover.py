"""After a failover to a replica that lags, a delivery that the replica knows nothing of cannot change the task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from later.core.edit import TaskChanges
from later.core.errors import LaterError
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.store.keys import Bucket
from later.store.types import Claim, Deletion, TaskEdit
from tests.builders import NOW, a_task
from tests.servers import SERVERS, ReplicatedServer, run_replicated_server
from tests.store.inspection import assert_sound, claim_due, died, done, failed, locate, read_contents
from tests.store_fixture import StoreFixture, open_as_it_is, open_store

pytestmark = pytest.mark.system

RETRY_AT = NOW + 10_000
Verb = Callable[[StoreFixture, Claim], Awaitable[list[bool | LaterError]]]
LATE_VERBS: dict[str, Verb] = {
    "done": lambda store, claim: store.tasks.settle([done(claim)]),
    "failed": lambda store, claim: store.tasks.settle([failed(claim, RETRY_AT + 1)]),
    "died": lambda store, claim: store.tasks.settle([died(claim)]),
    "given back": lambda store, claim: store.tasks.give_back([claim]),
}


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplicatedServer]:
    with run_replicated_server(request.param, tmp_path) as server:
        yield server


@pytest.fixture
async def lost(server: ReplicatedServer) -> Claim:
    """A claim of the task "a", which the replica has in delay: it was cut off before the claim."""
    async with open_store(server.primary_url) as primary:
        await primary.tasks.create([a_task(id="a", own_id=True)])
        server.wait_for_replica()
        server.cut_link()
        [claim] = await claim_due(primary)
    server.fail_over()
    return claim


@pytest.fixture
async def store(server: ReplicatedServer, lost: Claim) -> AsyncIterator[StoreFixture]:
    """The replica, promoted, which knows nothing of the claim."""
    async with open_as_it_is(server.replica_url) as store:
        yield store


async def delete_and_create(store: StoreFixture) -> None:
    assert await store.edits.delete(["a"]) == [Deletion("a", topic="order")]
    assert await store.tasks.create([a_task(id="a", own_id=True, content="new")]) == [True]


async def update(store: StoreFixture) -> None:
    [record] = await store.edits.update([TaskEdit("a", TaskChanges(content="new"), Policies(Policy()), NOW)])
    assert not isinstance(record, LaterError)


@pytest.mark.parametrize("late", LATE_VERBS.values(), ids=LATE_VERBS)
@pytest.mark.parametrize("renew", [delete_and_create, update])
async def test_a_late_settle_of_a_claim_that_a_failover_lost_leaves_the_new_task_alone(
    store: StoreFixture, lost: Claim, renew: Callable[[StoreFixture], Awaitable[None]], late: Verb
) -> None:
    await renew(store)
    [present] = await claim_due(store)
    before = await read_contents(store)
    assert await late(store, lost) == [False]
    assert await read_contents(store) == before
    assert await store.tasks.settle([failed(present, RETRY_AT)]) == [True]
    assert await locate(store, "a") == (Bucket.ERROR, RETRY_AT)
    await assert_sound(store)
