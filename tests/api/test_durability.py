"""Writes at a level of durability, with a real replica."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from later.api.durable_writes import DurableWrites
from later.core.api_keys import Scope, make_key_text
from later.core.durability import Durability
from later.core.errors import StoreDown
from later.core.policy import Policy
from later.store.key_book import KeyBook
from tests.api.api_fixture import ApiFixture, serve_api
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.servers import ReplicatedServer, run_replicated_server, run_server

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
TASK = {"topic": "orders", "callback": "http://receiver/"}
LEVELS = ("disk", "replica", "replica-disk")


@asynccontextmanager
async def serve_replicated(
    folder: Path, *options: str, policy: Policy | None = None, timeout_ms: int = 200, max_pending_writes: int = 1000
) -> AsyncIterator[tuple[ApiFixture, ReplicatedServer]]:
    """Serve the API on a store with a replica."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_replicated_server("valkey", folder, *options))
        api = await stack.enter_async_context(
            serve_api(
                server=server.primary_url,
                policy=policy,
                durability_timeout_ms=timeout_ms,
                max_pending_writes=max_pending_writes,
            )
        )
        server.wait_for_replica()
        yield api, server


async def create(api: ApiFixture, **fields: Any) -> tuple[int, dict[str, Any]]:
    return await api.post("/create", {**TASK, **fields})


async def test_each_level_is_reached_and_told(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, *ALWAYS) as (api, _):
        answers = [await create(api, id=level, durability=level) for level in ("primary", *LEVELS)]
        answers.append(await create(api, id="without"))

    assert [status for status, _ in answers] == [200] * 5
    assert [answer.get("durability") for _, answer in answers] == [None, *LEVELS, None]


async def test_a_level_that_is_not_reached_is_503_and_stored_and_waited_for_anew_at_a_repeat(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, *ALWAYS) as (api, server):
        with server.stopped_replica():
            status, problem = await create(api, durability="replica")
            repeated, _ = await create(api, id=problem["id"], durability="replica")
            exists, found = await create(api, id=problem["id"], durability="replica", if_exists="error")
            batch = await api.http.post(
                "/create/batch",
                json=[
                    {**TASK, "id": problem["id"], "durability": "replica", "if_exists": how}
                    for how in ("keep", "error")
                ],
            )
            items = [item["error"] for item in (await batch.json())["results"]]
            _, unknown = await api.post("/delete", {"id": "none", "durability": "replica"})
            disk, _ = await create(api, id="disk", durability="disk")
            primary, _ = await create(api, id="primary")
        after = await create(api, id=problem["id"], durability="replica")
        missed = api.metrics.registry.get_sample_value("later_durability_missed_total", {"level": "replica"})

    assert (status, problem["type"], problem["stored"], problem["durability"]) == (
        503, "/problems/not-durable", True, "disk",
    )  # fmt: skip
    assert problem["detail"] == "stored, but not on a replica within 0.2 s"
    assert (repeated, exists, disk, primary) == (503, 503, 200, 200)
    assert (after[0], after[1]["created"], after[1]["durability"]) == (200, False, "replica")
    assert missed == 5
    assert [answer.get("stored", False) for answer in (found, *items, unknown)] == [False, True, False, False]


async def test_the_answer_that_a_level_was_missed_asks_to_come_again_in_a_second(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, server):
        with server.stopped_replica():
            response = await api.http.post("/create", json={**TASK, "durability": "replica"})

    assert response.headers["Retry-After"] == "1"


async def test_disk_is_refused_before_anything_is_stored_where_the_store_does_not_sync_always(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, "--appendonly", "yes") as (api, _):
        refused = [await create(api, id=level, durability=level) for level in ("disk", "replica-disk")]
        stored = await api.redis.hlen("{later:0}:pool")

    reason = "its appendfsync is everysec, not always"
    assert [(status, answer["field"], answer["detail"]) for status, answer in refused] == [
        (400, "durability", f"durability: {level} cannot be had from this store: {reason}")
        for level in ("disk", "replica-disk")
    ]
    assert stored == 0


async def test_a_level_that_there_is_not_is_refused() -> None:
    async with serve_api() as api:
        status, answer = await create(api, durability="replicas")

    assert (status, answer["field"]) == (400, "durability")


async def test_a_store_whose_operator_says_what_it_offers_is_believed() -> None:
    async with serve_api(store_offers=Durability.REPLICA_DISK) as api:
        status, answer = await create(api, durability="replica-disk")

    assert (status, answer["durability"]) == (200, "replica-disk")


async def test_the_highest_level_counts_of_daemon_policy_and_request(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, *ALWAYS, policy=Policy(durability=Durability.DISK)) as (api, _):
        levels = [(await create(api))[1]["durability"], (await create(api, durability="primary"))[1]["durability"]]
        await api.http.put("/namespaces/default/policy", json={"durability": "replica"})
        await api.http.put("/topics/orders/policy", json={"durability": "primary"})
        levels.append((await create(api))[1]["durability"])
        levels.append((await create(api, durability="replica-disk"))[1]["durability"])

    assert levels == ["disk", "disk", "replica", "replica-disk"]


@pytest.mark.parametrize(("level", "reached"), [("disk", "disk"), ("replica", "disk"), ("replica-disk", "disk")])
async def test_each_level_that_a_stopped_replica_keeps_from_being_reached_is_503(
    level: str, reached: str, tmp_path: Path
) -> None:
    async with serve_replicated(tmp_path, *ALWAYS, timeout_ms=1500) as (api, server):
        with server.stopped_replica():
            status, answer = await create(api, durability=level)
        again, repeated = await create(api, id=answer["id"], durability=level)

    assert (status, answer["durability"]) == (200 if level == "disk" else 503, reached)
    assert (again, repeated["created"], repeated["durability"]) == (200, False, level)


async def test_a_process_that_has_written_nothing_waits_for_the_replica_at_a_repeat(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, server), AsyncExitStack() as stack:
        other = await stack.enter_async_context(serve_api(server=server.primary_url, durability_timeout_ms=200))
        await create(api, id="other", delay=60)
        with server.stopped_replica():
            await create(api, id="a")
            statuses = [
                (await create(other, id="a", durability="replica"))[0],
                (await other.post("/delete", {"id": "none", "durability": "replica"}))[0],
                (await other.post("/redrive", {"id": "other", "durability": "replica"}))[0],
            ]
        reached = [
            (await create(other, id="a", durability="replica"))[0],
            (await other.post("/delete", {"id": "none", "durability": "replica"}))[0],
            (await other.post("/redrive", {"id": "other", "durability": "replica"}))[0],
        ]

    assert (statuses, reached) == ([503] * 3, [200, 404, 409])


async def test_what_a_repeat_finds_done_is_as_durable_as_the_policy_asks(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, server):
        await api.http.put("/topics/orders/policy", json={"durability": "replica"})
        for id in ("a", "b", "c"):
            await create(api, id=id, delay=60)
        with server.stopped_replica():
            first = [(await api.post("/delete", {"id": "a"}))[0] for _ in range(2)]
            batches = [
                await (await api.http.post("/delete/batch", json=[{"id": "b"}, {"id": "none"}])).json()
                for _ in range(2)
            ]
            moved = [(await api.post("/run-now", {"ids": ["c", "none"]}))[1] for _ in range(2)]
        gone, _ = await api.post("/delete", {"id": "a"})
        missing = await (await api.http.post("/delete/batch", json=[{"id": "b"}, {"id": "none"}])).json()

    assert (first, gone) == ([503, 503], 404)
    assert [(answer["deleted"], answer["missing"], answer["failed"]) for answer in batches] == [(0, 0, 2)] * 2
    assert [item["error"]["status"] for item in batches[1]["results"]] == [503, 503]
    assert [(answer["moved"], answer["missing"], answer["failed"]) for answer in moved] == [(0, 0, 2)] * 2
    assert (missing["deleted"], missing["missing"], missing["failed"]) == (0, 2, 0)


async def test_what_a_repeat_finds_done_is_as_durable_as_the_store_offers_if_a_policy_asks_for_more(
    tmp_path: Path,
) -> None:
    async with serve_replicated(tmp_path, "--appendonly", "yes") as (api, server):
        await api.http.put("/topics/orders/policy", json={"durability": "replica"})
        await api.http.put("/topics/other/policy", json={"durability": "replica-disk"})
        await create(api, id="a", delay=60)
        with server.stopped_replica():
            deleted = [(await api.post("/delete", {"id": "a"}))[0] for _ in range(2)]
        gone, _ = await api.post("/delete", {"id": "a"})

    assert (deleted, gone) == ([503, 503], 404)


async def test_requests_that_wait_for_a_replica_are_no_pending_writes(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, timeout_ms=3000, max_pending_writes=1) as (api, server):
        await create(api, id="a", delay=60)
        await api.post("/delete", {"id": "none", "durability": "replica"})
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/delete", {"id": "none"}), ("/run-now", {"id": "none"}), ("/redrive", {"id": "a"}),
            ("/create", {**TASK, "id": "a", "if_exists": "error"}),
        ]  # fmt: skip
        with server.stopped_replica():
            waiting = list[asyncio.Task[Any]]()
            for path, body in calls:
                waiting.append(asyncio.ensure_future(api.post(path, {**body, "durability": "replica"})))
                await asyncio.sleep(0.1)
            plain, problem = await create(api, id="plain")
            still_waiting = sum(not call.done() for call in waiting)
        await asyncio.gather(*waiting)

    assert plain == 200, problem
    assert still_waiting == len(calls)


async def test_requests_do_not_queue_for_a_store_that_does_not_say_what_it_offers(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path) as (url, process):
        async with serve_api(server=url) as api:
            await create(api, id="a")
            api.client.timeout_s = 0.3
            process.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            answers = await asyncio.gather(*(create(api, durability="replica") for _ in range(10)))
            took_s = time.monotonic() - started
            process.send_signal(signal.SIGCONT)

    assert [(status, "stored" in problem) for status, problem in answers] == [(503, False)] * 10
    assert took_s < 1.5, "one after the other they take three seconds"


async def test_a_daemons_level_that_cannot_be_had_refuses_changes_before_they_are_made() -> None:
    async with serve_api(policy=Policy(durability=Durability.REPLICA)) as api:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/update", {"id": "a", "content": "new"}), ("/run-now", {"id": "a"}), ("/run-now", {"ids": ["a"]}),
            ("/redrive", {"id": "a"}), ("/redrive", {"topic": "orders"}), ("/delete", {"id": "a"}),
        ]  # fmt: skip
        refused = [(await api.post(path, body))[1] for path, body in calls]

    assert {(answer["status"], answer["field"]) for answer in refused} == {(400, "durability")}


async def test_a_topics_level_that_cannot_be_had_is_not_waited_for() -> None:
    async with serve_api(durability_timeout_ms=60_000) as api:
        await create(api, id="a", delay=60)
        await api.http.put("/topics/orders/policy", json={"durability": "replica"})
        missed, problem = await api.post("/update", {"id": "a", "content": "new"})
        unknown, _ = await api.post("/delete", {"id": "none"})

    assert (missed, unknown) == (503, 404)
    assert problem["detail"] == "stored, but not on a replica: it has no replica, and min-replicas-to-write is 0"


async def test_a_batch_is_refused_if_any_of_its_levels_cannot_be_had(tmp_path: Path) -> None:
    items = [{**TASK, "durability": "disk"}, {**TASK, "durability": "replica"}]
    async with serve_replicated(tmp_path, "--appendonly", "yes") as (api, _):
        answers = [
            await api.http.post("/create/batch", json=items), await api.http.post("/create/batch?dry_run=1", json=items)
        ]  # fmt: skip
        stored = await api.redis.hlen("{later:0}:pool")

    assert ([answer.status for answer in answers], stored) == ([400, 400], 0)


async def test_a_request_for_a_replica_does_not_replace_the_disk_that_a_topic_asks_for(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, "--appendonly", "yes") as (api, _):
        await api.http.put("/topics/orders/policy", json={"durability": "disk"})
        single, _ = await create(api, durability="replica")
        batch = await api.http.post("/create/batch?durability=replica", json=[TASK])

    assert (single, batch.status) == (400, 400)


async def test_items_of_a_batch_reach_or_miss_their_own_levels(tmp_path: Path) -> None:
    levels = ("primary", *LEVELS)
    items = [{**TASK, "id": level, "durability": level} for level in levels]
    async with serve_replicated(tmp_path, *ALWAYS, timeout_ms=1500) as (api, server):
        with server.stopped_replica():
            missed = await (await api.http.post("/create/batch", json=items)).json()
        again = await (await api.http.post("/create/batch", json=items)).json()

    assert (missed["created"], missed["failed"], missed["durability"]) == (2, 2, "disk")
    assert [item.get("error", {}).get("durability") for item in missed["results"]] == [None, None, "disk", "disk"]
    assert (again["existing"], again["failed"], again["durability"]) == (4, 0, "replica-disk")


async def test_a_failover_between_a_write_and_its_wait_has_not_reached_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, reach = tmp_path / "address", DurableWrites.reach
    with (
        run_replicated_server("valkey", tmp_path) as server,
        run_server("valkey", tmp_path, "--replicaof", f"127.0.0.1 {server.replica_port}") as _,
    ):
        address.symlink_to(server.primary_url.removeprefix("unix://"))
        async with serve_api(server=f"unix://{address}", durability_timeout_ms=5000) as api:

            async def fail_over_first(writes: DurableWrites, level: Durability, changes: int) -> Durability:
                server.fail_over()
                address.unlink()
                address.symlink_to(server.replica_url.removeprefix("unix://"))
                for _ in range(2):
                    with suppress(StoreDown):  # connections to the former primary have broken
                        new_primary_reaches.append(await api.store.durability_waits.wait(level, 5000))
                return await reach(writes, level, changes)

            new_primary_reaches = list[Durability]()
            await create(api, durability="replica")
            monkeypatch.setattr(DurableWrites, "reach", fail_over_first)
            status, problem = await create(api, durability="replica")
            monkeypatch.undo()
            again, repeated = await create(api, id=problem["id"], durability="replica")

    assert new_primary_reaches == [Durability.REPLICA]
    assert (status, problem["durability"]) == (503, "primary")
    assert (again, repeated["durability"]) == (200, "replica")


async def test_edits_and_deletes_have_levels(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, server):
        await create(api, id="a", delay=60)
        await create(api, id="b", delay=60)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/update", {"id": "a", "content": "new"}),
            ("/run-now", {"id": "a"}),
            ("/run-now", {"ids": ["b"]}),
            ("/redrive", {"topic": "orders"}),
            ("/delete", {"id": "a"}),
        ]
        reached = [await api.post(path, {**body, "durability": "replica"}) for path, body in calls]
        plain = [await api.post("/update", {"id": "b", "delay": 60}), await api.post("/run-now", {"id": "b"})]
        with server.stopped_replica():
            missed = await api.post("/update", {"id": "b", "content": "newer", "durability": "replica"})
            moved = await api.post("/run-now", {"ids": ["b"], "durability": "replica"})
            deleted, again = [await api.post("/delete", {"id": "b", "durability": "replica"}) for _ in range(2)]
        gone = await api.post("/delete", {"id": "b", "durability": "replica"})

    assert [(status, answer["durability"]) for status, answer in reached] == [(200, "replica")] * 5
    assert ["durability" in answer for _, answer in plain] == [False, False]
    assert (missed[0], missed[1]["id"], missed[1]["stored"]) == (503, "b", True)
    assert (moved[0], moved[1]["moved"], moved[1]["failed"]) == (200, 0, 1)
    assert (moved[1]["results"][0]["id"], moved[1]["results"][0]["error"]["status"]) == ("b", 503)
    assert (deleted[0], again[0], gone[0]) == (503, 503, 404)


async def test_a_policys_level_is_that_of_deletes_also(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, _):
        await api.http.put("/topics/orders/policy", json={"durability": "replica"})
        await create(api, id="a")
        _, single = await api.post("/delete", {"id": "a"})
        await create(api, id="a")
        batch = await (await api.http.post("/delete/batch", json=[{"id": "a"}])).json()

    assert (single["durability"], batch["durability"]) == ("replica", "replica")


async def test_a_batch_states_its_level_once_and_its_items_fail_that_missed_it(tmp_path: Path) -> None:
    items: list[dict[str, str]] = [{**TASK, "id": "a"}, {**TASK, "id": "b"}, {"topic": ""}]
    async with serve_replicated(tmp_path) as (api, server):
        first = await (await api.http.post("/create/batch?durability=replica", json=items[:1])).json()
        with server.stopped_replica():
            response = await api.http.post("/create/batch?durability=replica", json=items)
            missed = await response.json()
            deleted = await (await api.http.post("/delete/batch?durability=replica", json=[{"id": "b"}])).json()
        refused = await api.http.post("/create/batch?durability=disk", json=items)

    assert (first["created"], first["durability"]) == (1, "replica")
    assert (response.status, missed["created"], missed["existing"], missed["refused"], missed["failed"]) == (
        200, 0, 0, 1, 2,
    )  # fmt: skip
    assert "durability" not in missed
    assert [(item["id"], item["created"], item["error"]["status"]) for item in missed["results"][:2]] == [
        ("a", False, 503), ("b", True, 503),
    ]  # fmt: skip
    assert missed["results"][0]["error"]["stored"] is True
    assert (deleted["deleted"], deleted["failed"]) == (0, 1)
    assert refused.status == 400


async def test_a_job_counts_a_batch_once_whose_tasks_missed_their_level(tmp_path: Path) -> None:
    path = "/create/batch?job=j&durability=replica"
    items: list[dict[str, str]] = [{**TASK, "id": "a"}, TASK]
    async with serve_replicated(tmp_path) as (api, server):
        with server.stopped_replica():
            missed = await (await api.http.post(path, json=items)).json()
        again = [{**TASK, "id": result["id"]} for result in missed["results"]]
        repeated = await (await api.http.post(path, json=again)).json()
        job = await (await api.http.get("/jobs/j")).json()

    assert (missed["failed"], repeated["existing"], repeated["failed"]) == (2, 2, 0)
    assert (job["created"], job["existing"]) == (2, 0)


async def test_a_task_of_our_id_is_remembered_only_if_its_create_may_be_repeated(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path) as (api, _):
        ids = [(await create(api, durability=level))[1]["id"] for level in ("primary", "replica")]
        records = [(await api.store.lookup.query([id]))[0] for id in ids]

    tasks = [record.task for record in records]  # type: ignore[union-attr]  # they are there
    assert [(task.own_id, task.remember_ms) for task in tasks] == [(False, None), (True, 3_600_000)]  # type: ignore[union-attr]


async def test_plain_creates_do_not_wait_behind_those_that_wait_for_a_replica(tmp_path: Path) -> None:
    async with serve_replicated(tmp_path, timeout_ms=3000) as (api, server):
        with server.stopped_replica():
            waiting = [asyncio.ensure_future(create(api, durability="replica")) for _ in range(32)]
            await asyncio.sleep(0)
            plain, durations = [], []
            for _ in range(100):
                started = time.monotonic()
                plain.append(await create(api))
                durations.append(time.monotonic() - started)
            still_waiting = sum(not future.done() for future in waiting)
        statuses = {status for status, _ in await asyncio.gather(*waiting)}

    assert {status for status, _ in plain} == {200}
    assert sorted(durations)[98] < 1, "the others wait for three seconds"
    assert still_waiting == 32
    assert statuses <= {200, 503}


async def test_a_write_whose_server_is_another_one_by_now_has_not_reached_its_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_replicated(tmp_path, *ALWAYS) as (api, _):
        changes = iter(range(100))
        monkeypatch.setattr(type(api.store.durability_waits), "server_changes", property(lambda _: next(changes)))
        statuses = [(await create(api, id=level, durability=level))[0] for level in LEVELS]

    assert statuses == [503, 503, 503]


async def test_plain_writes_make_no_further_round_trip() -> None:
    async with serve_api() as api:
        await create(api, id="a")
        await api.post("/update", {"id": "a", "content": "new"})
        await api.post("/delete", {"id": "a"})
        verbs = {
            sample.labels["verb"] for family in api.metrics.store_round_trips.collect() for sample in family.samples
        }

    assert verbs.isdisjoint({"wait", "offers"})
    assert "create" in verbs


async def test_posts_of_queues_have_the_level_of_the_policy(tmp_path: Path) -> None:
    path, body = "/v2/queues/q/messages", {"messages": [{"body": "a", "ttl": 3600}]}
    headers = {"Client-ID": "3381af92-2b9e-11e3-b191-71861300734c", "X-Project-Id": "shop"}
    async with serve_replicated(tmp_path) as (api, server):
        await api.http.put("/namespaces/shop/policy", json={"durability": "replica"})
        reached = await api.http.post(path, json=body, headers=headers)
        with server.stopped_replica():
            missed = await api.http.post(path, json=body, headers=headers)
        description = (await missed.json())["description"]

    assert (reached.status, missed.status) == (201, 503)
    assert "stored, but not on a replica" in description


async def test_a_namespaces_calls_do_not_wait_for_what_another_ones_policies_ask(tmp_path: Path) -> None:
    root, seconds = make_key_text(), Seconds()
    with run_replicated_server("valkey", tmp_path) as server:
        async with keyed(root, seconds, server=server.primary_url, durability_timeout_ms=200) as api:
            keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)
            key = await keys.add_key(Scope.EDIT, namespace="shop")
            await keys.call("PUT", "/topics/bank%2Forders/policy", root, {"durability": "replica"})
            server.wait_for_replica()
            calls: list[tuple[str, Any]] = [
                ("/delete", {"id": "none"}), ("/run-now", {"id": "none"}), ("/delete/batch", [{"id": "none"}]),
                ("/run-now", {"ids": ["none"]}),
            ]  # fmt: skip
            with server.stopped_replica():
                other = [(await keys.call("POST", path, key, body))[:2] for path, body in calls]
                await keys.call("PUT", "/topics/shop%2Forders/policy", root, {"durability": "replica"})
                own = [(await keys.call("POST", path, key, body))[:2] for path, body in calls]

    assert [(status, answer.get("missing")) for status, answer in other] == [(404, None)] * 2 + [(200, 1)] * 2
    assert [(status, answer.get("failed")) for status, answer in own] == [(503, None)] * 2 + [(200, 1)] * 2
