"""Zaqar's home document, ping and health."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urljoin

import pytest

from later.api.routes import ROUTES
from later.core.api_keys import Scope
from later.core.errors import StoreDown
from tests.api.api_fixture import MINIMAL, ApiFixture
from tests.api.zaqar.zaqar_api import ZaqarApi

UNAVAILABLE = "Service temporarily unavailable"


async def test_the_home_document_has_the_media_type_of_such_documents(zaqar: ZaqarApi) -> None:
    answer = await zaqar.call("GET", "/v2/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json-home"
    assert answer.headers["Cache-Control"] == "max-age=86400"


async def test_the_templates_of_the_home_document_lead_to_resources(zaqar: ZaqarApi) -> None:
    resources = (await zaqar.call("GET", "/v2/")).body["resources"]
    for resource in resources.values():
        assert resource.get("href", resource.get("href-template")).startswith("/v2/")
    template = resources["rel/queue"]["href-template"]
    for base in ("https://zaqar.example.com/v2", "https://zaqar.example.com/v2/"):
        joined = urljoin(base, template)
        assert joined.format(queue_name="foo") == "https://zaqar.example.com/v2/queues/foo"
    assert resources["rel/messages"]["href-vars"] == {
        "queue_name": "param/queue_name",
        "marker": "param/marker",
        "limit": "param/messages_limit",
        "echo": "param/echo",
        "include_claimed": "param/include_claimed",
        "include_delayed": "param/include_delayed",
    }
    assert resources["rel/post_claim"]["hints"]["accept-post"] == ["application/json"]
    assert resources["rel/ping"] == {
        "href": "/v2/ping", "hints": {"allow": ["GET"], "formats": {"application/json": {}}},
    }  # fmt: skip


async def test_the_home_document_has_every_route_and_no_other(zaqar: ZaqarApi, api: ApiFixture) -> None:
    names = {"{queue}": "{queue_name}", "{message}": "{message_id}", "{claim}": "{claim_id}"}
    routes = set()
    for route in api.http.app[ROUTES]:
        if route.is_zaqar and route.path != "/v2/":
            path = route.template
            for name, shown in names.items():
                path = path.replace(name, shown)
            routes.add((route.method, path))
    documented = {
        (method, resource.get("href", resource.get("href-template", "")).partition("{?")[0])
        for resource in (await zaqar.call("GET", "/v2/")).body["resources"].values()
        for method in resource["hints"]["allow"]
    }
    assert documented == routes


async def test_a_ping_is_answered_with_nothing(zaqar: ZaqarApi) -> None:
    for method in ("GET", "HEAD"):
        answer = await zaqar.call(method, "/v2/ping")
        assert (answer.status, answer.body) == (204, None)
        assert "Content-Type" not in answer.headers


async def test_a_ping_says_when_the_daemon_is_not_ready_and_not_why(zaqar: ZaqarApi) -> None:
    zaqar.api.not_ready = StoreDown("10.0.0.5:6379 refuses")
    description = "The server is not ready. Please try again in a few seconds."
    assert await zaqar.error("GET", "/v2/ping") == (503, UNAVAILABLE, description)


async def test_health_counts_the_messages_of_the_project(zaqar: ZaqarApi) -> None:
    body = {"messages": [{"body": n, "ttl": 60, "delay": 0} for n in range(3)]}
    assert (await zaqar.call("POST", "/v2/queues/jobs/messages", body)).status == 201
    assert (await ZaqarApi(zaqar.api, project="other").call("POST", "/v2/queues/jobs/messages", body)).status == 201
    assert (await zaqar.call("POST", "/v2/queues/jobs/claims?limit=1")).status == 201
    await zaqar.api.post("/create", MINIMAL)
    answer = await zaqar.call("GET", "/v2/health")
    assert answer.status == 200
    assert answer.body["storage_reachable"] is True
    assert answer.body["message_volume"] == {"free": 2, "claimed": 1, "total": 3}
    write = answer.body["operation_status"]["write"]
    assert (write["succeeded"], write["ref"]) == (True, None)
    assert 0 <= write["seconds"] < 5


async def test_the_routes_that_only_read_ask_for_that_scope(api: ApiFixture) -> None:
    scopes = {route.path: route.scope for route in api.http.app[ROUTES] if route.is_zaqar}
    assert {scopes[path] for path in ("/v2/", "/v2/ping", "/v2/health", "/v2/queues")} == {Scope.READ}


async def test_the_messages_of_a_project_are_counted_once_for_all_that_ask_at_once(
    zaqar: ZaqarApi, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count reads every queue: many that ask would keep the store from its other clients."""
    await zaqar.call("POST", "/v2/queues/jobs/messages", {"messages": [{"body": 1}]})
    counted, page, ping = list[str](), api.store.topic_index.page, api.store.stats.ping
    pings, all_have_asked = list[int](), asyncio.Event()

    async def count_pings() -> None:
        await ping()
        pings.append(1)
        if len(pings) == 11:
            all_have_asked.set()

    async def count(*args: Any, namespace: str, **options: Any) -> Any:
        counted.append(namespace)
        await all_have_asked.wait()
        return await page(*args, namespace=namespace, **options)

    monkeypatch.setattr(api.store.stats, "ping", count_pings)
    monkeypatch.setattr(api.store.topic_index, "page", count)
    calls = [zaqar.call("GET", "/v2/health") for _ in range(10)]
    *answers, other = await asyncio.gather(*calls, ZaqarApi(api, project="other").call("GET", "/v2/health"))
    assert [answer.body["message_volume"]["total"] for answer in answers] == [1] * 10
    assert other.body["message_volume"]["total"] == 0
    assert sorted(counted) == sorted(["other", zaqar.project])
    await zaqar.call("POST", "/v2/queues/jobs/messages", {"messages": [{"body": 2}]})
    assert (await zaqar.call("GET", "/v2/health")).body["message_volume"]["total"] == 2
