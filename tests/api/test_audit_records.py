"""Calls that change policies, topics or many tasks are in the audit trail, with who made them and how they ended."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.api.api_fixture import ApiFixture
from tests.api.states import put_task

TOPIC = "/topics/shop%2Forder"


async def recorded_events(api: ApiFixture) -> list[dict[str, Any]]:
    await api.store.audit_trail.flush()
    return [entry.fields async for entry in api.store.audit_trail.read()]


def event(name: str, outcome: str = "done", namespace: str | None = "shop", **details: Any) -> dict[str, Any]:
    caller = {"key": None, "peer": "127.0.0.1"}
    return {"event": name, **caller, "namespace": namespace, "outcome": outcome, **details}


async def test_changes_of_policies_are_recorded_with_the_settings_before_and_after(api: ApiFixture) -> None:
    await api.request("PUT", f"{TOPIC}/policy", {"rate": 50})
    await api.request("PATCH", "/namespaces/shop/policy", {"retry": 3})
    await api.request("DELETE", f"{TOPIC}/policy")
    await api.request("POST", "/admin/v2/persistent/public/shop/order/delayedDelivery", {"tickTime": 7})
    rate, nothing = {"rate": 50}, dict[str, Any]()
    assert await recorded_events(api) == [
        event("policy changed", topic="shop/order", before=nothing, after=rate),
        event("policy changed", before=nothing, after={"retry": 3}),
        event("policy changed", topic="shop/order", before=rate, after=nothing),
        event("policy changed", topic="shop/order", before=nothing, after={"tick_time_ms": 7}),
    ]


async def test_pauses_and_resumes_are_recorded(api: ApiFixture) -> None:
    await api.post("/topics/order/pause", {})
    await api.post("/topics/order/resume", {})
    paused = {"paused": True}
    assert await recorded_events(api) == [
        event("topic paused", namespace="default", topic="order", before={}, after=paused),
        event("topic resumed", namespace="default", topic="order", before=paused, after={}),
    ]


async def test_purges_and_redrives_are_recorded_and_dry_runs_are_not(api: ApiFixture) -> None:
    for id in ("a", "b", "c"):
        await put_task(api, "dead", id, topic="shop/order", content="canary", headers={"Authorization": "canary"})
    await api.post("/redrive", {"topic": "shop/order", "dry_run": True})
    await api.post("/redrive", {"id": "a"})
    await api.post("/redrive", {"topic": "shop/order", "reason": "exhausted", "limit": 1})
    await api.post(f"{TOPIC}/purge", {"dry_run": True})
    await api.post(f"{TOPIC}/purge", {"states": ["delay", "dead"]})
    found = await recorded_events(api)
    assert found == [
        event("dead tasks redriven", id="a", topic="shop/order"),
        event("dead tasks redriven", topic="shop/order", reason="exhausted", tasks=1),
        event("topic purged", topic="shop/order", states=["delay", "dead"], tasks=3),
    ]
    assert "canary" not in str(found)


async def test_the_outcome_says_whether_anything_was_changed(api: ApiFixture) -> None:
    await api.post("/redrive", {"id": "unknown"})
    await api.request("PATCH", "/namespaces/shop/policy", {"max_delay": 1, "default_delay": 3600})
    api.client.shards_down = [0]
    await api.post(f"{TOPIC}/purge", {})
    api.client.shards_down = ()
    refused, invalid, failed = await recorded_events(api)
    assert refused == event("dead tasks redriven", "refused", namespace=None, id="unknown")
    assert (invalid["event"], invalid["outcome"], invalid["namespace"]) == ("policy changed", "refused", "shop")
    assert failed == event("topic purged", "failed", topic="shop/order", states=["error", "delay", "dead"])


async def test_a_store_that_takes_no_events_neither_fails_nor_slows_the_action(api: ApiFixture) -> None:
    await api.redis.set(api.keys.audit_trail, "not a stream")
    async with asyncio.timeout(5):
        assert await api.post("/topics/order/pause", {}) == (200, {"topic": "order", "paused": True})
    await api.redis.delete(api.keys.audit_trail)
    assert [fields["event"] for fields in await recorded_events(api)] == ["topic paused"]
