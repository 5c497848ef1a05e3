"""A daemon below a path: it answers with the path in front and without it, and its links have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import pytest
from yarl import URL

from later.api.console_sessions import SessionCookie
from later.core.api_keys import make_key_text
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.api.keyed_api import Seconds, keyed
from tests.cases import each_case


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    async with serve_api(base_path="/later") as built:
        yield built


@each_case("base", ["", "/later"])
async def test_calls_are_answered_with_and_without_the_path(api: ApiFixture, base: str) -> None:
    assert (await api.post(f"{base}/create", {**MINIMAL, "id": "a"}))[0] == 200
    assert (await api.post(f"{base}/query", {"id": "a"}))[1]["topic"] == "order"
    assert (await api.request("GET", f"{base}/topics/a%2Fb"))[1]["topic"] == "a/b"
    assert (await api.request("GET", f"{base}/topics?limit=0"))[1]["field"] == "limit"
    assert (await api.request("POST", f"{base}/query?x=1", {"id": "a"}))[0] == 400
    assert (await api.get(f"{base}/"))[1]["name"] == "later"


@each_case("path", ["/later", "/later?"])
async def test_the_path_alone_is_the_root(api: ApiFixture, path: str) -> None:
    assert (await api.request("GET", path))[1]["name"] == "later"


@each_case("path", ["/laterx/version", "/late/version", "/later/later/version", "/later//version", "/LATER/version"])
async def test_other_paths_are_not_taken_for_it(api: ApiFixture, path: str) -> None:
    assert (await api.request("GET", path))[0] == 404


async def test_a_target_that_is_a_whole_url_has_the_path_too(api: ApiFixture) -> None:
    """RFC 9112, section 3.2.2: a server must take it, although only proxies send it."""
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    for base in ("/later", ""):
        writer.write(f"GET http://127.0.0.1{base}/topics?limit=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 "), base
        await reader.readuntil(b"}")
    writer.close()


async def test_the_pages_and_the_description_have_the_path(api: ApiFixture) -> None:
    assert (await api.get("/openapi.json"))[1]["servers"] == [{"url": "/later/"}]
    for base in ("", "/later"):
        async with api.http.get(f"{base}/console/topics/x") as page:
            text = await page.text()
        assert 'data-base="/later"' in text
        assert "{{" not in text
        async with api.http.get(f"{base}/console", allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/later/console/"
        async with api.http.get(f"{base}/console/static/vendor/preact.js") as file:
            assert (file.status, file.content_type) == (200, "text/javascript")


async def test_the_rules_of_pages_hold_below_the_path(api: ApiFixture) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for path, status in (("/later/console/topics", 200), ("/later/topics", 403), ("/later/livez", 200)):
        async with api.http.get(path, headers=elsewhere) as answer:
            assert answer.status == status, path


async def test_the_cookie_is_for_the_path() -> None:
    root = make_key_text()
    cookie = SessionCookie.of_server("/later", is_secure=False)
    async with keyed(root, Seconds(), cookie=cookie, base_path="/later") as api:
        url = URL(f"{api.http.make_url('/')}later/console/session", encoded=True)
        async with api.http.session.post(url, json={"key": root}) as answer:
            (found,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (answer.status, found["path"]) == (204, "/later/")
