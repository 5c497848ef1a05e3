"""The context of a task: given with a create, replaced by an update, shown by name, and handed to consumers."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.policy import Deliver, Policy
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request, serve_api
from tests.builders import NOW, a_task
from tests.cases import each_case

CONTEXT = {"tenant": "s3cret", "request": "r-1"}
EXPECTED = "an object of strings, of at most 4096 bytes as JSON"


async def stored_context(api: ApiFixture, id: str) -> Any:
    [record] = await api.store.lookup.query([id])
    return record.task.context  # type: ignore[union-attr]  # a wrong answer fails the test


async def test_a_query_and_a_list_show_the_names_alone(api: ApiFixture) -> None:
    assert (await api.post("/create", {**MINIMAL, "id": "a", "context": CONTEXT}))[0] == 200
    _, task = await api.post("/query", {"id": "a"})
    _, listed = await api.post("/list", {"topic": MINIMAL["topic"], "state": "delay"})
    assert task["context"] == ["tenant", "request"]
    assert listed["tasks"] == [task]
    assert "s3cret" not in str(task)
    assert await stored_context(api, "a") == CONTEXT


@each_case("context", [None, {}])
async def test_no_context_is_in_no_answer(api: ApiFixture, context: object) -> None:
    await api.post("/create", {**MINIMAL, "id": "a", "context": context})
    assert "context" not in (await api.post("/query", {"id": "a"}))[1]
    assert await stored_context(api, "a") is None


async def test_an_update_replaces_the_whole_context(api: ApiFixture) -> None:
    await api.post("/create", {**MINIMAL, "id": "a", "delay": 60, "context": CONTEXT})
    for change, context in (
        ({"retry": 5}, CONTEXT),
        ({"context": {"tenant": "b"}}, {"tenant": "b"}),
        ({"context": None, "retry": 6}, {"tenant": "b"}),
        ({"context": {}}, None),
    ):
        assert (await api.post("/update", {"id": "a", **change}))[0] == 200
        assert await stored_context(api, "a") == context


@each_case(
    ("context", "detail"),
    [
        ([], f"context: expected {EXPECTED}, got an array"),
        ("s3cret", f"context: expected {EXPECTED}, got a string"),
        ({"a": 5}, f'context: expected {EXPECTED}, got a number in "a"'),
        ({"a": None}, f'context: expected {EXPECTED}, got null in "a"'),
        ({"a": {"b": "s3cret"}}, f'context: expected {EXPECTED}, got an object in "a"'),
        ({"a": "s3cret" * 700}, f"context: expected {EXPECTED}, got 4208"),
    ],
)
async def test_a_wrong_context_is_refused_in_each_write_without_its_values(
    api: ApiFixture, context: object, detail: str
) -> None:
    await api.post("/create", {**MINIMAL, "id": "a", "delay": 60})
    assert await api.post("/create", {**MINIMAL, "context": context}) == bad_request(detail, "context")
    assert await api.post("/update", {"id": "a", "context": context}) == bad_request(detail, "context")
    _, batch = await api.post("/create/batch", [{**MINIMAL, "context": context}, {**MINIMAL, "context": CONTEXT}])
    assert batch["results"][0]["error"]["detail"] == detail
    assert batch["created"] == 1


@pytest.mark.parametrize("context", [None, CONTEXT])
async def test_a_consumer_gets_the_context(context: dict[str, str] | None) -> None:
    async with serve_api(policy=Policy(deliver=Deliver.PULL)) as api:
        await api.store.tasks.create([a_task(id="a", callback="", created_at=NOW - 1000, context=context)])
        _, claimed = await api.post("/claim", {"topic": "order"})
        assert [task["context"] for task in claimed["tasks"]] == [context]


async def test_a_task_keeps_its_context_in_a_dead_letter_topic() -> None:
    async with serve_api(policy=Policy(deliver=Deliver.PULL)) as api:
        await api.request("PATCH", "/topics/order/policy", {"dead_to": "failed"})
        await api.store.tasks.create([a_task(id="a", callback="", created_at=NOW - 1000, context=CONTEXT)])
        _, claimed = await api.post("/claim", {"topic": "order"})
        await api.post("/nack", {"leases": [claimed["tasks"][0]["lease"]], "dead": True})
        _, task = await api.post("/query", {"id": "a"})
        assert (task["topic"], task["context"]) == ("failed", ["tenant", "request"])
        assert await stored_context(api, "a") == CONTEXT
