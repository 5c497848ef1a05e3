"""Calls while shards are away: the others are answered for, and what must be whole is an error."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest

from later.core.errors import NodeDown
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.builders import NOW
from tests.store.away import policies_away, shards_away

SHARDS = 4


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=SHARDS) as served:
        yield served


def id_in(api: ApiFixture, shard: int) -> str:
    return next(id for n in itertools.count() if api.keys.shard_of(id := f"id-{n}").index == shard)


async def look(api: ApiFixture) -> None:
    """Learn which shards are away, as whatever asks them does."""
    await api.store.client.execute_each("look", [("EXISTS", shard.pool) for shard in api.keys.shards])


async def create_in_each_shard(api: ApiFixture) -> None:
    for shard in range(SHARDS):
        assert (await api.post("/create", {**MINIMAL, "id": id_in(api, shard)}))[0] == 200


async def test_a_create_with_an_id_of_a_shard_that_is_away_is_503_for_its_caller_alone(api: ApiFixture) -> None:
    with shards_away(api.store, api.keys.shards[0]):
        status, answer = await api.post("/create", {**MINIMAL, "id": id_in(api, 0)})
        assert (status, answer["type"]) == (503, "/problems/store-away")
        assert (await api.post("/create", {**MINIMAL, "id": id_in(api, 1)}))[0] == 200


async def test_ids_that_we_make_fall_into_the_other_shards(api: ApiFixture) -> None:
    with shards_away(api.store, api.keys.shards[0]):
        await look(api)
        answers = [await api.post("/create", MINIMAL) for _ in range(50)]
        _, batch = await api.post("/create/batch", [MINIMAL] * 50)
    assert {status for status, _ in answers} == {200}
    assert {api.keys.shard_of(answer["id"]).index for _, answer in answers} == {1, 2, 3}
    assert batch["created"] == 50


async def test_a_batch_fails_for_the_tasks_of_the_shard_alone(api: ApiFixture) -> None:
    with shards_away(api.store, api.keys.shards[0]):
        _, answer = await api.post("/create/batch", [{**MINIMAL, "id": id_in(api, shard)} for shard in range(SHARDS)])
    assert (answer["created"], answer["failed"]) == (SHARDS - 1, 1)


@pytest.mark.parametrize("path", ["/topics", "/topics?sort=due", "/topics/order", "/overview"])
async def test_what_is_counted_says_that_a_part_is_missing_and_only_then(
    api: ApiFixture, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.api.overview.KEPT_S", 0.0)
    await create_in_each_shard(api)
    status, whole = await api.get(path)
    assert status == 200
    assert "partial" not in whole
    with shards_away(api.store, api.keys.shards[0]):
        status, answer = await api.get(path)
    assert (status, answer["partial"]) == (200, True)


async def test_a_forecast_says_that_the_census_has_not_found_the_topics_of_a_part(api: ApiFixture) -> None:
    await api.post("/create", {**MINIMAL, "id": id_in(api, 0), "delay": 60})
    with shards_away(api.store, api.keys.shards[0]):
        status, answer = await api.get("/forecast")
        assert (status, answer["topics"], answer["partial"]) == (200, [], True)
    status, answer = await api.get("/topics/order/forecast")
    assert (status, sum(answer["counts"]), "partial" in answer) == (200, 1, False)


async def test_an_explanation_says_that_a_part_is_missing(api: ApiFixture) -> None:
    await create_in_each_shard(api)
    with shards_away(api.store, api.keys.shards[0]):
        for body in ({"topic": "order"}, {"id": id_in(api, 1)}):
            status, answer = await api.post("/explain", body)
            assert (status, answer["partial"], answer["counts"]["delay"]) == (200, True, SHARDS - 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/list", {"topic": "order", "state": "delay"}),
        ("/topics/order/purge", {}),
        ("/redrive", {"topic": "order"}),
    ],
)
async def test_what_must_be_whole_is_an_error(api: ApiFixture, path: str, body: dict[str, str]) -> None:
    await create_in_each_shard(api)
    with shards_away(api.store, api.keys.shards[0]):
        status, answer = await api.post(path, body)
    assert (status, answer["type"]) == (503, "/problems/store-away")


async def test_topics_are_shown_while_the_node_of_the_policies_is_away_but_not_changed(api: ApiFixture) -> None:
    with policies_away(api.store):
        assert (await api.get("/topics"))[0] == 503  # without a grace
    api.store.policies.shared_read.grace_s = 30.0
    with policies_away(api.store):
        assert (await api.get("/topics"))[0] == 200
        status, answer = await api.request("PATCH", "/topics/order/policy", {"paused": True})
        assert (status, answer["type"]) == (503, "/problems/store-away")


async def test_readiness_names_how_many_shards_are_away(api: ApiFixture) -> None:
    with shards_away(api.store, *api.keys.shards[:2]):
        await look(api)
        assert await api.get("/readyz") == (200, {"status": "ready", "shards_away": 2})
    await api.store.away_shards.ask_again()
    assert await api.get("/readyz") == (200, {"status": "ready"})


async def test_the_overview_goes_on_with_the_workers_that_were_read_last(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.api.overview.KEPT_S", 0.0)
    _, before = await api.get("/overview")
    monkeypatch.setattr(api.store.instances, "read", AsyncMock(side_effect=NodeDown("the node is away")))
    status, answer = await api.get("/overview")
    assert (status, answer["workers"]) == (200, before["workers"])


async def test_the_overview_counts_the_workers_of_the_census_if_their_node_was_always_away(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.store.stats.heartbeat("worker", NOW)
    assert (await api.get("/topics?sort=due"))[0] == 200  # which makes a census
    monkeypatch.setattr(api.store.instances, "read", AsyncMock(side_effect=NodeDown("the node is away")))
    status, answer = await api.get("/overview")
    assert (status, answer["workers"]) == (200, None)
    assert "worker" not in answer["sentence"]
