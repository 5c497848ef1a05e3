"""The transport to the store: the same decisions as the API's, and errors when the store goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from later.bulk.transport.store import StoreTransport
from later.bulk.transport.target import Target
from later.client.batches import BatchSender, RetryPolicy
from later.client.transport import BatchResult, CreateCounts, ItemError, TaskStatus
from later.core.admission_limits import AdmissionLimits
from later.core.errors import LaterError, Unavailable
from later.core.policy import Policy
from later.core.policy_scopes import PolicyScope, namespace_scope, topic_scope
from later.core.task import decode_task, pack_id
from later.store.keys import Bucket
from later.store.settings import StoreSettings
from tests.bulk.conftest import LIMITS, LaidOutStore, build_store, lay_out
from tests.bulk.validation import CALLBACK
from tests.servers import run_server

BAD = ItemError(400, "delay", "delay: expected a number of seconds ≥ 0, got -5")
JOB = "j"


@pytest.fixture
def transport(stored: LaidOutStore) -> Iterator[StoreTransport]:
    transport = StoreTransport(stored.settings, JOB)
    yield transport
    transport.close()


def task_body(id: str, **changes: Any) -> bytes:
    return json.dumps({"id": id, "topic": "order", "callback": CALLBACK, **changes}).encode()


def task_bodies(count: int) -> list[bytes]:
    return [task_body(f"j:{number}") for number in range(count)]


def set_policy(stored: LaidOutStore, scope: PolicyScope, **fields: Any) -> None:
    """Set fields of a policy, as a daemon does."""

    async def change() -> None:
        store = build_store(stored.settings, len(stored.keys.shards))
        await store.policies.change(scope, lambda before: before.merge(fields))
        await store.aclose()

    asyncio.run(change())


class TestCreating:
    def test_created_tasks_exist(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        assert transport.create(task_bodies(300)) == BatchResult(300, [], {})
        assert stored.task_count() == 300
        assert transport.query(["j:0", "j:299", "j:300"]) == [
            TaskStatus.PENDING,
            TaskStatus.PENDING,
            TaskStatus.MISSING,
        ]

    def test_an_existing_task_is_not_created_again(self, transport: StoreTransport) -> None:
        transport.create(task_bodies(3))
        assert transport.create([*task_bodies(5), task_body("j:4")]) == BatchResult(2, [0, 1, 2, 5], {})

    def test_a_bad_item_is_reported_by_position_and_fails_no_other(self, transport: StoreTransport) -> None:
        large = task_body("j:2", content="x" * LIMITS.max_body)
        result = transport.create(
            [b"nope", task_body("j:1"), large, task_body("j:3", delay=-5), b'"\xe9', task_body("j:4")]
        )
        assert (result.created, result.existing, sorted(result.errors)) == (2, [], [0, 2, 3, 4])
        assert result.errors[2] == ItemError(413, None, f"expected a body of at most {LIMITS.max_body} bytes")
        assert result.errors[3] == BAD
        assert not any(error.is_retryable for error in result.errors.values())

    def test_a_task_in_the_reserved_namespace_is_refused(self, transport: StoreTransport) -> None:
        result = transport.create([task_body("j:1", topic="later/events")])
        detail = "topic: expected another one, because the namespace later is reserved"
        assert result == BatchResult(0, [], {0: ItemError(400, "topic", detail)})

    def test_a_batch_of_bad_items_is_reported_too(self, transport: StoreTransport) -> None:
        assert transport.create([task_body("j:1", delay=-5)]) == BatchResult(0, [], {0: BAD})
        assert transport.create([]) == BatchResult(0, [], {})

    def test_validation_creates_nothing(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        assert transport.validate([task_body("j:1"), task_body("j:2", delay=-5)]) == BatchResult(0, [], {1: BAD})
        assert stored.task_count() == 0
        assert transport.counts() == CreateCounts()

    def test_each_batch_measures_the_stores_time(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        calls = _time_calls(stored)
        for _ in range(5):
            transport.create([task_body("j:1")])
        assert _time_calls(stored) >= calls + 5

    def test_no_task_is_early(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        seconds, micros = stored.redis.time()
        transport.create([task_body("j:1", delay=60)])
        due = stored.redis.zscore(stored.keys.shard_of("j:1").bucket(Bucket.DELAY, b"order"), pack_id("j:1"))
        assert due is not None
        assert due >= seconds * 1000 + micros / 1000 + 60_000


def test_policies_set_in_the_store_apply(stored: LaidOutStore) -> None:
    set_policy(stored, topic_scope("order"), delays=False)
    set_policy(stored, namespace_scope("n"), max_delay=10)
    transport = StoreTransport(stored.settings, JOB)
    result = transport.create([
        task_body("j:1", delay=5),
        task_body("j:2"),
        task_body("j:3", topic="n/t", delay=11),
        task_body("j:4", topic="n/t", delay=10),
    ])  # fmt: skip
    transport.close()
    assert (result.created, result.errors) == (2, {
        0: ItemError(400, "delay", "delay: expected none, for the topic's policy allows no delays"),
        2: ItemError(400, "delay", "Exceeds max allowed delivery delay of 10000 milliseconds"),
    })  # fmt: skip


def test_rows_without_a_callback_become_tasks_of_a_topic_that_was_pushed_until_now(stored: LaidOutStore) -> None:
    transport = StoreTransport(stored.settings, JOB)
    rows = [task_body("j:1", callback=None), task_body("j:2", delay=-5)]
    before = transport.validate(rows)
    set_policy(stored, topic_scope("order"), deliver="pull")
    after = transport.create(rows)
    transport.close()
    assert {position: error.field for position, error in before.errors.items()} == {0: "callback", 1: "delay"}
    assert after == BatchResult(1, [], {1: BAD})


class TestAdmissionLimits:
    """Tasks are admitted as by the API of the daemon that wrote its options last."""

    @pytest.fixture
    def limited(self, stored: LaidOutStore) -> Iterator[StoreTransport]:
        policy = Policy(max_delay_ms=60_000, retry=9, ttl_ms=500_000)
        limits = AdmissionLimits(max_body=200, remember_ms=86_400_000, policy=policy)
        asyncio.run(lay_out(stored.settings, len(stored.keys.shards), limits))
        transport = StoreTransport(stored.settings, JOB)
        yield transport
        transport.close()

    def test_a_daemons_options_refuse_what_its_api_refuses(self, limited: StoreTransport) -> None:
        large, late = task_body("j:1", content="x" * 200), task_body("j:2", delay=61)
        errors = {
            0: ItemError(413, None, "expected a body of at most 200 bytes"),
            1: ItemError(400, "delay", "Exceeds max allowed delivery delay of 60000 milliseconds"),
        }
        assert limited.validate([large, late, task_body("j:3", delay=60)]) == BatchResult(0, [], errors)
        assert limited.create([large, late, task_body("j:3", delay=60)]) == BatchResult(1, [], errors)

    def test_a_task_gets_the_daemons_retries_and_ttl(self, limited: StoreTransport, stored: LaidOutStore) -> None:
        limited.create([task_body("j:1")])
        body = stored.redis.hget(stored.keys.shard_of("j:1").pool, pack_id("j:1"))
        assert isinstance(body, bytes)
        task = decode_task("j:1", body)
        assert task.max_retry == 9
        assert task.expires_at == task.created_at + 500_000

    def test_a_job_is_remembered_as_long_as_by_the_daemon(self, limited: StoreTransport, stored: LaidOutStore) -> None:
        before = stored.redis.time()[0] * 1000
        limited.create([task_body("j:1")])
        forget_at = stored.redis.zscore(stored.keys.shard_of("j:1").jobs, JOB)
        assert forget_at is not None
        assert 0 <= forget_at - before - 86_400_000 < 60_000

    def test_policies_in_the_store_go_before_the_daemons(self, stored: LaidOutStore, limited: StoreTransport) -> None:
        set_policy(stored, topic_scope("order"), max_delay=90)
        assert limited.validate([task_body("j:1", delay=89)]) == BatchResult(0, [], {})

    def test_without_a_daemons_limits_tasks_are_read_but_not_created(self, stored: LaidOutStore) -> None:
        stored.redis.hdel("later:meta", "admission")
        transport = StoreTransport(stored.settings, JOB)
        assert transport.query(["j:1"]) == [TaskStatus.MISSING]
        assert transport.counts() == CreateCounts()
        for call in (transport.create, transport.validate):
            with pytest.raises(LaterError, match=r"no daemon has written .* start `later up`") as failed:
                call([task_body("j:1")])
            assert not isinstance(failed.value, Unavailable)
        transport.close()
        assert stored.task_count() == 0

    def test_the_driver_finds_out_before_spark_starts(self, stored: LaidOutStore) -> None:
        target = Target(url=stored.settings.url)
        target.check_admission(JOB)
        stored.redis.hdel("later:meta", "admission")
        with pytest.raises(LaterError, match="no daemon has written"):
            target.check_admission(JOB)


class TestCounting:
    def test_a_job_is_counted_exactly_although_batches_are_repeated(self, transport: StoreTransport) -> None:
        for _ in range(3):
            transport.create([*task_bodies(3), task_body("j:3", delay=-5)])
        assert transport.counts() == CreateCounts(created=3, existing=0, refused=1)

    def test_an_unknown_job_has_no_counts(self, transport: StoreTransport) -> None:
        assert transport.counts() == CreateCounts()

    @pytest.mark.parametrize("shards", [16], indirect=True)
    def test_failed_items_are_repeated_and_counted_once(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        broken = stored.keys.shards[3].pool
        stored.redis.set(broken, "no hash")

        def repair(pause: float) -> None:
            stored.redis.delete(broken)

        sender = BatchSender(transport, RetryPolicy(1, repair), batch_size=1000)
        (sent,) = sender.create([*task_bodies(300), task_body("j:300", delay=-5)])
        assert (sent.created, sent.existing, [*sent.errors]) == (300, [], [300])
        assert stored.task_count() == 300
        assert transport.counts() == CreateCounts(created=300, existing=0, refused=1)


class TestCancelling:
    def test_only_pending_tasks_are_cancelled(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        transport.create(task_bodies(3))
        _make_dead(stored, "j:1")
        stored.redis.zadd(stored.keys.shard_of("j:7").done, {pack_id("j:7"): 9e15})
        statuses = {
            "j:0": TaskStatus.PENDING,
            "j:1": TaskStatus.DEAD,
            "j:7": TaskStatus.ENDED,
            "j:9": TaskStatus.MISSING,
        }

        assert transport.query(list(statuses)) == list(statuses.values())
        assert transport.cancel(list(statuses)) == list(statuses.values())
        afterwards = statuses | {"j:0": TaskStatus.MISSING}
        assert transport.query(list(statuses)) == list(afterwards.values())


class TestUnavailableStore:
    def test_a_full_store_is_unavailable(self, transport: StoreTransport, stored: LaidOutStore) -> None:
        stored.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(Unavailable, match="the store's memory is full"):
                transport.create([task_body("j:1")])
        finally:
            stored.redis.config_set("maxmemory", 0)
        assert transport.create([task_body("j:1")]) == BatchResult(1, [], {})
        assert transport.counts() == CreateCounts(created=1)

    def test_a_store_that_dies_is_unavailable_and_the_transport_closes(self, tmp_path: Path) -> None:
        with run_server("valkey", tmp_path) as (url, process):
            settings = StoreSettings(url=url, prefix="later", timeout_s=10)
            asyncio.run(lay_out(settings, 1))
            transport = StoreTransport(settings, JOB)
            transport.create([task_body("j:1")])
            process.kill()
            process.wait()
            calls: list[Callable[[], object]] = [
                lambda: transport.create([task_body("j:2")]),
                lambda: transport.query(["j:1"]),
                lambda: transport.cancel(["j:1"]),
                transport.counts,
            ]
            for call in calls:
                with pytest.raises(Unavailable, match="the store cannot be reached"):
                    call()
            transport.close()

    def test_a_store_that_does_not_answer_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="the store cannot be reached"):
            StoreTransport(StoreSettings(url=f"unix://{tmp_path}/none", prefix="later", timeout_s=10), JOB)

    def test_a_store_that_no_daemon_has_laid_out_is_not_changed(self, stored: LaidOutStore) -> None:
        with pytest.raises(LaterError, match='would begin with "other"') as failed:
            StoreTransport(StoreSettings(url=stored.settings.url, prefix="other", timeout_s=10), JOB)
        assert not isinstance(failed.value, Unavailable)
        assert stored.redis.keys("other*") == []


def _time_calls(stored: LaidOutStore) -> int:
    stats: Any = stored.redis.info("commandstats")
    return int(stats["cmdstat_time"]["calls"])


def _make_dead(stored: LaidOutStore, id: str) -> None:
    """Move a task to the dead letters, as a worker does when its receiver answers 410."""
    shard = stored.keys.shard_of(id)
    stored.redis.zrem(shard.bucket(Bucket.DELAY, b"order"), pack_id(id))
    stored.redis.zadd(shard.bucket(Bucket.DEAD, b"order"), {pack_id(id): time.time() * 1000})
