"""API keys on Zaqar's API: where they may come, what each call asks of one, and the project of a bound one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from later.api.routes import ROUTES
from later.api.zaqar import messages
from later.core.api_keys import Scope, id_in_key, make_key_text
from later.core.policy_scopes import topic_scope
from later.store.key_book import KeyBook
from later.store.shared_read import FRESH_S
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.api.zaqar.zaqar_api import ZaqarAnswer, ZaqarApi

QUEUE = "/v2/queues/jobs"
CLAIM = f"{QUEUE}/claims/51db7067821e727dc24df754"
PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
TABLE: dict[tuple[str, str], tuple[set[Scope], int]] = {
    ("GET", "/v2/"): ({Scope.READ}, 200),
    ("GET", "/v2/ping"): ({Scope.READ}, 204),
    ("GET", "/v2/health"): ({Scope.READ}, 200),
    ("GET", "/v2/queues"): ({Scope.READ}, 200),
    ("PUT", QUEUE): ({Scope.ADMIN}, 204),
    ("GET", QUEUE): ({Scope.READ}, 200),
    ("HEAD", QUEUE): ({Scope.READ}, 204),
    ("PATCH", QUEUE): ({Scope.ADMIN}, 400),
    ("GET", f"{QUEUE}/stats"): ({Scope.READ}, 200),
    ("POST", f"{QUEUE}/purge"): ({Scope.EDIT}, 204),
    ("POST", f"{QUEUE}/messages"): ({Scope.CREATE}, 400),
    ("GET", f"{QUEUE}/messages"): ({Scope.READ}, 200),
    ("DELETE", f"{QUEUE}/messages?ids=a"): ({Scope.EDIT}, 204),
    ("DELETE", f"{QUEUE}/messages?pop=1"): ({Scope.CLAIM}, 200),
    ("GET", f"{QUEUE}/messages/a"): ({Scope.READ}, 404),
    ("DELETE", f"{QUEUE}/messages/a"): ({Scope.EDIT}, 204),
    ("DELETE", f"{QUEUE}/messages/a?claim_id=51db7067821e727dc24df754"): ({Scope.EDIT, Scope.CLAIM}, 204),
    ("POST", f"{QUEUE}/claims"): ({Scope.CLAIM}, 204),
    ("GET", CLAIM): ({Scope.CLAIM}, 404),
    ("PATCH", CLAIM): ({Scope.CLAIM}, 400),
    ("DELETE", CLAIM): ({Scope.CLAIM}, 204),
}
"""Of each call: the scopes of which it asks for one, and the status of its answer without a body."""


@pytest.fixture
async def keys() -> AsyncIterator[KeyedApi]:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        yield KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)


async def call(keys: KeyedApi, method: str, path: str, *, project: str = "shop", **headers: str) -> ZaqarAnswer:
    sent: dict[str, str | None] = {name.replace("_", "-"): value for name, value in headers.items()}
    if method == "PATCH" and "claims" not in path:
        sent["Content-Type"] = PATCH_TYPE
    return await ZaqarApi(keys.api, project=project).call(method, path, headers=sent)


async def test_the_table_has_every_route(keys: KeyedApi) -> None:
    routes = [route for route in keys.api.http.app[ROUTES] if route.is_zaqar]
    missing = [
        (route.method, route.template)
        for route in routes
        if not any(
            method == route.method and re.fullmatch(re.sub("{.*?}", "[^/?]+", route.template), path.partition("?")[0])
            for method, path in TABLE
        )
    ]
    assert missing == [("DELETE", "/v2/queues/{queue}")]  # in a test of its own, because it ends the queue


async def test_each_call_asks_for_its_scope(keys: KeyedApi) -> None:
    assert (await call(keys, "PUT", QUEUE, X_Auth_Token=keys.root)).status == 201
    for scope in Scope:
        for namespace in (None, "shop"):
            key = await keys.add_key(scope, namespace=namespace)
            for (method, path), (needed, status) in TABLE.items():
                answer = await call(keys, method, path, X_Auth_Token=key)
                assert answer.status == (status if scope in needed else 403), (method, path, scope, answer.body)
                if scope not in needed and method != "HEAD":
                    assert answer.body["title"] == "Not authorized"
                    assert answer.body["description"].startswith(f"this key may {scope.value}, not ")


async def test_a_queue_is_deleted_with_the_scope_of_policies(keys: KeyedApi) -> None:
    for scope in Scope:
        assert (await call(keys, "PUT", QUEUE, X_Auth_Token=keys.root)).status in (201, 204)
        answer = await call(keys, "DELETE", QUEUE, X_Auth_Token=await keys.add_key(scope))
        assert answer.status == (204 if scope is Scope.ADMIN else 403)


async def test_a_key_comes_in_either_header_or_in_both(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.READ)
    for headers in (
        {"X_Auth_Token": key},
        {"Authorization": f"Bearer {key}"},
        {"X_Auth_Token": key, "Authorization": f"bearer {key}"},
        {"X_Auth_Token": "", "Authorization": f"Bearer {key}"},
        {"X_Auth_Token": key, "Authorization": "Basic eDp5"},
    ):
        assert (await call(keys, "GET", "/v2/ping", **headers)).status == 204, headers


async def test_two_keys_that_differ_are_refused(keys: KeyedApi) -> None:
    reader = await keys.add_key(Scope.READ)
    description = "X-Auth-Token and Authorization: expected one key, got two that differ"
    for token, bearer in ((keys.root, reader), (reader, keys.root), (reader, "x"), ("x", reader)):
        answer = await call(keys, "GET", "/v2/ping", X_Auth_Token=token, Authorization=f"Bearer {bearer}")
        assert (answer.status, answer.body) == (400, {"title": "Invalid API request", "description": description})
    headers = [*ZaqarApi(keys.api).headers.items(), ("X-Auth-Token", reader), ("X-Auth-Token", keys.root)]
    async with keys.api.http.get("/v2/ping", headers=headers) as response:
        assert (response.status, (await response.json())["description"]) == (400, description)


async def test_the_token_is_read_nowhere_else(keys: KeyedApi) -> None:
    for method, path in (("GET", "/topics"), ("POST", "/create"), ("GET", "/whoami")):
        assert (await keys.call(method, path, **{"X-Auth-Token": keys.root}))[0] == 401


async def test_without_a_key_that_is_known_nothing_is_answered(keys: KeyedApi) -> None:
    for method, path in TABLE:
        for token, challenge in (
            ("", ""),
            (make_key_text(), ', error="invalid_token"'),
            ("gAAAAABk", ', error="invalid_token"'),
        ):
            answer = await call(keys, method, path, X_Auth_Token=token)
            assert answer.status == 401, (method, path)
            assert answer.headers["WWW-Authenticate"] == f'Bearer realm="later"{challenge}'
            if method != "HEAD":
                assert answer.body == {
                    "title": "Unauthorized", "description": "this call needs a key: Authorization: Bearer later_…",
                }  # fmt: skip


async def test_a_key_is_judged_before_the_rules_of_requests(keys: KeyedApi) -> None:
    answer = await ZaqarApi(keys.api).call("GET", "/v2/ping", headers={"Client-ID": None, "Accept": "text/html"})
    assert answer.status == 401


async def test_a_bound_key_names_its_own_project_and_no_other(keys: KeyedApi) -> None:
    key = await keys.add_key(*Scope, namespace="shop")
    assert (await call(keys, "PUT", QUEUE, X_Auth_Token=key)).status == 201
    for method, path in TABLE:
        for project in ("other", "default", "Shop"):
            answer = await call(keys, method, path, project=project, X_Auth_Token=key)
            assert answer.status == 403, (method, path, project)
            if method != "HEAD":
                assert answer.body == {
                    "title": "Not authorized", "description": "namespace: this key is for the namespace shop",
                }  # fmt: skip
    unbound = await keys.add_key(*Scope)
    for project in ("shop", "other", "default"):
        assert (await call(keys, "GET", "/v2/queues", project=project, X_Auth_Token=unbound)).status == 200
    read = keys.api.metrics.registry.get_sample_value
    assert read("later_api_denied_total", {"reason": "namespace"}) == 3 * len(TABLE)


async def test_the_project_of_the_daemon_s_own_tasks_is_refused(keys: KeyedApi) -> None:
    for key in (keys.root, await keys.add_key(*Scope, namespace="later")):
        for method, path in TABLE:
            answer = await call(keys, method, path, project="later", X_Auth_Token=key)
            assert answer.status == 400, (method, path)


async def test_what_a_bound_key_posts_is_seen_by_its_namespace_alone(keys: KeyedApi) -> None:
    shop, other = [await keys.add_key(*Scope, namespace=name) for name in ("shop", "other")]
    body = {"messages": [{"body": "hello", "ttl": 60}]}
    posted = await ZaqarApi(keys.api, project="shop").call(
        "POST", f"{QUEUE}/messages", body, headers={"X-Auth-Token": shop}
    )
    assert posted.status == 201
    path = posted.body["resources"][0]
    assert (await call(keys, "GET", path, X_Auth_Token=shop)).body["body"] == "hello"
    assert (await call(keys, "GET", path, project="other", X_Auth_Token=other)).status == 404
    queues = (await call(keys, "GET", "/v2/queues", project="other", X_Auth_Token=other)).body["queues"]
    assert queues == []


async def test_over_the_rate_of_a_key_is_503_because_clients_take_429_for_success(keys: KeyedApi) -> None:
    key = await keys.add_key(*Scope, rate=1)
    assert (await call(keys, "GET", "/v2/ping", X_Auth_Token=key)).status == 204
    answer = await call(keys, "GET", "/v2/ping", X_Auth_Token=key)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.body["title"] == "Service temporarily unavailable"
    assert answer.body["description"].startswith("this key may send 1 tasks a second, ")
    assert answer.body["description"].endswith(". Please try again in a few seconds.")


async def test_the_id_of_a_refused_key_is_logged_and_not_the_key(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.CREATE)
    with capture_logs() as events:
        assert (await call(keys, "GET", "/v2/ping", X_Auth_Token=key)).status == 403
    assert [(event["event"], event["reason"], event["key"]) for event in events] == [
        ("call denied", "scope", id_in_key(key))
    ]
    assert key[15:] not in str(events)


async def test_a_refused_call_whose_body_is_to_come_ends_the_connection(keys: KeyedApi) -> None:
    reader, writer = await asyncio.open_connection(keys.api.http.host, keys.api.http.port)
    writer.write(f"POST {QUEUE}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nConnection: close\r\n" in answer


async def test_keys_that_cannot_be_read_are_503(keys: KeyedApi) -> None:
    key = await keys.add_key(*Scope)
    assert (await call(keys, "GET", "/v2/ping", X_Auth_Token=key)).status == 204
    await keys.api.lose_store()
    keys.seconds.at += FRESH_S
    answer = await call(keys, "GET", "/v2/ping", X_Auth_Token=key)
    assert (answer.status, answer.body["title"]) == (503, "Service temporarily unavailable")


async def test_a_post_makes_no_queue_of_a_pushed_topic_that_was_set_up_unless_its_key_may_change_policies(
    keys: KeyedApi,
) -> None:
    """Tasks with a callback, which others create there, would be refused from then on."""
    await keys.api.store.policies.change(topic_scope("shop/mail"), lambda before: before.merge({"rate": 7}))
    path = "/v2/queues/mail/messages"

    async def post(*scopes: Scope) -> int:
        headers: dict[str, str | None] = {"X-Auth-Token": await keys.add_key(*scopes)}
        api = ZaqarApi(keys.api, project="shop")
        return (await api.call("POST", path, {"messages": [{"body": 1}]}, headers=headers)).status

    assert await post(Scope.CREATE) == 403
    assert keys.api.store.policies.latest.settings_at(topic_scope("shop/mail")).fields == {"rate": 7}
    assert [await post(Scope.CREATE, Scope.ADMIN), await post(Scope.CREATE)] == [201, 201]


async def test_beyond_so_many_queues_a_post_makes_another_only_for_a_key_that_may_change_policies(
    keys: KeyedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_MADE_BY_POSTS", 2)
    bound = await keys.add_key(Scope.CREATE, namespace="shop")
    free = await keys.add_key(Scope.CREATE)
    admin = await keys.add_key(Scope.CREATE, Scope.ADMIN, namespace="shop")

    async def post(key: str, queue: str, project: str = "shop") -> ZaqarAnswer:
        api = ZaqarApi(keys.api, project=project)
        path = f"/v2/queues/{queue}/messages"
        return await api.call("POST", path, {"messages": [{"body": 1}]}, headers={"X-Auth-Token": key})

    assert [(await post(free, "a", "other")).status, (await post(bound, "a")).status] == [201, 201]
    refused = await post(free, "b", "a-third")
    assert (refused.status, refused.body["description"]) == (
        403, "there are 2 queues: delete some, or let a key with the scope admin make this one"
    )  # fmt: skip
    assert [(await post(bound, queue)).status for queue in ("b", "c", "a")] == [201, 403, 201]
    assert [(await post(admin, "c")).status, (await post(bound, "c")).status] == [201, 201]
