"""Sessions of the console: a key is exchanged for a cookie, which counts like the key for pages of ours."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from http.cookies import Morsel, SimpleCookie
from typing import Any

import pytest
from structlog.testing import capture_logs

from later.api.console_sessions import SessionCookie
from later.core.api_keys import Scope, id_in_key, make_key_text, root_key
from later.core.console_session import SECRET_BYTES, SESSION_MS, make_session
from later.store.key_book import KeyBook
from later.store.keys import hash_tag
from later.store.session_secret import MISSING_FRESH_S
from later.store.shared_read import FRESH_S
from tests.api.api_fixture import MINIMAL, ApiFixture
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.cases import each_case
from tests.store.away import tags_away

SESSION = "/console/session"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def as_keyed(api: ApiFixture, root: str, seconds: Seconds) -> KeyedApi:
    return KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), root, seconds)


@pytest.fixture
async def keys() -> AsyncIterator[KeyedApi]:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds) as api:
        yield as_keyed(api, root, seconds)


async def sign_in(keys: KeyedApi, key: str) -> Morsel[str]:
    """Return the cookie of a new session."""
    status, _, headers = await keys.call("POST", SESSION, body={"key": key})
    assert status == 204
    (cookie,) = SimpleCookie(headers["Set-Cookie"]).values()
    return cookie


async def call(
    keys: KeyedApi, method: str, path: str, cookie: Morsel[str] | str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """Return the status and the body of an answer to a request with the cookie."""
    value = cookie if isinstance(cookie, str) else f"{cookie.key}={cookie.value}"
    status, answer, _ = await keys.call(method, path, None, body, Cookie=value, **headers)
    return status, answer


async def test_a_session_may_do_what_its_key_may(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, await keys.add_key(Scope.READ, namespace="shop"))
    status, answer = await call(keys, "GET", "/whoami", cookie)
    assert (status, answer["scopes"], answer["namespace"], answer["read_only"]) == (200, ["read"], "shop", True)
    assert (await call(keys, "POST", "/create", cookie, MINIMAL, **SAME_ORIGIN))[0] == 403
    root = await sign_in(keys, keys.root)
    assert (await call(keys, "POST", "/create", root, MINIMAL, **SAME_ORIGIN))[0] == 200
    assert (await call(keys, "GET", "/metrics", root))[0] == 200


async def test_the_cookie_is_for_this_site_and_for_no_script(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, keys.root)
    assert (cookie.key, cookie["path"], cookie["max-age"]) == ("later-session", "/", str(SESSION_MS // 1000))
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == (True, "Strict", "")


async def test_over_https_the_cookie_is_bound_to_the_host() -> None:
    seconds, root = Seconds(), make_key_text()
    async with keyed(root, seconds, cookie=SessionCookie.of_server("/later", is_secure=True)) as api:
        keys = as_keyed(api, root, seconds)
        cookie = await sign_in(keys, root)
        assert (cookie.key, cookie["path"], cookie["secure"]) == ("__Host-later-session", "/", True)
        assert (await call(keys, "GET", "/whoami", cookie))[0] == 200
        assert (await call(keys, "GET", "/whoami", f"later-session={cookie.value}"))[0] == 401


@each_case("method", ["POST", "DELETE"])
async def test_what_changes_something_needs_the_proof_of_a_page(keys: KeyedApi, method: str) -> None:
    path = "/query" if method == "POST" else "/topics/order/policy"
    cookie = await sign_in(keys, keys.root)
    own = f"http://{keys.api.http.host}:{keys.api.http.port}"
    done = 404 if method == "POST" else 200
    for headers, status in (
        ({}, 401),
        ({"Sec-Fetch-Site": "none"}, 401),
        ({"Sec-Fetch-Site": "none", "Origin": own}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": own}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        (SAME_ORIGIN, done),
        ({"Origin": own}, done),
    ):
        body = {"id": "a"} if method == "POST" else None
        assert (await call(keys, method, path, cookie, body, **headers))[0] == status, headers
    assert (await call(keys, "GET", "/topics", cookie))[0] == 200


async def test_a_key_in_the_header_wins_over_the_cookie(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, keys.root)
    reader = await keys.add_key(Scope.READ)
    for sent, status in ((make_key_text(), 401), ("x", 401), (reader, 403)):
        headers = {"Authorization": f"Bearer {sent}", **SAME_ORIGIN}
        assert (await call(keys, "POST", "/create", cookie, MINIMAL, **headers))[0] == status
    basic = f"Basic {base64.b64encode(b'user:password').decode()}"  # of a proxy before us: it holds no key
    assert (await call(keys, "GET", "/whoami", cookie, Authorization=basic))[0] == 200


async def test_a_session_ends_with_its_key(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.READ)
    cookie = await sign_in(keys, key)
    assert (await call(keys, "GET", "/topics", cookie))[0] == 200
    changed = keys.book.latest.keys[id_in_key(key)]
    other = type(changed)(**{**{f: getattr(changed, f) for f in changed.__struct_fields__}, "digest": "0" * 64})
    await keys.book.change(lambda known, now: {other.id: other})
    keys.seconds.at += FRESH_S
    assert (await call(keys, "GET", "/topics", cookie))[0] == 401
    await keys.book.change(lambda known, now: {changed.id: changed})
    keys.seconds.at += FRESH_S
    assert (await call(keys, "GET", "/topics", cookie))[0] == 200
    await keys.revoke(key)
    assert (await call(keys, "GET", "/topics", cookie))[0] == 401


@each_case(("age_ms", "status"), [(0, 200), (SESSION_MS - 60_000, 200), (SESSION_MS + 60_000, 401)])
async def test_a_session_lasts_twelve_hours(keys: KeyedApi, age_ms: int, status: int) -> None:
    await sign_in(keys, keys.root)
    secret = await keys.api.redis.get(keys.api.keys.session_secret)
    assert isinstance(secret, bytes)
    seconds, micros = await keys.api.redis.time()
    now = seconds * 1000 + micros // 1000
    cookie = make_session(root_key(keys.root), secret, now - age_ms)
    assert (await call(keys, "GET", "/topics", f"later-session={cookie}"))[0] == status


async def test_a_forged_cookie_is_refused(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, keys.root)
    id, end, nonce, signature = cookie.value.split(".")
    other = id_in_key(await keys.add_key(Scope.READ))
    forged = [
        "", "x", "...", f"{id}.{int(end) + 1}.{nonce}.{signature}", f"{other}.{end}.{nonce}.{signature}",
        f"{id}.{end}.{nonce[:-1]}x.{signature}", f"{id}.{end}.{nonce}.{'0' * 64}", f"{id}.{end}.{nonce}.",
        f"{id}.{end}.{nonce}.{signature}0", f"unknown0.{end}.{nonce}.{signature}", keys.root,
    ]  # fmt: skip
    for value in forged:
        if value != cookie.value:
            assert (await call(keys, "GET", "/topics", f"later-session={value}"))[0] == 401, value
    for header in (f"xlater-session={cookie.value}", f"later-session2={cookie.value}"):
        assert (await call(keys, "GET", "/topics", header))[0] == 401
    assert (await call(keys, "GET", "/topics", f"a=b; later-session={cookie.value}; c=d"))[0] == 200


async def test_whoever_deletes_the_secret_ends_all_sessions(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, keys.root)
    secret = await keys.api.redis.get(keys.api.keys.session_secret)
    assert isinstance(secret, bytes)
    assert len(secret) == SECRET_BYTES
    await keys.api.redis.delete(keys.api.keys.session_secret)
    keys.seconds.at += FRESH_S
    assert (await call(keys, "GET", "/topics", cookie))[0] == 401
    assert (await call(keys, "GET", "/topics", await sign_in(keys, keys.root)))[0] == 200
    assert await keys.api.redis.get(keys.api.keys.session_secret) != secret


async def test_a_session_that_another_daemon_has_begun_is_known_here_at_once(keys: KeyedApi) -> None:
    """It has made the secret, which was missing when this one looked for it for an ended session."""
    cookie = await sign_in(keys, keys.root)
    name = keys.api.keys.session_secret
    secret = await keys.api.redis.get(name)
    assert isinstance(secret, bytes)
    await keys.api.redis.delete(name)
    keys.seconds.at += FRESH_S
    assert (await call(keys, "GET", "/whoami", cookie))[0] == 401
    await keys.api.redis.set(name, secret)
    keys.seconds.at += 2 * MISSING_FRESH_S
    assert (await call(keys, "GET", "/whoami", cookie))[0] == 200


async def test_a_refused_session_is_logged_with_the_id_of_its_key(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.READ)
    cookie = await sign_in(keys, key)
    await keys.revoke(key)
    with capture_logs() as logs:
        assert (await call(keys, "GET", "/whoami", cookie))[0] == 401
    assert [(event["event"], event["key"]) for event in logs] == [("call denied", id_in_key(key))]
    assert cookie.value not in str(logs)


async def test_nothing_of_a_session_is_stored_but_the_secret(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.READ)
    before = {*await keys.api.redis.keys()}
    for _ in range(3):
        await sign_in(keys, key)
    assert {*await keys.api.redis.keys()} - before == {keys.api.keys.session_secret}


async def test_a_wrong_key_is_refused_in_the_same_words_whatever_is_wrong(keys: KeyedApi) -> None:
    good = await keys.add_key(Scope.READ)
    answers = []
    for key in ("x", make_key_text(), good[:-1] + ("0" if good[-1] != "0" else "1"), f"{good[:-7]}0000000", "later_"):
        status, answer, headers = await keys.call("POST", SESSION, body={"key": key})
        assert (status, "Set-Cookie" in headers) == (401, False)
        answers.append(answer)
    assert answers == answers[:1] * len(answers)


async def test_a_key_that_has_ended_signs_nobody_in(keys: KeyedApi) -> None:
    key = await keys.add_key(Scope.READ, expires_at=1)
    assert (await keys.call("POST", SESSION, body={"key": key}))[0] == 401


@each_case("body", [{}, {"key": ""}, {"key": 5}, {"key": None}, {"key": "x" * 201}, {"Key": "x"}, [], "x"])
async def test_a_wrong_body_is_refused_without_repeating_it(keys: KeyedApi, body: Any) -> None:
    status, answer, _ = await keys.call("POST", SESSION, body=body)
    assert status == 400
    assert "x" * 201 not in answer["detail"]


async def test_signing_out_removes_the_cookie_from_the_browser(keys: KeyedApi) -> None:
    status, _, headers = await keys.call("DELETE", SESSION)
    (cookie,) = SimpleCookie(headers["Set-Cookie"]).values()
    assert (status, cookie.key, cookie.value, cookie["max-age"], cookie["path"]) == (204, "later-session", "", "0", "/")


async def test_a_read_only_console_changes_nothing_and_programs_are_as_before() -> None:
    seconds, root = Seconds(), make_key_text()
    async with keyed(root, seconds, console="readonly") as api:
        keys = as_keyed(api, root, seconds)
        cookie = await sign_in(keys, root)
        status, answer = await call(keys, "GET", "/whoami", cookie)
        assert (answer["scopes"], answer["read_only"]) == (["read", "metrics"], True)
        status, answer = await call(keys, "POST", "/create", cookie, MINIMAL, **SAME_ORIGIN)
        assert (status, answer["detail"]) == (403, "this console is read-only")
        assert (await call(keys, "DELETE", "/topics/order/policy", cookie, **SAME_ORIGIN))[0] == 403
        assert (await call(keys, "GET", "/metrics", cookie))[0] == 200
        assert (await keys.call("POST", "/create", root, MINIMAL))[0] == 200


async def test_a_session_is_not_judged_while_the_store_is_away(keys: KeyedApi) -> None:
    cookie = await sign_in(keys, keys.root)
    await keys.api.lose_store()
    keys.seconds.at += FRESH_S
    assert (await call(keys, "GET", "/topics", cookie))[0] == 503
    assert (await keys.call("POST", SESSION, body={"key": keys.root}))[0] == 503


async def test_sessions_are_good_for_the_grace_while_the_node_of_the_keys_is_away() -> None:
    root, seconds = make_key_text(), Seconds()
    async with keyed(root, seconds, grace_s=30.0) as api:
        keys = as_keyed(api, root, seconds)
        cookie = await sign_in(keys, await keys.add_key(Scope.READ))
        with tags_away(api.store.client, [hash_tag(api.keys.session_secret), hash_tag(api.keys.api_keys)]):
            seconds.at += 30.0 - 0.1
            assert [(await call(keys, "GET", "/topics", cookie))[0] for _ in range(2)] == [200, 200]
            seconds.at += 0.1
            assert (await call(keys, "GET", "/topics", cookie))[0] == 503


async def test_without_keys_nobody_signs_in(api: ApiFixture) -> None:
    status, answer = await api.post(SESSION, {"key": make_key_text()})
    assert (status, answer["field"]) == (400, "key")


async def test_without_a_console_there_are_no_sessions() -> None:
    seconds, root = Seconds(), make_key_text()
    async with keyed(root, seconds, console="off") as api:
        assert (await as_keyed(api, root, seconds).call("POST", SESSION, body={"key": root}))[0] == 404
