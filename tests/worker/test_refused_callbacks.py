"""Tasks whose callback the address guard refuses, from a store to which somebody wrote past the API's check."""

from __future__ import annotations

from later.core.address_guard import AddressGuard
from later.core.admit import admit
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.store.keys import Bucket
from later.store.types import BucketRange
from tests.builders import NOW, a_draft
from tests.receivers import DONE, Receiver, a_sender, answers
from tests.store_fixture import StoreFixture
from tests.worker.workers import ManualWorker


async def test_the_guard_holds_at_the_call_and_a_redrive_by_its_reason_finds_the_task(store: StoreFixture) -> None:
    guard = AddressGuard(is_own=lambda address: False)
    async with Receiver(answers(DONE)).listen() as receiver, a_sender(guard=guard) as sender:
        # as a bulk job does that has the store's URL
        task = admit(a_draft(callback=receiver.url, retry=1), Policies(Policy()), NOW, "a")
        await store.tasks.create([task])
        worker = ManualWorker(store, sender.sender)
        await worker.work()
        waiting = await worker.find(task)
        assert (waiting.state, waiting.failure and waiting.failure.reason) == (Bucket.ERROR, "address")
        await worker.work_until(NOW + 11_000, step=500)
        dead = await worker.find(task)
        assert dead.failure is not None
        assert (dead.state, dead.failure.reason, dead.failure.failures) == (Bucket.DEAD, "address", 2)
        assert dead.failure.message == "2 failures, the last: this host's address may not be called: loopback"
        assert receiver.connections == 0
        guard.is_on = False
        moved = await store.dead_letters.redrive(
            BucketRange(task.topic, Bucket.DEAD, before=worker.at), now=worker.at, reason="address", rate=None
        )
        await worker.work()
    assert (moved.moved, receiver.connections) == (1, 1)
    assert await worker.is_gone(task)
