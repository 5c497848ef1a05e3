"""`POST /query` and `POST /delete`."""

from __future__ import annotations

import json
from typing import Any

from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Task, pack_id
from later.store.types import Claim, ClaimRequest, Settlement
from tests.api.api_fixture import DAY_MS, MINIMAL, Answer, ApiFixture, bad_request, create_result, ok
from tests.builders import NOW, a_task
from tests.cases import each_case

NO_TASK = "no task has the id 'a'"
FAILURE = Failure(1, "status", 503, "503 Service Unavailable", NOW + 1, None, 1)
ID = "1 to 128 characters of A-Za-z0-9._~:-"


def missing(detail: str, **more: object) -> Answer:
    return 404, {"type": "/problems/no-such-task", "title": "No such task", "status": 404, "detail": detail, **more}


async def store(api: ApiFixture, **changes: Any) -> Task:
    """Store a task with the id `a`, without an API call."""
    task = a_task(**{"id": "a", "own_id": True, **changes})
    assert await api.store.tasks.create([task]) == [True]
    return task


async def claim(api: ApiFixture) -> Claim:
    answer = (await api.store.tasks.claim([ClaimRequest("order", 0, 1)], NOW, NOW + 30_000))[0]
    assert not isinstance(answer, Exception)
    return answer.claims[0]


async def settle(api: ApiFixture, verdict: Verdict) -> None:
    settlement = Settlement(await claim(api), verdict, NOW + 7 * DAY_MS)
    assert await api.store.tasks.settle([settlement]) == [True]


async def query(api: ApiFixture) -> dict[str, Any]:
    status, task = await api.post("/query", {"id": "a"})
    assert status == 200
    return dict(task)


async def test_a_task_is_shown_in_the_contracts_order(api: ApiFixture) -> None:
    await store(
        api, created_at=1_504_934_220_500, execute_at=1_504_934_230_000, max_retry=1,
        expires_at=1_504_934_280_500, headers={"X-A": "s3cret"},
    )  # fmt: skip
    async with api.http.post("/query", json={"id": "a"}) as response:
        text = await response.text()
    assert text == json.dumps(
        {
            "id": "a", "topic": "order", "execute_time": 1504934230, "max_retry": 1, "has_retry": 0,
            "callback": "http://127.0.0.1:8888/success", "content": "hello", "creat_time": 1504934220,
            "state": "delay", "due_at": "2017-09-09T05:17:10.000Z", "attempts": 0, "last_error": None,
            "headers": ["X-A"], "expires_at": "2017-09-09T05:18:00.500Z",
        },
        separators=(",", ":"),
    )  # fmt: skip


async def test_execute_time_is_rounded_up(api: ApiFixture) -> None:
    await store(api, execute_at=NOW + 1)
    assert (await query(api))["execute_time"] == NOW // 1000 + 1


async def test_a_task_in_unack_shows_its_lease(api: ApiFixture) -> None:
    await store(api)
    await claim(api)
    task = await query(api)
    assert (task["state"], task["due_at"], task["attempts"]) == ("unack", "2027-01-15T08:00:30.000Z", 1)


async def test_a_task_in_error_shows_its_failure_and_next_attempt(api: ApiFixture) -> None:
    await store(api)
    await settle(api, Verdict(SettleTarget.ERROR, NOW + 10_000, FAILURE))
    task = await query(api)
    assert (task["state"], task["due_at"], task["has_retry"]) == ("error", "2027-01-15T08:00:10.000Z", 1)
    assert task["last_error"] == {
        "reason": "status",
        "status": 503,
        "message": "503 Service Unavailable",
        "at": "2027-01-15T08:00:00.001Z",
    }


async def test_a_dead_task_shows_when_it_died_and_no_due_time(api: ApiFixture) -> None:
    await store(api, max_retry=0)
    await settle(api, Verdict(SettleTarget.DEAD, NOW + 1, FAILURE))
    task = await query(api)
    assert (task["state"], task["died_at"], task["has_retry"]) == ("dead", "2027-01-15T08:00:00.001Z", 0)
    assert "due_at" not in task


async def test_a_task_with_an_unreadable_body_shows_the_rest(api: ApiFixture) -> None:
    await store(api)
    redis = api.client._redis
    await redis.hset("{later:0}:pool", pack_id("a"), b"\xc1")
    assert await query(api) == {
        "id": "a", "topic": "order", "execute_time": None, "max_retry": None, "has_retry": 0, "callback": None,
        "content": None, "creat_time": None, "state": "delay", "due_at": "2027-01-15T08:00:00.000Z",
        "attempts": 0, "last_error": None,
    }  # fmt: skip


@each_case("path", ["/query", "/delete"])
async def test_an_unknown_id_is_404(api: ApiFixture, path: str) -> None:
    assert await api.post(path, {"id": "a"}) == missing(NO_TASK)


async def test_an_id_that_has_ended_is_404_and_says_so(api: ApiFixture) -> None:
    await store(api)
    await settle(api, Verdict(SettleTarget.DONE, NOW))
    assert await api.post("/query", {"id": "a"}) == missing(f"{NO_TASK}: it has ended", ended=True)


async def test_a_task_is_deleted(api: ApiFixture) -> None:
    await store(api)
    assert await api.post("/delete", {"id": "a"}) == (200, {"id": "a"})
    assert await api.post("/query", {"id": "a"}) == missing(NO_TASK)


async def test_a_delete_says_that_the_task_was_in_flight(api: ApiFixture) -> None:
    await store(api)
    await claim(api)
    assert await api.post("/delete", {"id": "a"}) == (200, {"id": "a", "in_flight": True})
    assert await api.post("/query", {"id": "a"}) == missing(NO_TASK)


async def test_a_deleted_id_may_be_created_again(api: ApiFixture) -> None:
    for _ in range(2):
        assert await api.post("/create", {**MINIMAL, "id": "a"}) == ok(**create_result("a"))
        assert (await api.post("/delete", {"id": "a"}))[0] == 200


async def test_an_ended_id_that_was_deleted_may_be_created_again(api: ApiFixture) -> None:
    await store(api)
    await settle(api, Verdict(SettleTarget.DONE, NOW))
    assert await api.post("/create", {**MINIMAL, "id": "a"}) == (200, {"id": "a", "created": False})
    assert await api.post("/delete", {"id": "a"}) == (200, {"id": "a", "ended": True})
    assert await api.post("/create", {**MINIMAL, "id": "a"}) == ok(**create_result("a"))


async def test_an_ended_id_is_deleted_once(api: ApiFixture) -> None:
    await store(api)
    await settle(api, Verdict(SettleTarget.DONE, NOW))
    assert await api.post("/delete", {"id": "a"}) == (200, {"id": "a", "ended": True})
    assert await api.post("/delete", {"id": "a"}) == missing(NO_TASK)


@each_case(
    ("body", "detail", "field"),
    [
        ({}, f"id: expected {ID}, got nothing", "id"),
        ({"id": None}, f"id: expected {ID}, got nothing", "id"),
        ({"id": 5}, f"id: expected {ID}, got 5", "id"),
        ({"id": ["a"]}, f"id: expected {ID}, got an array", "id"),
        ({"id": ""}, f'id: expected {ID}, got ""', "id"),
        ({"id": "a/b"}, f'id: expected {ID}, got "a/b"', "id"),
        ({"id": "é"}, f'id: expected {ID}, got "é"', "id"),
        ({"id": "\ud800"}, "id: expected Unicode text, got a lone surrogate in it", "id"),
        ({"id": "a", "topic": "order"}, "topic: unknown field", "topic"),
        ({"ids": ["a"]}, "ids: unknown field; did you mean id?", "ids"),
    ],
)
@each_case("path", ["/query", "/delete"])
async def test_a_body_without_an_id_is_refused(
    api: ApiFixture, path: str, body: object, detail: str, field: str
) -> None:
    assert await api.post(path, body) == bad_request(detail, field)
