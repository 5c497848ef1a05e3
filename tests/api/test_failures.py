"""The last failures of a task in `/query` and `/explain`, and in what is made of it when it dies."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from later.core.clock import Clock, rfc3339
from later.core.past_failures import PastFailure
from later.core.retry import Failure
from tests.api.api_fixture import ApiFixture, ok, serve_api
from tests.api.states import put_task
from tests.builders import NOW

FAILED_TWICE = Failure(
    2, "timeout", None, "no answer within 15 s", NOW - 60_000, None, 2, 15_004,
    (PastFailure(1, NOW - 90_000, "status", 500, 12, "answered 500"),),
)  # fmt: skip
FAILURES = [
    {"attempt": 1, "at": rfc3339(NOW - 90_000), "reason": "status", "status": 500, "took_ms": 12,
     "message": "answered 500"},
    {"attempt": 2, "at": rfc3339(NOW - 60_000), "reason": "timeout", "status": None, "took_ms": 15_004,
     "message": "no answer within 15 s"},
]  # fmt: skip


@pytest.fixture
async def pulled() -> AsyncIterator[ApiFixture]:
    """The API in real time; consumers claim of `jobs`, whose dead move to `failed`, and make tasks of `reports`."""
    async with serve_api(clock=Clock(time.monotonic, time.time), keep_failures=3) as built:
        for topic, fields in {
            "jobs": {"dead_to": "failed", "on_dead": "reports", "retry": 4},
            "failed": {},
            "reports": {},
        }.items():
            assert (await built.request("PATCH", f"/topics/{topic}/policy", {"deliver": "pull", **fields}))[0] == 200
        yield built


async def query(api: ApiFixture, id: str) -> dict[str, Any]:
    status, answer = await api.post("/query", {"id": id})
    assert status == 200, answer
    return dict(answer)


async def fail(api: ApiFixture, topic: str, message: str, **fields: Any) -> None:
    """Claim the task of a topic, and let the attempt fail; the next one may begin at once, if there is one."""
    status, answer = await api.post("/claim", {"topic": topic, "wait": 5})
    assert status == 200, answer
    body = {"leases": [answer["tasks"][0]["lease"]], "message": message, **fields}
    assert await api.post("/nack", body) == ok(nacked=1, lost=[])
    await api.post("/run-now", {"id": "a"})


@pytest.mark.parametrize("state", ["error", "dead"])
async def test_a_query_shows_the_failures_and_a_listing_only_the_last(api: ApiFixture, state: str) -> None:
    await put_task(api, state, failure=FAILED_TWICE)
    assert (await query(api, state))["failures"] == FAILURES
    batch = (await api.post("/query/batch", [{"id": state}]))[1]["results"][0]
    assert batch["failures"] == FAILURES
    [listed] = (await api.post("/list", {"topic": "order", "state": state}))[1]["tasks"]
    assert "failures" not in listed
    assert listed["last_error"]["reason"] == "timeout"


@pytest.mark.parametrize("state", ["delay", "unack"])
async def test_a_task_that_never_failed_has_none(api: ApiFixture, state: str) -> None:
    await put_task(api, state)
    assert "failures" not in await query(api, state)
    assert (await api.post("/explain", {"id": state}))[1]["last_failures"] == []


async def test_an_explanation_shows_them_beside_their_number(api: ApiFixture) -> None:
    await put_task(api, "error", failure=FAILED_TWICE)
    _, explanation = await api.post("/explain", {"id": "error"})
    assert (explanation["last_failures"], explanation["failures"]) == (FAILURES, 2)


async def test_a_redriven_task_begins_without_them(api: ApiFixture) -> None:
    await put_task(api, "dead", failure=FAILED_TWICE)
    await api.post("/redrive", {"id": "dead"})
    assert "failures" not in await query(api, "dead")


async def test_the_last_ones_of_a_consumer_are_kept_as_many_as_the_option_says(pulled: ApiFixture) -> None:
    await pulled.post("/create", {"topic": "jobs", "id": "a"})
    for number in range(1, 4):
        await fail(pulled, "jobs", f"no. {number} {'x' * 200}")
    await pulled.post("/claim", {"topic": "jobs", "wait": 5})
    failures = (await query(pulled, "a"))["failures"]
    assert [failure["attempt"] for failure in failures] == [1, 2, 3]
    assert [len(failure["message"]) for failure in failures] == [80, 80, 206]
    assert {failure["took_ms"] for failure in failures} == {None}


async def test_a_dead_letter_shows_those_of_which_it_died_until_it_fails_there(pulled: ApiFixture) -> None:
    await pulled.post("/create", {"topic": "jobs", "id": "a"})
    await fail(pulled, "jobs", "first", busy=True)
    await fail(pulled, "jobs", "second", dead=True)
    dead = await query(pulled, "a")
    assert (dead["topic"], [failure["message"] for failure in dead["failures"]]) == ("failed", ["first", "second"])
    assert dead["failures"][-1]["reason"] == dead["dead_letter"]["reason"] == "rejected"
    await fail(pulled, "failed", "third")
    assert [failure["message"] for failure in (await query(pulled, "a"))["failures"]] == ["third"]


async def test_a_follow_up_task_says_how_the_attempts_failed(pulled: ApiFixture) -> None:
    await pulled.request("PATCH", "/topics/jobs/policy", {"dead_to": None})
    await pulled.post("/create", {"topic": "jobs", "id": "a"})
    await fail(pulled, "jobs", "first", dead=True)
    await pulled.post("/delete", {"id": "a"})
    _, claimed = await pulled.post("/claim", {"topic": "reports", "wait": 5})
    content = json.loads(claimed["tasks"][0]["content"])
    assert [failure["message"] for failure in content["failures"]] == ["first"]


async def test_what_cannot_be_read_is_no_failure(api: ApiFixture) -> None:
    await put_task(api, "error", failure=FAILED_TWICE)
    await cast("Any", api.redis.hset(api.keys.shards[0].outcome.decode(), "error", "garbage"))
    assert "failures" not in await query(api, "error")
