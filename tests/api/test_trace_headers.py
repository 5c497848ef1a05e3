"""Trace contexts of requests: what a task keeps of them, and what its own headers say goes through as it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from later.core.policy import Deliver, Policy
from later.core.task import decode_task
from later.core.trace_context import format_traceparent, parse_traceparent
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.builders import NOW, a_task
from tests.cases import each_case

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"
OWN = f"00-{'c' * 32}-{'d' * 16}-01"
OTHERS = {"tracestate": "vendor=1", "baggage": "user=7"}


@asynccontextmanager
async def keeping() -> AsyncIterator[ApiFixture]:
    """An API with `--trace-context keep`."""
    async with serve_api(keeps_trace_context=True) as api:
        yield api


async def kept(api: ApiFixture, path: str, body: Any, headers: dict[str, str]) -> list[str]:
    """Make a call that creates tasks, and return the contexts that these have kept, in the order of their contents."""
    answer = await api.http.post(path, data=json.dumps(body), headers=headers)
    assert answer.status == 200, await answer.text()
    bodies: Any = await api.redis.hvals("{later:0}:pool")
    tasks = sorted((decode_task("an-id", body) for body in bodies), key=lambda task: task.content)
    return [format_traceparent(task.trace_context) if task.trace_context else "" for task in tasks]


@each_case(
    ("headers", "context"),
    [
        ({"traceparent": TRACEPARENT}, TRACEPARENT),
        ({"Traceparent": TRACEPARENT, **OTHERS}, TRACEPARENT),
        ({"traceparent": UNSAMPLED}, ""),
        ({"traceparent": "nonsense"}, ""),
        ({}, ""),
    ],
)
async def test_a_task_keeps_the_sampled_context_of_its_request(headers: dict[str, str], context: str) -> None:
    async with keeping() as api:
        assert await kept(api, "/create", MINIMAL, headers) == [context]


async def test_two_contexts_are_none() -> None:
    async with keeping() as api:
        headers: Any = [("traceparent", TRACEPARENT), ("traceparent", OWN)]
        assert await kept(api, "/create", MINIMAL, headers) == [""]


async def test_nothing_is_kept_by_default(api: ApiFixture) -> None:
    assert await kept(api, "/create", MINIMAL, {"traceparent": TRACEPARENT}) == [""]
    assert await kept(api, "/create/batch", [MINIMAL], {"traceparent": TRACEPARENT}) == ["", ""]


@each_case("own", [{"headers": {"TraceParent": OWN}}, {"context": {"traceparent": OWN}}])
async def test_a_task_that_names_its_own_context_keeps_no_other(own: dict[str, Any]) -> None:
    async with keeping() as api:
        assert await kept(api, "/create", {**MINIMAL, **own}, {"traceparent": TRACEPARENT}) == [""]


async def test_the_items_of_a_batch_keep_its_context_unless_they_name_their_own() -> None:
    items = [{**MINIMAL, "content": "1"}, {**MINIMAL, "content": "2", "headers": {"traceparent": OWN}}]
    async with keeping() as api:
        assert await kept(api, "/create/batch", items, {"traceparent": TRACEPARENT}) == [TRACEPARENT, ""]


async def test_a_task_that_takes_the_place_of_an_ended_one_keeps_its_own_context() -> None:
    upsert = {**MINIMAL, "id": "a", "if_exists": "update", "delay": 60}
    async with keeping() as api:
        assert await kept(api, "/create", upsert, {"traceparent": TRACEPARENT}) == [TRACEPARENT]
        assert await kept(api, "/create", {**upsert, "delay": 70}, {"traceparent": OWN}) == [TRACEPARENT]
        await api.post("/delete", {"id": "a"})
        assert await kept(api, "/create", upsert, {"traceparent": OWN}) == [OWN]


async def test_an_update_keeps_the_context() -> None:
    async with keeping() as api:
        await kept(api, "/create", {**MINIMAL, "id": "a", "delay": 60}, {"traceparent": TRACEPARENT})
        changes = {"id": "a", "delay": 90, "content": "changed"}
        assert await kept(api, "/update", changes, {"traceparent": OWN}) == [TRACEPARENT]


async def test_a_claimed_task_has_the_kept_context_in_its_headers() -> None:
    context = parse_traceparent(TRACEPARENT)
    async with serve_api(policy=Policy(deliver=Deliver.PULL)) as api:
        own = {"X-Own": "1"}
        task = a_task(callback="", topic="jobs", created_at=NOW - 1000, headers=own, trace_context=context)
        await api.store.tasks.create([task])
        _, answer = await api.post("/claim", {"topic": "jobs"})
        assert answer["tasks"][0]["headers"] == {"X-Own": "1", "traceparent": TRACEPARENT}
