"""`POST /run-now` and `/redrive` with `ids`: a result for each task, as the call for that one alone answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api.problem_types import STORE_AWAY
from later.core.api_keys import Scope, make_key_text
from later.store.client import StoreClient
from later.store.key_book import KeyBook
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.api.states import put_all_states, put_task
from tests.api.test_audit_records import event, recorded_events
from tests.builders import NOW
from tests.cases import each_case

DUE_NOW = "2027-01-15T08:00:00.000Z"
PATHS = ["/run-now", "/redrive"]


@pytest.fixture
async def api(shards: int) -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=shards) as built:
        yield built


async def move(api: ApiFixture | Tenant, path: str, *ids: str) -> dict[str, Any]:
    status, answer = await api.post(path, {"ids": [*ids]})
    assert status == 200
    assert isinstance(answer, dict)
    return answer


def counts(answer: dict[str, Any]) -> dict[str, int]:
    """Return the counts of an answer that are not 0."""
    return {name: value for name, value in answer.items() if name != "results" and value}


async def results_one_by_one(api: ApiFixture, path: str, ids: list[str]) -> list[Any]:
    """Return what the calls for one task answer, as results of a call for several."""
    results: list[Any] = []
    for id in ids:
        status, answer = await api.post(path, {"id": id})
        if status != 200:
            results.append({"error": {k: v for k, v in answer.items() if k in ("status", "detail", "field", "ended")}})
        else:
            results.append({"id": id, "due_at": (await api.post("/query", {"id": id}))[1]["due_at"]})
    return results


@pytest.mark.parametrize("path", PATHS)
async def test_each_result_is_what_the_call_for_that_task_alone_answers(api: ApiFixture, path: str) -> None:
    ids = ["delay", "dead", "no/id", "unack", "unknown", "error"]
    await put_all_states(api)
    alone = await results_one_by_one(api, path, ids)
    await api.redis.flushdb()
    await put_all_states(api)
    assert (await move(api, path, *ids))["results"] == alone


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/run-now", {"moved": 3, "missing": 1, "refused": 1, "in_flight": 1}),
        ("/redrive", {"moved": 1, "missing": 1, "refused": 3, "in_flight": 1}),
    ],
)
async def test_the_counts_say_what_became_of_the_tasks(api: ApiFixture, path: str, expected: dict[str, int]) -> None:
    await put_all_states(api)
    assert counts(await move(api, path, "delay", "dead", "no/id", "unack", "unknown", "error")) == expected


@pytest.mark.parametrize("path", PATHS)
async def test_a_task_that_is_named_twice_is_moved_and_counted_once(api: ApiFixture, path: str) -> None:
    await put_task(api, "dead")
    answer = await move(api, path, "dead", "dead", "unknown", "unknown")
    assert counts(answer) == {"moved": 1, "missing": 1}
    assert [result.get("due_at") for result in answer["results"]] == [DUE_NOW, DUE_NOW, None, None]


@pytest.mark.parametrize("path", PATHS)
@each_case(
    ("body", "detail", "field"),
    [
        ({"ids": []}, "ids: expected an array of 1 to 1000 ids, got none", "ids"),
        ({"ids": ["a"] * 1001}, "ids: expected an array of 1 to 1000 ids, got 1001", "ids"),
        ({"ids": "a"}, 'ids: expected an array of 1 to 1000 ids, got "a"', "ids"),
        ({"ids": [5]}, "ids: expected an array of 1 to 1000 ids, got 5", "ids"),
    ],
)
async def test_wrong_ids_are_refused(api: ApiFixture, path: str, body: dict[str, Any], detail: str, field: str) -> None:
    assert await api.post(path, body) == bad_request(detail, field)


async def test_an_id_and_ids_exclude_each_other(api: ApiFixture) -> None:
    both = {"id": "a", "ids": ["a"]}
    assert await api.post("/run-now", both) == bad_request("ids: expected either an id or ids, got both", "ids")
    detail = "id: expected either ids alone, or a topic, got both"
    assert await api.post("/redrive", both) == bad_request(detail, "id")


@each_case("field", ["topic", "reason", "rate", "limit", "dry_run"])
async def test_a_redrive_of_ids_takes_no_other_field(api: ApiFixture, field: str) -> None:
    value = {"rate": 1, "limit": 1, "dry_run": True}.get(field, "gone")
    detail = f"{field}: expected either ids alone, or a topic, got both"
    assert await api.post("/redrive", {"ids": ["a"], field: value}) == bad_request(detail, field)


@pytest.mark.parametrize("max_body", [1024])
async def test_a_thousand_ids_fit_however_small_other_bodies_must_be(max_body: int) -> None:
    async with serve_api(max_body=max_body) as api:
        ids = [f"{n:0128}" for n in range(1000)]
        assert counts(await move(api, "/run-now", *ids)) == {"missing": 1000}


@pytest.mark.parametrize("path", PATHS)
async def test_a_bound_caller_moves_tasks_of_its_namespace_only(path: str) -> None:
    async with serve_api(authorization=lambda store, metrics: NamedCallers()) as api:
        for id in ("team/a", "other/a"):
            await put_task(api, "dead", id, topic=f"{id[:-2]}/order")
        answer = await move(Tenant(api, "team"), path, "a", "team/a", "other/a")
        assert counts(answer) == {"moved": 1, "missing": 1}
        assert answer["results"][0] == {"id": "team/a", "due_at": DUE_NOW}
        assert answer["results"][2]["error"]["status"] == 404
        assert (await Tenant(api, "other").post("/query", {"id": "a"}))[1]["state"] == "dead"


async def test_each_task_counts_against_the_rate_of_the_key() -> None:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        served = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)
        key = await served.add_key(Scope.EDIT, rate=10)
        status, answer, _ = await served.call("POST", "/run-now", key, {"ids": ["a"] * 8})
        assert (status, answer["missing"]) == (200, 1)
        assert (await served.call("POST", "/run-now", key, {"ids": ["a"] * 8}))[0] == 429


@pytest.mark.parametrize(
    ("topics", "details"),
    [
        ({"a": "shop/order", "b": "shop/order"}, {"topic": "shop/order", "tasks": 2}),
        ({"a": "shop/order", "b": "shop/mail"}, {"topics": ["shop/order", "shop/mail"], "tasks": 2}),
        ({}, {"namespace": None, "tasks": 0}),
    ],
)
async def test_a_redrive_is_one_event_of_the_audit_trail(
    api: ApiFixture, topics: dict[str, str], details: dict[str, Any]
) -> None:
    for id, topic in topics.items():
        await put_task(api, "dead", id, topic=topic)
    await move(api, "/redrive", "unknown", *topics)
    assert await recorded_events(api) == [event("dead tasks redriven", **{"namespace": "shop", **details})]


async def test_a_refused_redrive_and_a_run_now_are_no_events(api: ApiFixture) -> None:
    await put_task(api, "dead")
    await api.post("/redrive", {"ids": []})
    await move(api, "/run-now", "dead")
    assert await recorded_events(api) == []


async def test_the_delay_ticker_is_woken_once(api: ApiFixture) -> None:
    for id in ("a", "b"):
        await put_task(api, "delay", id, topic=id)
    await move(api, "/run-now", "a", "b", "unknown")
    assert api.wakes == [NOW]


@pytest.mark.parametrize("shards", [2])
async def test_tasks_of_a_shard_that_is_away_have_failed_and_the_others_moved(api: ApiFixture) -> None:
    ids = [f"n{n}" for n in range(10)]
    for id in ids:
        await put_task(api, "delay", id)
    api.client.shards_down = [1]
    answer = await move(api, "/run-now", *ids)
    down = [id for id in ids if api.keys.shard_of(id).index == 1]
    assert counts(answer) == {"moved": len(ids) - len(down), "failed": len(down)}
    assert {result["error"]["status"] for result in answer["results"] if "error" in result} == {503}
    api.client.shards_down = [0, 1]
    status, problem = await api.post("/run-now", {"ids": ids})
    assert (status, problem["type"]) == (503, STORE_AWAY.reference)


@pytest.mark.parametrize("path", [*PATHS, "/delete/batch"])
async def test_a_request_takes_as_many_round_trips_as_a_batch(
    api: ApiFixture, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two for each hundred tasks: one reads them, and one moves them."""
    ids = [f"n{n}" for n in range(200)]
    for id in ids:
        await put_task(api, "dead" if path == "/redrive" else "delay", id)
    await api.post(path, [{"id": "unknown"}] if path == "/delete/batch" else {"ids": ["unknown"]})
    verbs: list[str] = []
    execute_each = StoreClient.execute_each

    async def count(client: StoreClient, verb: str, commands: Any) -> list[Any]:
        if commands:
            verbs.append(verb)
        return await execute_each(client, verb, commands)

    monkeypatch.setattr(StoreClient, "execute_each", count)
    await api.post(path, [{"id": id} for id in ids] if path == "/delete/batch" else {"ids": ids})
    move = path.strip("/").removesuffix("/batch").replace("-", "_")
    assert [verb for verb in verbs if verb != "time"] == ["read", move] * 2
