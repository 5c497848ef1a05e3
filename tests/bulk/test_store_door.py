"""The store from a bulk job's side, without a daemon: the same decisions, and what is known when it goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from later.bulk.input.payload import Payloads
from later.bulk.sending import BatchSender, RetryPolicy
from later.bulk.transport.store import MAX_BODY, StoreTransport
from later.client.transport import BatchResult, Counts, ItemError, TaskStatus, Unavailable
from later.core.errors import LaterError
from later.core.policy_scopes import PolicyScope as PolicyPlace
from later.core.policy_scopes import namespace_scope, topic_scope
from later.core.task import pack_id
from later.store.keys import Bucket
from later.store.settings import StoreSettings
from tests.bulk.conftest import Stored, a_store, lay_out
from tests.bulk.validation import CALLBACK
from tests.servers import run_server

BAD = ItemError(400, "delay", "delay: expected a number of seconds ≥ 0, got -5")
JOB = "j"


@pytest.fixture
def transport(stored: Stored) -> Iterator[StoreTransport]:
    transport = StoreTransport(stored.place, JOB)
    yield transport
    transport.close()


def body(id: str, **changes: Any) -> bytes:
    return json.dumps({"id": id, "topic": "order", "callback": CALLBACK, **changes}).encode()


def bodies(count: int) -> list[bytes]:
    return [body(f"j:{number}") for number in range(count)]


def set_policy(stored: Stored, place: PolicyPlace, **fields: Any) -> None:
    """As a daemon is told to."""

    async def change() -> None:
        memory = a_store(stored.place, len(stored.keys.shards))
        await memory.policies.change(place, lambda before: before.merge(fields))
        await memory.client.aclose()

    asyncio.run(change())


class TestCreating:
    def test_what_is_created_is_there(self, transport: StoreTransport, stored: Stored) -> None:
        assert transport.create(bodies(300)) == BatchResult(300, 0, {})
        assert stored.tasks() == 300
        assert transport.find(["j:0", "j:299", "j:300"]) == [TaskStatus.PENDING, TaskStatus.PENDING, TaskStatus.MISSING]

    def test_what_is_there_already_is_not_made_again(self, transport: StoreTransport) -> None:
        transport.create(bodies(3))
        assert transport.create([*bodies(5), body("j:4")]) == BatchResult(2, 4, {})

    def test_what_is_wrong_is_told_by_its_place_and_the_others_are_created(self, transport: StoreTransport) -> None:
        large = body("j:2", content="x" * MAX_BODY)
        came = transport.create([b"nope", body("j:1"), large, body("j:3", delay=-5), b'"\xe9', body("j:4")])
        assert (came.created, came.existing, sorted(came.wrong)) == (2, 0, [0, 2, 3, 4])
        assert came.wrong[2] == ItemError(413, None, f"expected a body of at most {MAX_BODY} bytes")
        assert came.wrong[3] == BAD
        assert not any(fault.may_pass for fault in came.wrong.values())

    def test_nothing_but_what_is_wrong_is_told_of_too(self, transport: StoreTransport) -> None:
        assert transport.create([body("j:1", delay=-5)]) == BatchResult(0, 0, {0: BAD})
        assert transport.create([]) == BatchResult(0, 0, {})

    def test_judging_creates_nothing(self, transport: StoreTransport, stored: Stored) -> None:
        assert transport.judge([body("j:1"), body("j:2", delay=-5)]) == BatchResult(0, 0, {1: BAD})
        assert stored.tasks() == 0
        assert transport.counts() == Counts()

    def test_the_stores_time_is_asked_for_again_with_each_batch(
        self, transport: StoreTransport, stored: Stored
    ) -> None:
        asked = _asked_for_time(stored)
        for _ in range(5):
            transport.create([body("j:1")])
        assert _asked_for_time(stored) >= asked + 5

    def test_no_task_is_early(self, transport: StoreTransport, stored: Stored) -> None:
        seconds, micros = stored.redis.time()
        transport.create([body("j:1", delay=60)])
        due = stored.redis.zscore(stored.keys.shard_of("j:1").bucket(Bucket.DELAY, b"order"), pack_id("j:1"))
        assert due is not None
        assert due >= seconds * 1000 + micros / 1000 + 60_000


def test_policies_that_are_set_in_the_store_apply(stored: Stored) -> None:
    set_policy(stored, topic_scope("order"), delays=False)
    set_policy(stored, namespace_scope("n"), max_delay=10)
    transport = StoreTransport(stored.place, JOB)
    came = transport.create([
        body("j:1", delay=5), body("j:2"), body("j:3", topic="n/t", delay=11), body("j:4", topic="n/t", delay=10),
    ])  # fmt: skip
    transport.close()
    assert (came.created, came.wrong) == (2, {
        0: ItemError(400, "delay", "delay: expected none, for the topic's policy allows no delays"),
        2: ItemError(400, "delay", "Exceeds max allowed delivery delay of 10000 milliseconds"),
    })  # fmt: skip


class TestCounting:
    def test_a_job_is_counted_exactly_whatever_was_sent_twice(self, transport: StoreTransport) -> None:
        for _ in range(3):
            transport.create([*bodies(3), body("j:3", delay=-5)])
        assert transport.counts() == Counts(created=3, existing=0, refused=1)

    def test_a_job_of_which_nobody_has_heard_has_come_to_nothing(self, transport: StoreTransport) -> None:
        assert transport.counts() == Counts()

    @pytest.mark.parametrize("shards", [16], indirect=True)
    def test_items_that_fail_are_sent_again_and_counted_once(self, transport: StoreTransport, stored: Stored) -> None:
        broken = stored.keys.shards[3].pool
        stored.redis.set(broken, "no hash")

        def mend(pause: float) -> None:
            stored.redis.delete(broken)

        ids = [f"j:{number}" for number in range(300)]
        lines = Payloads([*bodies(300), body("j:300", delay=-5)], [*ids, "j:300"], None)
        (sent,) = BatchSender(transport, RetryPolicy(1, mend), batch=1000).create(lines)
        assert (sent.created, sent.existing, len(sent.rejects)) == (300, 0, 1)
        assert stored.tasks() == 300
        assert transport.counts() == Counts(created=300, existing=0, refused=1)


class TestCancelling:
    def test_what_is_pending_goes_and_the_rest_stays(self, transport: StoreTransport, stored: Stored) -> None:
        transport.create(bodies(3))
        _bury(stored, "j:1")
        stored.redis.zadd(stored.keys.shard_of("j:7").done, {pack_id("j:7"): 9e15})
        there = {"j:0": TaskStatus.PENDING, "j:1": TaskStatus.DEAD, "j:7": TaskStatus.ENDED, "j:9": TaskStatus.MISSING}

        assert transport.find(list(there)) == list(there.values())
        assert transport.cancel(list(there)) == list(there.values())
        assert transport.find(list(there)) == [
            TaskStatus.MISSING,
            TaskStatus.DEAD,
            TaskStatus.ENDED,
            TaskStatus.MISSING,
        ]


class TestAStoreThatIsAway:
    def test_one_that_is_full_may_have_room_later(self, transport: StoreTransport, stored: Stored) -> None:
        stored.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(Unavailable, match="the store's memory is full"):
                transport.create([body("j:1")])
        finally:
            stored.redis.config_set("maxmemory", 0)
        assert transport.create([body("j:1")]) == BatchResult(1, 0, {})
        assert transport.counts() == Counts(created=1)

    def test_one_that_ends_in_the_middle_leaves_it_unknown_and_the_door_closes(self, tmp_path: Path) -> None:
        with run_server("valkey", tmp_path) as (url, process):
            place = StoreSettings(url=url, prefix="later", timeout_s=10)
            asyncio.run(lay_out(place, 1))
            transport = StoreTransport(place, JOB)
            transport.create([body("j:1")])
            process.kill()
            process.wait()
            calls: list[Callable[[], object]] = [
                lambda: transport.create([body("j:2")]),
                lambda: transport.find(["j:1"]),
                lambda: transport.cancel(["j:1"]),
                transport.counts,
            ]
            for call in calls:
                with pytest.raises(Unavailable, match="the store cannot be reached"):
                    call()
            transport.close()

    def test_one_that_is_not_there_cannot_be_opened_now(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="the store cannot be reached"):
            StoreTransport(StoreSettings(url=f"unix://{tmp_path}/none", prefix="later", timeout_s=10), JOB)

    def test_one_that_no_daemon_has_laid_out_is_left_alone(self, stored: Stored) -> None:
        with pytest.raises(LaterError, match='would begin with "other"') as failed:
            StoreTransport(StoreSettings(url=stored.place.url, prefix="other", timeout_s=10), JOB)
        assert not isinstance(failed.value, Unavailable)
        assert stored.redis.keys("other*") == []


def _asked_for_time(stored: Stored) -> int:
    stats: Any = stored.redis.info("commandstats")
    return int(stats["cmdstat_time"]["calls"])


def _bury(stored: Stored, id: str) -> None:
    """As a worker does whose receiver answers 410."""
    shard = stored.keys.shard_of(id)
    stored.redis.zrem(shard.bucket(Bucket.DELAY, b"order"), pack_id(id))
    stored.redis.zadd(shard.bucket(Bucket.DEAD, b"order"), {pack_id(id): time.time() * 1000})
