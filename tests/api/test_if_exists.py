"""`remember` and `if_exists` of `POST /create` and of `/create/batch`: states, answers, counts."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.clock import rfc3339
from later.core.errors import StoreDown
from later.core.if_exists import IfExists
from later.store.keys import Bucket
from later.store.policies import PolicyBook
from later.store.upserts import Upserts
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request, create_result, item_error, ok, serve_api
from tests.api.states import STATES, put_task
from tests.builders import NOW
from tests.cases import each_case

EXPECTED = '"keep", "update" or "error"'
NEEDS_ID = '"keep", or an id of your own with it'
IN_JOB = '"keep", because a bulk job counts each of its tasks once'
IN_FLIGHT = "task 'unack' is in flight: it can be edited if its delivery fails, or deleted now"
DUE_AT = {"delay": NOW + 60_000, "unack": NOW + 30_000, "error": NOW + 30_000}


def body(id: str = "a", if_exists: str | None = None, **fields: Any) -> dict[str, Any]:
    return {**MINIMAL, "id": id, "content": "new", **fields, **({} if if_exists is None else {"if_exists": if_exists})}


async def put(api: ApiFixture, state: str) -> None:
    """Put a task into this state, under its name as id; `ended`: its id is remembered."""
    if state == "ended":
        await api.store.client.execute("test", ("ZADD", api.keys.shard_of("ended").done, NOW + 10**9, b"ended"))
    elif state != "free":
        await put_task(api, state, content="old")


def error(type: str, title: str, detail: str) -> tuple[int, dict[str, Any]]:
    return 409, {"type": f"/problems/{type}", "title": title, "status": 409, "detail": detail}


def answer_to(state: str, if_exists: str) -> tuple[int, dict[str, Any]]:
    """Return the answer to a create of a task that is due at once."""
    due_at = DUE_AT.get(state)
    shown = {} if due_at is None else {"due_at": rfc3339(due_at)}
    if state == "free" or (if_exists == "update" and state in ("dead", "ended")):
        return ok(**create_result(state))
    if if_exists == "keep":
        return ok(id=state, **shown, created=False)
    if if_exists == "error":
        why = f"due at {shown['due_at']}" if shown else "dead, or has ended and the id is remembered"
        return error("exists", "The id is not free", f"the id {state!r} exists: its task is {why}")
    if state == "unack":
        return error("in-flight", "The task is in flight", IN_FLIGHT)
    return ok(id=state, **shown, created=False, updated=True)


@each_case("state", ["free", *STATES, "ended"])
@each_case("if_exists", [*IfExists])
async def test_what_a_create_does_follows_from_the_state_and_its_field(state: str, if_exists: str) -> None:
    async with serve_api() as api:
        await put(api, state)
        expected = answer_to(state, if_exists)
        assert await api.post("/create", body(state, if_exists)) == expected
        _, task = await api.post("/query", {"id": state})
        is_new = expected[1].get("created") or expected[1].get("updated")
        assert task.get("content") == ("new" if is_new else None if state == "ended" else "old")


async def test_an_update_changes_only_what_the_create_says(api: ApiFixture) -> None:
    await api.post("/create", body(content="old", delay=600, retry=7, ttl=900, headers={"X-A": "b"}))
    moved = {**create_result("a", False, delay=60), "updated": True}
    assert await api.post("/create", body(if_exists="update", delay=60)) == ok(**moved)
    _, task = await api.post("/query", {"id": "a"})
    assert (task["content"], task["max_retry"], task["headers"]) == ("new", 7, ["X-A"])
    assert (task["due_at"], task["expires_at"]) == (rfc3339(NOW + 60_000), rfc3339(NOW + 900_000))


async def test_a_task_that_waits_in_another_topic_is_not_updated(api: ApiFixture) -> None:
    await put_task(api, "delay", "a", topic="other")
    detail = "the task 'a' is of the topic 'other': no edit moves it to 'order'"
    assert await api.post("/create", body(if_exists="update", topic="order")) == error(
        "changed", "The present state does not allow it", detail
    )


async def test_an_edit_that_the_policy_has_just_come_to_allow_is_made(api: ApiFixture) -> None:
    await put_task(api, "delay", "a")
    path = "/topics/order/policy"
    assert (await api.request("PATCH", path, {"delay_mode": "queue"}))[0] == 200
    update = body(if_exists="update", topic="order", delay=5)
    reason = "delay: expected none, for the topic's policy ignores a task's own (delay_mode queue)"
    assert await api.post("/create", update) == bad_request(reason, "delay")
    assert (await api.request("PATCH", path, {"delay_mode": "honor"}))[0] == 200
    assert (await api.post("/create", update))[1]["updated"] is True


@each_case(
    ("fields", "detail", "field"),
    [
        ({"if_exists": "replace", "id": "a"}, f'if_exists: expected {EXPECTED}, got "replace"', "if_exists"),
        ({"if_exists": True, "id": "a"}, f"if_exists: expected {EXPECTED}, got true", "if_exists"),
        ({"if_exists": "update"}, f'if_exists: expected {NEEDS_ID}, got "update"', "if_exists"),
        ({"if_exists": "error"}, f'if_exists: expected {NEEDS_ID}, got "error"', "if_exists"),
        ({"remember": -1, "id": "a"}, "remember: expected a number of seconds ≥ 0, got -1", "remember"),
        ({"remember": "1", "id": "a"}, 'remember: expected a number of seconds ≥ 0, got "1"', "remember"),
        ({"remember": 0}, "remember: expected it with an id of your own, because no other is remembered", "remember"),
    ],
)
async def test_a_wrong_field_is_refused(fields: dict[str, Any], detail: str, field: str) -> None:
    async with serve_api() as api:
        assert await api.post("/create", {**MINIMAL, **fields}) == bad_request(detail, field)
        assert await api.get("/topics") == ok(topics=[], cursor=None)


async def test_keep_needs_no_id_and_null_is_absent(api: ApiFixture) -> None:
    assert (await api.post("/create", {**MINIMAL, "if_exists": "keep"}))[0] == 200
    assert (await api.post("/create", {**MINIMAL, "if_exists": None, "remember": None}))[0] == 200


async def test_each_item_of_a_batch_does_as_it_says_in_order(api: ApiFixture) -> None:
    await put_task(api, "unack")
    items = [
        body("a", "update"), body("a", delay=9), body("a", "update", delay=7), body("a", "error"),
        body("b"), body("b", "update", content="newest"), body("c", "error"), body("unack", "update"),
        body("d", "replace"), body("e"),
    ]  # fmt: skip
    before = [api.metric(f"later_tasks_{name}_total") for name in ("created", "duplicate", "refused")]
    status, answer = await api.post("/create/batch", items)
    updated = {"created": False, "updated": True}
    exists = f"the id 'a' exists: its task is due at {rfc3339(NOW + 7000)}"
    assert (status, answer.pop("results")) == (200, [
        create_result("a"),
        create_result("a", False),
        create_result("a", delay=7) | updated,
        item_error(409, exists),
        create_result("b"),
        create_result("b") | updated,
        create_result("c"),
        item_error(409, IN_FLIGHT),
        item_error(400, f'if_exists: expected {EXPECTED}, got "replace"', field="if_exists"),
        create_result("e"),
    ])  # fmt: skip
    assert answer == {"created": 4, "existing": 3, "updated": 2, "refused": 3, "failed": 0}
    after = [api.metric(f"later_tasks_{name}_total") for name in ("created", "duplicate", "refused")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [4, 5, 1]
    assert (await api.post("/query", {"id": "b"}))[1]["content"] == "newest"


async def test_a_dry_run_changes_nothing(api: ApiFixture) -> None:
    await put_task(api, "delay", content="old")
    _, answer = await api.post("/create/batch?dry_run=true", [body("delay", "update"), body("x", "error")])
    assert (answer["created"], answer["refused"]) == (0, 0)
    assert (await api.post("/query", {"id": "delay"}))[1]["content"] == "old"


async def test_a_batch_of_a_job_only_keeps(api: ApiFixture) -> None:
    items = [body("a", "keep"), body("b", "update"), body("c", "error")]
    for _ in range(2):
        _, answer = await api.post("/create/batch?job=j", items)
    assert [result["error"]["detail"] for result in answer["results"][1:]] == [
        f'if_exists: expected {IN_JOB}, got "{value}"' for value in ("update", "error")
    ]
    assert await api.get("/jobs/j") == ok(job="j", created=1, existing=0, refused=2)


async def test_what_was_created_is_known_if_the_store_goes_away_before_the_updates(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(upserts: Upserts, items: object) -> None:
        raise StoreDown("gone")

    monkeypatch.setattr(Upserts, "upsert", fail)
    _, answer = await api.post("/create/batch", [body("a"), body("b", "update"), body("c")])
    assert (answer["created"], answer["failed"]) == (2, 1)
    assert answer["results"][1]["error"]["status"] == 503


async def test_what_was_updated_is_known_if_the_store_goes_away_before_others_are_judged_again(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(policies: PolicyBook) -> None:
        raise StoreDown("gone")

    await put_task(api, "delay", "b")
    assert (await api.request("PATCH", "/topics/order/policy", {"delay_mode": "queue"}))[0] == 200
    monkeypatch.setattr(PolicyBook, "reread", fail)
    _, answer = await api.post("/create/batch", [body("a", "update"), body("b", "update", delay=5)])
    assert (answer["created"], answer["failed"], answer["results"][0]) == (1, 1, create_result("a"))
    assert answer["results"][1]["error"]["status"] == 503


async def test_an_id_with_a_memory_of_nothing_is_free_when_its_task_has_ended(api: ApiFixture) -> None:
    await api.post("/create", body(remember=0))
    await api.post("/create", body("b", remember=900))
    for id in ("a", "b"):
        record = (await api.store.lookup.query([id]))[0]
        assert not isinstance(record, Exception)
        assert (record.state, record.task.remember_ms) == (Bucket.DELAY, 0 if id == "a" else 900_000)  # type: ignore[union-attr]
