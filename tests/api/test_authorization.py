"""API keys: what each route asks of one, and how a call without it is answered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from time import monotonic
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from later import __version__
from later.api.cross_site import CrossSiteProtection
from later.api.routes import ROUTES
from later.core.api_keys import ALL_SCOPES, Scope, id_in_key, make_key_text
from later.core.errors import StoreDown
from later.metrics.labels import DENIAL_REASONS
from later.store.key_book import KeyBook
from later.store.shared_read import FRESH_S, REREAD_EVERY_S
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request
from tests.api.keyed_api import KeyedApi, Seconds, keyed

OPEN, ANY_KEY = "open", "any key"
TOPIC, SHOP = "/topics/shop%2Forder", "/namespaces/shop"
PULSAR = "/admin/v2/namespaces/public/shop/delayedDelivery"
PULSAR_TOPIC = "/admin/v2/persistent/public/shop/order/delayedDelivery"
TABLE: dict[tuple[str, str], tuple[str, int, int]] = {
    ("POST", "/create"): ("create", 400, 400),
    ("POST", "/create/batch"): ("create", 400, 400),
    ("POST", "/query"): ("read", 400, 400),
    ("POST", "/query/batch"): ("read", 400, 400),
    ("POST", "/list"): ("read", 400, 400),
    ("POST", "/explain"): ("read", 400, 400),
    ("GET", "/overview"): ("read", 200, 200),
    ("GET", "/workers"): ("read", 200, 403),
    ("GET", "/jobs"): ("read", 200, 200),
    ("GET", "/jobs/j"): ("read", 404, 404),
    ("GET", "/topics"): ("read", 200, 200),
    ("GET", "/history"): ("read", 400, 403),
    ("GET", "/deliveries"): ("read", 200, 200),
    ("GET", TOPIC): ("read", 200, 200),
    ("GET", f"{TOPIC}/forecast"): ("read", 200, 200),
    ("GET", "/forecast"): ("read", 200, 200),
    ("GET", f"{TOPIC}/policy"): ("read", 200, 200),
    ("GET", f"{SHOP}/policy"): ("read", 200, 200),
    ("GET", PULSAR): ("read", 200, 200),
    ("GET", PULSAR_TOPIC): ("read", 200, 200),
    ("POST", "/delete"): ("edit", 400, 400),
    ("POST", "/delete/batch"): ("edit", 400, 400),
    ("POST", "/update"): ("edit", 400, 400),
    ("POST", "/run-now"): ("edit", 400, 400),
    ("POST", "/redrive"): ("edit", 400, 400),
    ("POST", f"{TOPIC}/purge"): ("edit", 200, 200),
    ("GET", "/schedules"): ("read", 200, 200),
    ("GET", "/schedules/a"): ("read", 404, 404),
    ("PUT", "/schedules/a"): ("edit", 400, 400),
    ("DELETE", "/schedules/a"): ("edit", 404, 404),
    ("POST", "/schedules/a/pause"): ("edit", 404, 404),
    ("POST", "/schedules/a/resume"): ("edit", 404, 404),
    ("POST", "/schedules/a/run-now"): ("edit", 404, 404),
    ("POST", "/claim"): ("claim", 400, 400),
    ("POST", "/ack"): ("claim", 400, 400),
    ("POST", "/nack"): ("claim", 400, 400),
    ("POST", "/release"): ("claim", 400, 400),
    ("POST", "/extend"): ("claim", 400, 400),
    ("POST", f"{TOPIC}/pause"): ("admin", 200, 200),
    ("POST", f"{TOPIC}/resume"): ("admin", 200, 200),
    ("PUT", f"{TOPIC}/policy"): ("admin", 200, 200),
    ("PATCH", f"{TOPIC}/policy"): ("admin", 200, 200),
    ("DELETE", f"{TOPIC}/policy"): ("admin", 200, 200),
    ("PUT", f"{SHOP}/policy"): ("admin", 200, 403),
    ("PATCH", f"{SHOP}/policy"): ("admin", 200, 403),
    ("DELETE", f"{SHOP}/policy"): ("admin", 200, 403),
    ("POST", PULSAR): ("admin", 204, 403),
    ("DELETE", PULSAR): ("admin", 204, 403),
    ("POST", PULSAR_TOPIC): ("admin", 204, 204),
    ("DELETE", PULSAR_TOPIC): ("admin", 204, 204),
    ("GET", f"{TOPIC}/signing"): ("admin", 200, 200),
    ("GET", f"{SHOP}/signing"): ("admin", 200, 200),
    ("POST", f"{TOPIC}/signing/rotate"): ("admin", 409, 409),
    ("POST", f"{SHOP}/signing/rotate"): ("admin", 409, 409),
    ("GET", "/metrics"): ("metrics", 200, 403),
    ("GET", "/whoami"): (ANY_KEY, 200, 200),
    ("GET", "/livez"): (OPEN, 200, 200),
    ("GET", "/readyz"): (OPEN, 200, 200),
    ("GET", "/"): (OPEN, 200, 200),
    ("GET", "/version"): (OPEN, 200, 200),
    ("GET", "/openapi.json"): (OPEN, 200, 200),
    ("GET", "/problems/refused"): (OPEN, 200, 200),
    ("POST", "/console/session"): (OPEN, 400, 400),
    ("DELETE", "/console/session"): (OPEN, 204, 204),
}
"""Of each route: its scope, and what the body `{}` is answered with that scope by an unbound key and by a bound one."""
ALSO_CREATE = {route for route in TABLE if route[0] != "GET" and route[1].startswith("/schedules")}
"""Routes that need the scope `create`, too."""
NO_KEY = {
    "type": "/problems/no-key", "title": "Unauthorized", "status": 401,
    "detail": "this call needs a key: Authorization: Bearer later_…",
}  # fmt: skip


@pytest.fixture
async def keys() -> AsyncIterator[KeyedApi]:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        yield KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)


def denial_counts(api: ApiFixture) -> dict[str, float]:
    read = api.metrics.registry.get_sample_value
    return {reason: read("later_api_denied_total", {"reason": reason}) or 0 for reason in DENIAL_REASONS}


def key_reads(api: ApiFixture) -> float:
    """Return how often the store was asked for keys."""
    name = "later_store_round_trip_duration_seconds_count"
    return api.metrics.registry.get_sample_value(name, {"verb": "keys_since"}) or 0.0


async def test_the_table_has_every_route(keys: KeyedApi) -> None:
    routes = [route for route in keys.api.http.app[ROUTES] if not (route.is_zaqar or route.is_page)]
    for route in routes:
        path = re.compile(re.sub("{.*?}", "[^/]+", route.template))
        rows = [row for row in TABLE if row[0] == route.method and path.fullmatch(row[1])]
        assert [TABLE[row][0] for row in rows[-1:]] == [route.scope.value], route.template
    assert len(routes) == len(TABLE)


async def test_each_route_asks_for_its_scope_whether_the_key_is_bound_or_not(keys: KeyedApi) -> None:
    everything = {(s, n): await keys.add_key(s, namespace=n) for s in Scope for n in (None, "shop")}
    both = {(Scope.EDIT, n): await keys.add_key(Scope.EDIT, Scope.CREATE, namespace=n) for n in (None, "shop")}
    for (method, path), (needed, unbound, bound) in TABLE.items():
        is_both = (method, path) in ALSO_CREATE
        for (scope, namespace), key in {**everything, **(both if is_both else {})}.items():
            may = needed in (scope.value, OPEN, ANY_KEY)
            expected = 403 if not may else unbound if namespace is None else bound
            status, body, _ = await keys.call(method, path, key)
            assert status == expected, (method, path, scope, namespace, body)
            if not may:
                assert body == {
                    "type": "/problems/not-allowed", "title": "Forbidden", "status": 403,
                    "detail": f"this key may {scope.value}, not {needed}",
                }  # fmt: skip


async def test_each_route_that_is_not_open_refuses_calls_without_a_key_and_with_an_unknown_one(keys: KeyedApi) -> None:
    for (method, path), (needed, unbound, _) in TABLE.items():
        for key, challenge in ((None, ""), (make_key_text(), ', error="invalid_token"')):
            status, body, headers = await keys.call(method, path, key)
            if needed == OPEN:
                assert status == unbound
            else:
                assert (status, body) == (401, NO_KEY)
                assert headers["WWW-Authenticate"] == f'Bearer realm="later"{challenge}'


async def test_a_key_that_another_process_made_a_moment_ago_is_not_refused(keys: KeyedApi) -> None:
    for _ in range(3):
        for path, header in (("/topics", "Authorization"), ("/query", "Authorization"), ("/v2/queues", "X-Auth-Token")):
            key = await keys.add_key(Scope.READ)
            keys.seconds.at -= FRESH_S  # no time passes
            sent = f"Bearer {key}" if header == "Authorization" else key
            headers = {header: sent, "Client-ID": str(uuid4()), "X-Project-Id": "shop"}
            method, body = ("POST", {"id": "a"}) if path == "/query" else ("GET", None)
            status, answer, _ = await keys.call(method, path, None, body, **headers)
            assert status == (404 if body else 200), (path, answer)
    assert (await keys.call("GET", "/topics", make_key_text()))[1] == NO_KEY


async def test_keys_that_are_guessed_share_few_reads_and_mistyped_ones_read_nothing(keys: KeyedApi) -> None:
    await keys.call("GET", "/topics", await keys.add_key(Scope.READ))
    before, started = key_reads(keys.api), monotonic()
    answers = await asyncio.gather(*(keys.call("GET", "/topics", make_key_text()) for _ in range(60)))
    assert [status for status, _, _ in answers] == [401] * 60
    assert 1 <= key_reads(keys.api) - before <= 2 + (monotonic() - started) / REREAD_EVERY_S
    before = key_reads(keys.api)
    for key in (None, "later_", "x", make_key_text()[:-1] + "~", make_key_text()[:-6] + "000000"):
        assert (await keys.call("GET", "/topics", key))[0] == 401
    assert key_reads(keys.api) == before


async def test_the_root_key_may_do_everything_and_needs_no_store(keys: KeyedApi) -> None:
    for (method, path), (_, unbound, _) in TABLE.items():
        assert (await keys.call(method, path, keys.root))[0] == unbound
    await keys.api.lose_store()
    keys.seconds.at += 10
    assert (await keys.call("GET", "/whoami", keys.root))[0] == 200


async def test_a_head_is_asked_for_the_same_key_as_its_get(keys: KeyedApi) -> None:
    assert (await keys.call("HEAD", "/topics", make_key_text()))[0] == 401
    assert (await keys.call("HEAD", "/topics", keys.root))[0] == 200


async def test_words_say_what_is_wrong_with_a_key(keys: KeyedApi) -> None:
    ended = await keys.add_key(*Scope, expires_at=1_764_547_200_000)
    status, body, headers = await keys.call("POST", "/query", ended)
    assert (status, body) == (401, {**NO_KEY, "detail": "this key ended on 2025-12-01"})
    assert headers["WWW-Authenticate"] == 'Bearer realm="later", error="invalid_token"'
    creator = await keys.add_key(Scope.READ, Scope.CREATE)
    status, body, _ = await keys.call("POST", "/delete", creator)
    assert (status, body["detail"]) == (403, "this key may create and read, not edit")
    revoked = await keys.add_key(Scope.READ)
    await keys.revoke(revoked)
    assert (await keys.call("POST", "/query", revoked))[:2] == (401, NO_KEY)


async def test_only_the_header_authorization_holds_a_key(keys: KeyedApi) -> None:
    assert (await keys.call("POST", "/query", body={"id": "a"}, Authorization=f"bearer  {keys.root}"))[0] == 404
    for header in (
        keys.root,
        f"Basic {keys.root}",
        f"Bearer{keys.root}",
        "Bearer",
        f"Bearer {keys.root} x",
        "Bearer ä",
    ):
        assert (await keys.call("POST", "/query", Authorization=header))[0] == 401, header


async def test_a_key_is_judged_before_the_body_is_read_and_a_body_to_come_ends_the_connection(keys: KeyedApi) -> None:
    for path in ("/create", "/create/batch", "/update"):
        reader, writer = await asyncio.open_connection(keys.api.http.host, keys.api.http.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nConnection: close\r\n" in answer
        writer.close()


async def test_a_refused_call_whose_body_has_come_keeps_its_connection(keys: KeyedApi) -> None:
    reader, writer = await asyncio.open_connection(keys.api.http.host, keys.api.http.port)
    for _ in range(2):
        writer.write(b"POST /create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"Connection: close" not in head
        await reader.readuntil(b"}")
    writer.close()


async def test_refused_items_of_a_batch_are_counted_as_refused_calls_are(keys: KeyedApi) -> None:
    shop = await keys.add_key(*Scope, namespace="shop")
    items = [{**MINIMAL, "topic": topic} for topic in ("shop/x", "other/x", "order")] + [{}]
    for query in ("", "?dry_run=true"):
        with capture_logs() as events:
            assert (await keys.call("POST", f"/create/batch{query}", shop, items))[1]["refused"] == 3
        keys.seconds.at += 1
        assert [(event["reason"], event["key"]) for event in events] == [("namespace", id_in_key(shop))]
    assert denial_counts(keys.api)["namespace"] == 4


async def test_each_item_of_a_batch_counts_against_the_rate(keys: KeyedApi) -> None:
    key = await keys.add_key(*Scope, rate=4)
    items = [MINIMAL, MINIMAL, MINIMAL]
    assert (await keys.call("POST", "/create/batch", key, items))[0] == 200
    assert (await keys.call("POST", "/create", key, MINIMAL))[0] == 200
    status, body, headers = await keys.call("POST", "/create", key, MINIMAL)
    assert (status, body["type"], headers["Retry-After"]) == (429, "/problems/too-often", "1")
    keys.seconds.at += 1
    assert (await keys.call("POST", "/query/batch", key, [{"id": "a"}] * 5))[0] == 429
    keys.seconds.at += 1
    assert (await keys.call("POST", "/delete/batch", key, [{"id": "a"}] * 4))[0] == 200
    assert (await keys.call("POST", "/query", keys.root))[0] == 400


async def test_nothing_is_judged_by_keys_that_were_read_too_long_ago(keys: KeyedApi) -> None:
    key = await keys.add_key(*Scope)
    assert (await keys.call("GET", "/whoami", key))[0] == 200
    await keys.api.lose_store()
    keys.seconds.at += FRESH_S - 0.01
    assert (await keys.call("GET", "/whoami", key))[0] == 200
    keys.seconds.at += 0.01
    for (method, path), (needed, _, _) in TABLE.items():
        for sent in (key, None, make_key_text()):
            status, body, _ = await keys.call(method, path, sent)
            assert needed == OPEN or (status, body["type"]) == (503, "/problems/store-away"), path


async def test_the_last_key_that_is_revoked_opens_nothing() -> None:
    seconds = Seconds()
    async with keyed("", seconds, is_optional=True) as api:
        keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), "", seconds)
        assert (await keys.call("POST", "/query", body={"id": "a"}))[0] == 404
        key = await keys.add_key(Scope.READ)
        assert (await keys.call("POST", "/query", body={"id": "a"}))[0] == 401
        assert (await keys.call("POST", "/query", key, {"id": "a"}))[0] == 404
        await keys.revoke(key)
        for sent in (None, key):
            assert (await keys.call("POST", "/query", sent, {"id": "a"}))[0] == 401
        await api.redis.flushall()
        seconds.at += FRESH_S
        assert (await keys.call("POST", "/query", body={"id": "a"}))[0] == 401


async def test_a_root_key_closes_a_door_that_would_be_open() -> None:
    async with keyed(make_key_text(), Seconds(), is_optional=True) as api:
        assert (await api.get("/topics"))[0] == 401


async def test_the_metrics_of_a_daemon_that_asks_for_no_keys_stay_open_when_its_store_goes_away() -> None:
    """Nobody knows whether a store that was never reached has keys, so its metrics are closed as all other calls.

    `/readyz` says why in both cases.
    """
    for was_reached, status in ((True, 200), (False, 503)):
        seconds = Seconds()
        async with keyed("", seconds, is_optional=True) as api:
            if was_reached:
                assert (await api.post("/query", {"id": "a"}))[0] == 404
            await api.lose_store()
            seconds.at += FRESH_S
            keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), "", seconds)
            for (method, path), (needed, unbound, _) in TABLE.items():
                expected = unbound if needed == OPEN else status if path == "/metrics" else 503
                assert (await keys.call(method, path))[0] == expected, path
            api.not_ready = StoreDown("127.0.0.1:6379 refuses")
            assert (await keys.call("GET", "/readyz"))[1]["detail"] == "127.0.0.1:6379 refuses"


async def test_a_request_with_two_keys_is_refused_even_if_both_are_the_same(keys: KeyedApi) -> None:
    reader = await keys.add_key(Scope.READ)
    for path in ("/query", "/topics/x/purge"):
        for sent in ((keys.root, reader), (reader, keys.root), (keys.root, keys.root), (reader, "x")):
            headers = [("Authorization", f"Bearer {key}") for key in sent]
            async with keys.api.http.post(path, json={"id": "a"}, headers=headers) as answer:
                assert (answer.status, await answer.json(content_type=None)) == bad_request(
                    "Authorization: expected it once, got it more than once", "Authorization"
                )


async def test_why_it_is_not_ready_is_said_to_who_may_read_metrics(keys: KeyedApi) -> None:
    keys.api.not_ready = StoreDown("10.0.0.5:6379 refuses")
    for key in (None, await keys.add_key(Scope.READ), await keys.add_key(Scope.METRICS, namespace="shop")):
        status, body, _ = await keys.call("GET", "/readyz", key)
        assert (status, body["type"]) == (503, "/problems/not-ready")
        assert "10.0.0.5" not in body["detail"]
    _, body, _ = await keys.call("GET", "/readyz", await keys.add_key(Scope.METRICS))
    assert (body["type"], body["detail"]) == ("/problems/store-away", "10.0.0.5:6379 refuses")


async def test_refusals_are_counted_and_logged_once_a_second_without_the_key(keys: KeyedApi) -> None:
    bad = keys.root[:-1] + ("a" if keys.root[-1] != "a" else "b")
    ended, reader = await keys.add_key(*Scope, expires_at=1), await keys.add_key(Scope.READ, namespace="shop", rate=1)
    with capture_logs() as events:
        for key in (None, None, bad, make_key_text(), ended):
            await keys.call("POST", "/query", key)
        keys.seconds.at += 1
        await keys.call("POST", "/create", reader)
        await keys.call("GET", "/topics/other%2Forder", reader)
        await keys.call("GET", "/topics", reader)
    assert denial_counts(keys.api) == {
        "no_key": 2, "mistyped": 1, "unknown": 1, "ended": 1, "scope": 1, "namespace": 1, "rate": 1,
    }  # fmt: skip
    assert [(event["reason"], event["key"], event["not_logged"]) for event in events] == [
        ("no_key", None, 0),
        ("scope", id_in_key(reader), 4),
    ]
    assert events[0]["peer"] == "127.0.0.1"
    assert not [key for key in (bad, ended, reader) if key[15:] in str(events)]


async def test_any_key_is_told_what_it_may_do(keys: KeyedApi) -> None:
    limits = {"max_body": 1024 * 1024, "batch": 10_000, "page": 1000}
    reader = await keys.add_key(Scope.METRICS, Scope.READ, namespace="shop")
    assert (await keys.call("GET", "/whoami", reader))[1] == {
        "version": __version__, "key": id_in_key(reader), "scopes": ["read", "metrics"], "namespace": "shop",
        "read_only": True, "limits": limits,
    }  # fmt: skip
    everything = (await keys.call("GET", "/whoami", keys.root))[1]
    assert (everything["scopes"], everything["namespace"]) == ([*Scope], None)
    assert everything["read_only"] is False
    assert (await keys.call("GET", "/whoami"))[0] == 401


async def test_a_key_s_use_is_written_once_a_minute(keys: KeyedApi) -> None:
    key = await keys.add_key(*ALL_SCOPES)
    await keys.book.read()
    keys.book.used.update((id_in_key(key), "nobodys0"))
    await keys.book.write_uses()
    first = await keys.book.last_uses()
    assert [*first] == [id_in_key(key)]
    assert first[id_in_key(key)] % 60_000 == 0
    await keys.api.redis.delete(keys.api.keys.key_uses)
    keys.book.used.add(id_in_key(key))
    await keys.book.write_uses()
    assert await keys.book.last_uses() == {}
    keys.seconds.at += 60
    keys.book.used.add(id_in_key(key))
    await keys.book.write_uses()
    assert await keys.book.last_uses() == {id_in_key(key): first[id_in_key(key)] + 60_000}


async def test_any_host_may_be_named_once_keys_are_asked_for_and_pages_of_other_sites_are_still_refused() -> None:
    seconds, root = Seconds(), make_key_text()
    for takes_any, status in ((True, 200), (False, 403)):
        protection = CrossSiteProtection(["later.internal"], takes_any_host=partial(bool, takes_any))
        async with keyed(root, seconds, cross_site_protection=protection) as api:
            keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)
            assert (await keys.call("GET", "/topics", root, Host="rebind.example"))[0] == status
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
                answer = await keys.call("GET", "/topics", root, **headers)
                assert (answer[0], answer[1]["type"]) == (403, "/problems/cross-site")


async def test_who_may_only_create_or_only_edit_writes_no_schedule(keys: KeyedApi) -> None:
    create, edit = await keys.add_key(Scope.CREATE), await keys.add_key(Scope.EDIT)
    for method, path in ALSO_CREATE:
        answers = [(await keys.call(method, path, key))[:2] for key in (create, edit)]
        assert [(status, problem["detail"]) for status, problem in answers] == [
            (403, "this key may create, not edit"),
            (403, "this key may edit, not create"),
        ]
