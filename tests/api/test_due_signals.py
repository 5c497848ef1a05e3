"""Which tasks the delay ticker of this process is told of: it looks at their shards, also at those of other owners."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.api.states import put_task
from tests.builders import NOW


@pytest.fixture
async def api(shards: int) -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=shards) as api:
        yield api


async def test_creates_name_their_tasks(api: ApiFixture) -> None:
    _, answer = await api.post("/create", MINIMAL)
    await api.post("/create/batch", [{**MINIMAL, "id": "a"}, {**MINIMAL, "id": "b"}, {**MINIMAL, "id": "a"}])
    assert api.woken_for == [[answer["id"]], ["a", "b"]]


async def test_an_upsert_names_its_task(api: ApiFixture) -> None:
    for _ in range(2):
        await api.post("/create", {**MINIMAL, "id": "a", "delay": 1, "if_exists": "update"})
    assert api.woken_for == [["a"], ["a"]]


@pytest.mark.parametrize(
    ("state", "path", "body"),
    [
        ("delay", "/update", {"id": "a", "delay": 0}),
        ("error", "/run-now", {"id": "a"}),
        ("delay", "/run-now", {"ids": ["a"]}),
        ("dead", "/redrive", {"id": "a"}),
        ("dead", "/redrive", {"ids": ["a"]}),
    ],
)
async def test_edits_name_their_tasks(api: ApiFixture, state: str, path: str, body: dict[str, object]) -> None:
    await put_task(api, state, "a")
    await api.post(path, body)
    assert api.woken_for == [["a"]]


async def test_a_redrive_of_a_topic_names_none(api: ApiFixture) -> None:
    await put_task(api, "dead", "a")
    await api.post("/redrive", {"topic": "default/order"})
    assert (api.wakes, api.woken_for) == ([NOW], [[]])
