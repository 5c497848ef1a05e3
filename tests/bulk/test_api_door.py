"""The API from a bulk job's side: the real one, on a store in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from later.bulk.transport.api import ApiTransport
from later.client.http import CallFailed, Client
from later.client.transport import BatchResult, Counts, ItemError, TaskStatus, Unavailable
from later.core.policy import Policy
from later.core.task import pack_id
from tests.api.front import ids_of_shards
from tests.api.states import STATES, put
from tests.bulk.answers import Served, served
from tests.bulk.validation import CALLBACK

BAD = ItemError(400, "delay", "delay: expected a number of seconds ≥ 0, got -5")
GONE = ItemError(503, None, "the store is gone")


@pytest.fixture
def api() -> Iterator[Served]:
    with served() as api:
        yield api


def transport(api: Served, job: str = "j", path: str = "") -> ApiTransport:
    return ApiTransport(Client(api.url + path, 5, lambda: 0.0), job)


def body(id: str, **changes: Any) -> bytes:
    return json.dumps({"id": id, "topic": "order", "callback": CALLBACK, **changes}).encode()


def test_what_is_created_is_there(api: Served) -> None:
    assert transport(api).create([body("j:1"), body("j:2", delay=60)]) == BatchResult(2, 0, {})
    assert transport(api).find(["j:1", "j:2", "j:3"]) == [TaskStatus.PENDING, TaskStatus.PENDING, TaskStatus.MISSING]


def test_what_is_there_already_is_not_made_again(api: Served) -> None:
    transport(api).create([body("j:1")])
    assert transport(api).create([body("j:1"), body("j:2"), body("j:2")]) == BatchResult(1, 2, {})


def test_what_is_wrong_is_told_by_its_place_and_the_others_are_created(api: Served) -> None:
    came = transport(api).create(
        [b"nope", body("j:1"), body("j:2", delay=-5), b'{"topic":"caf\xe9"}', b"[]", body("j:3")]
    )
    assert (came.created, came.existing, sorted(came.wrong)) == (2, 0, [0, 2, 3, 4])
    assert came.wrong[2] == BAD
    assert came.wrong[3] == ItemError(400, None, "expected UTF-8, got the byte 0xe9 at position 13")
    assert not any(fault.may_pass for fault in came.wrong.values())


def test_judging_says_what_would_be_refused_and_creates_nothing(api: Served) -> None:
    assert transport(api).judge([body("j:1"), body("j:2", delay=-5)]) == BatchResult(0, 0, {1: BAD})
    assert transport(api).find(["j:1"]) == [TaskStatus.MISSING]
    assert transport(api).counts() == Counts()


def test_a_job_is_counted_exactly_whatever_was_sent_twice(api: Served) -> None:
    for _ in range(3):
        transport(api).create([body("j:1"), body("j:2"), body("j:3", delay=-5)])
    assert transport(api).counts() == Counts(created=2, existing=0, refused=1)


@pytest.mark.parametrize("job", ["a:b", "~._-", "x" * 107])
def test_a_job_may_be_called_whatever_an_id_may_begin_with(job: str, api: Served) -> None:
    transport(api, job).create([body(f"{job}:1")])
    assert transport(api, job).counts() == Counts(created=1)
    assert transport(api, "another").counts() == Counts()


def test_the_daemons_policies_apply() -> None:
    with served(policy=Policy(delays=False)) as api:
        came = transport(api).create([body("j:1", delay=5), body("j:2")])
    assert (came.created, came.wrong[0].field) == (1, "delay")


def test_an_item_larger_than_a_body_may_be_is_refused_alone() -> None:
    with served(max_body=200) as api:
        came = transport(api).create([body("j:1"), body("j:2", content="x" * 200)])
    assert came == BatchResult(1, 0, {1: ItemError(413, None, "expected a body of at most 200 bytes")})


def test_a_batch_larger_than_a_request_may_be_goes_in_halves(api: Served) -> None:
    large = [body(f"j:{number}", content="x" * 1_000_000) for number in range(20)]
    assert transport(api).create(large) == BatchResult(20, 0, {})
    assert transport(api).counts() == Counts(created=20)


def test_items_of_a_shard_that_is_away_may_pass() -> None:
    with served(shards=2) as api:
        here, gone = ids_of_shards(api.front)
        api.front.client.away = [1]
        assert transport(api, here).create([body(here), body(gone)]) == BatchResult(1, 0, {1: GONE})
        assert transport(api).find([here, gone]) == [TaskStatus.PENDING, GONE]
        api.front.client.away = []
        assert transport(api, here).create([body(gone)]) == BatchResult(1, 0, {})
        assert transport(api, here).counts() == Counts(created=2)


def test_a_store_that_is_away_leaves_it_unknown_and_to_be_asked_again(api: Served) -> None:
    api.front.client.away = [0]
    used = transport(api)
    calls = [lambda: used.create([body("a")]), lambda: used.find(["a"]), lambda: used.cancel(["a"]), used.counts]
    for call in calls:
        with pytest.raises(Unavailable, match="the store is gone") as unreached:
            call()
        assert unreached.value.again_ms is not None


def test_where_nothing_of_later_is_it_ends_at_once(api: Served) -> None:
    with pytest.raises(CallFailed) as failed:
        transport(api, path="/elsewhere").create([body("j:1")])
    assert failed.value.status == 404


def test_what_is_pending_is_cancelled_and_the_rest_stays(api: Served) -> None:
    for state in STATES:
        api.run(put(api.front, state))
    remembered = ("ZADD", api.front.keys.shards[0].done, 9_000_000_000_000_000, pack_id("ended"))
    api.run(api.front.client.execute("test", remembered))
    pending = dict.fromkeys(("delay", "unack", "error"), TaskStatus.PENDING)
    there = {**pending, "dead": TaskStatus.DEAD, "ended": TaskStatus.ENDED, "never": TaskStatus.MISSING}

    assert transport(api).find(list(there)) == list(there.values())
    assert transport(api).cancel(list(there)) == list(there.values())
    assert transport(api).find(list(there)) == [TaskStatus.MISSING] * 3 + [
        TaskStatus.DEAD,
        TaskStatus.ENDED,
        TaskStatus.MISSING,
    ]


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_machine_can_have_is_one_that_does_not_answer(host: str) -> None:
    with pytest.raises(Unavailable, match="did not answer"):
        ApiTransport(Client(f"http://{host}:1", 1, lambda: 0.0), "j").counts()
