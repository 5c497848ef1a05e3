"""The transport over HTTP, to the real API on a store in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from later.client.api_transport import ApiTransport
from later.client.http import ApiClient
from later.client.transport import TOO_LARGE, BatchResult, CreateCounts, ItemError, TaskStatus
from later.core.errors import CallFailed, Unavailable
from later.core.policy import Policy
from later.core.task import pack_id
from tests.api.api_fixture import id_per_shard
from tests.api.states import STATES, put_task
from tests.bulk.validation import CALLBACK
from tests.cases import each_case
from tests.client.api_servers import ApiServer, api_server

BAD = ItemError(400, "delay", "delay: expected a number of seconds ≥ 0, got -5")
GONE = ItemError(503, None, "the store is gone")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as api:
        yield api


@pytest.fixture
def transport(api: ApiServer) -> Iterator[ApiTransport]:
    with open_transport(api) as transport:
        yield transport


@contextmanager
def open_transport(api: ApiServer, job: str = "j", path: str = "") -> Iterator[ApiTransport]:
    transport = ApiTransport(ApiClient(api.url + path, 5, lambda: 0.0), job)
    try:
        yield transport
    finally:
        transport.close()


def task_body(id: str, **changes: Any) -> bytes:
    return json.dumps({"id": id, "topic": "order", "callback": CALLBACK, **changes}).encode()


def test_created_tasks_exist(transport: ApiTransport) -> None:
    assert transport.create([task_body("j:1"), task_body("j:2", delay=60)]) == BatchResult(2, [], {})
    assert transport.query(["j:1", "j:2", "j:3"]) == [TaskStatus.PENDING, TaskStatus.PENDING, TaskStatus.MISSING]


def test_an_existing_task_is_not_created_again(transport: ApiTransport) -> None:
    transport.create([task_body("j:1")])
    bodies = [task_body("j:1"), task_body("j:2"), task_body("j:2")]
    assert transport.create(bodies) == BatchResult(1, [0, 2], {})


def test_a_bad_item_is_reported_by_position_and_fails_no_other(transport: ApiTransport) -> None:
    bodies = [b"nope", task_body("j:1"), task_body("j:2", delay=-5), b'{"topic":"caf\xe9"}', b"[]", task_body("j:3")]
    result = transport.create(bodies)
    assert (result.created, result.existing, sorted(result.errors)) == (2, [], [0, 2, 3, 4])
    assert result.errors[2] == BAD
    assert result.errors[3] == ItemError(400, None, "expected UTF-8, got the byte 0xe9 at position 13")
    assert not any(error.is_retryable for error in result.errors.values())


def test_validation_reports_errors_and_creates_nothing(transport: ApiTransport) -> None:
    assert transport.validate([task_body("j:1"), task_body("j:2", delay=-5)]) == BatchResult(0, [], {1: BAD})
    assert transport.query(["j:1"]) == [TaskStatus.MISSING]
    assert transport.counts() == CreateCounts()


def test_a_job_is_counted_exactly_although_batches_are_repeated(transport: ApiTransport) -> None:
    for _ in range(3):
        transport.create([task_body("j:1"), task_body("j:2"), task_body("j:3", delay=-5)])
    assert transport.counts() == CreateCounts(created=2, existing=0, refused=1)


@pytest.mark.parametrize("job", ["a:b", "~._-", "x" * 107])
def test_a_job_may_have_any_name_that_an_id_may_begin_with(job: str, api: ApiServer) -> None:
    with open_transport(api, job) as transport, open_transport(api, "another") as other:
        transport.create([task_body(f"{job}:1")])
        assert transport.counts() == CreateCounts(created=1)
        assert other.counts() == CreateCounts()


def test_without_a_job_nothing_is_counted(api: ApiServer, transport: ApiTransport) -> None:
    jobless = ApiTransport(ApiClient(api.url, 5, lambda: 0.0))
    assert jobless.create([task_body("j:1")]) == BatchResult(1, [], {})
    jobless.close()
    assert transport.counts() == CreateCounts()


def test_the_daemons_policies_apply() -> None:
    with api_server(policy=Policy(delays=False)) as api, open_transport(api) as transport:
        result = transport.create([task_body("j:1", delay=5), task_body("j:2")])
    assert (result.created, result.errors[0].field) == (1, "delay")


def test_an_item_that_is_too_large_is_rejected_alone() -> None:
    with api_server(max_body=200) as api, open_transport(api) as transport:
        result = transport.create([task_body("j:1"), task_body("j:2", content="x" * 200)])
    assert result == BatchResult(1, [], {1: ItemError(413, None, "expected a body of at most 200 bytes")})


def test_a_batch_that_is_too_large_for_a_request_fails(transport: ApiTransport) -> None:
    large = [task_body(f"j:{number}", content="x" * 1_000_000) for number in range(20)]
    with pytest.raises(CallFailed) as failure:
        transport.create(large)
    assert failure.value.status == TOO_LARGE
    assert transport.create(large[:10]) == BatchResult(10, [], {})
    assert transport.create(large[10:]) == BatchResult(10, [], {})
    assert transport.counts() == CreateCounts(created=20)


def test_items_of_an_unavailable_shard_are_retryable() -> None:
    with api_server(shards=2) as api:
        up, down = id_per_shard(api.fixture)
        with open_transport(api, up) as transport:
            api.fixture.client.shards_down = [1]
            assert transport.create([task_body(up), task_body(down)]) == BatchResult(1, [], {1: GONE})
            assert transport.query([up, down]) == [TaskStatus.PENDING, GONE]
            api.fixture.client.shards_down = []
            assert transport.create([task_body(down)]) == BatchResult(1, [], {})
            assert transport.counts() == CreateCounts(created=2)


def test_every_call_reports_an_unavailable_store(api: ApiServer, transport: ApiTransport) -> None:
    api.fixture.client.shards_down = [0]
    calls = [
        lambda: transport.create([task_body("a")]),
        lambda: transport.query(["a"]),
        lambda: transport.cancel(["a"]),
        transport.counts,
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="the store is gone") as unavailable:
            call()
        assert unavailable.value.retry_after_ms is not None


def test_another_path_fails_at_once(api: ApiServer) -> None:
    with open_transport(api, path="/elsewhere") as transport, pytest.raises(CallFailed) as failed:
        transport.create([task_body("j:1")])
    assert failed.value.status == 404
    assert not isinstance(failed.value, Unavailable)


def test_only_pending_tasks_are_cancelled(api: ApiServer, transport: ApiTransport) -> None:
    for state in STATES:
        api.run(put_task(api.fixture, state))
    remembered = ("ZADD", api.fixture.keys.shards[0].done, 9_000_000_000_000_000, pack_id("ended"))
    api.run(api.fixture.client.execute("test", remembered))
    pending = dict.fromkeys(("delay", "unack", "error"), TaskStatus.PENDING)
    statuses = {**pending, "dead": TaskStatus.DEAD, "ended": TaskStatus.ENDED, "never": TaskStatus.MISSING}

    assert transport.query(list(statuses)) == list(statuses.values())
    assert transport.cancel(list(statuses)) == list((statuses | {"unack": TaskStatus.IN_FLIGHT}).values())
    afterwards = statuses | dict.fromkeys(pending, TaskStatus.MISSING)
    assert transport.query(list(statuses)) == list(afterwards.values())


@each_case("host", ["a..b", "a" * 64])
def test_an_impossible_host_name_counts_as_no_answer(host: str) -> None:
    with pytest.raises(Unavailable, match="did not answer"):
        ApiTransport(ApiClient(f"http://{host}:1", 1, lambda: 0.0), "j").counts()
