"""Protection from cross-site requests: what a page of another site sends is refused before its body is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from later.api.application.app import build_health_app
from later.api.authorization import Authorization
from later.api.cross_site import CrossSiteProtection
from later.api.health import HealthSource
from later.api.routes import ROUTES
from later.metrics import Exposition, Metrics
from tests.api.api_fixture import MINIMAL, ApiFixture, DaemonServer, fixed_clock, serve_api
from tests.api.test_routes import example_path
from tests.cases import each_case

METHODS = ("POST", "PUT", "PATCH", "DELETE")
ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    {"Sec-Fetch-Site": "Same-Origin "},
    {"Sec-Fetch-Site": ""},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "http://evil.example:{port}"},
    {"Origin": "http://127.0.0.1:{port}.evil.example"},
]
"""Headers of requests of other sites' pages. `{port}` is the server's."""
NAVIGATION = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def with_port(api: ApiFixture, headers: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("{port}", str(api.http.port)) for name, value in headers.items()}


async def status_of(api: ApiFixture, method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
    async with api.http.request(method, path, json=body, headers=with_port(api, headers)) as response:
        return response.status


async def test_a_page_of_another_origin_creates_nothing(api: ApiFixture) -> None:
    """Whatever its headers; and with any of them, whatever it calls."""
    await api.post("/create", {**MINIMAL, "id": "a"})
    paths = {example_path(route) for route in api.http.app[ROUTES] if not (route.is_health or route.is_zaqar)}
    calls = [(method, path) for path in sorted(paths) for method in METHODS]
    with_all_headers = [("POST", "/create", headers) for headers in ELSEWHERE]
    any_headers = cycle(ELSEWHERE)
    for method, path, headers in [*with_all_headers, *((*call, next(any_headers)) for call in calls)]:
        body, sent = {**MINIMAL, "id": "b"}, with_port(api, headers)
        async with api.http.request(method, path, json=body, headers=sent) as response:
            problem = await response.json(content_type="application/problem+json")
        assert (response.status, problem["type"]) == (403, "/problems/cross-site"), (method, path, headers)
        assert problem["field"] in headers
    assert (await api.post("/query/batch", [{"id": "a"}, {"id": "b"}]))[1]["found"] == 1
    assert (await api.get("/topics/order/policy"))[1] == {}


async def test_the_same_calls_of_a_program_are_answered(api: ApiFixture) -> None:
    for route in api.http.app[ROUTES]:
        assert await status_of(api, route.method, example_path(route), {}) != 403


@each_case(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://127.0.0.1:{port}"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Host": "LOCALHOST", "Origin": "http://localhost"},
        {"Host": "localhost:80", "Origin": "http://localhost"},
        {"Host": "localhost:443", "Origin": "https://localhost"},
    ],
)
async def test_a_page_of_this_origin_is_answered(api: ApiFixture, headers: dict[str, str]) -> None:
    assert await status_of(api, "POST", "/create", headers, MINIMAL) == 200
    assert await status_of(api, "GET", "/topics", headers) == 200


async def test_reads_of_other_sites_are_refused_too(api: ApiFixture) -> None:
    for mode in ({}, {"Sec-Fetch-Mode": "no-cors"}, {"Sec-Fetch-Mode": "navigate"}):
        assert await status_of(api, "GET", "/topics", {"Sec-Fetch-Site": "cross-site", **mode}) == 403
    assert await status_of(api, "OPTIONS", "/create", {"Origin": "https://evil.example"}) == 403
    assert await status_of(api, "GET", "/nowhere", {"Origin": "https://evil.example"}) == 403


async def test_a_link_from_elsewhere_opens_the_page(api: ApiFixture) -> None:
    assert await status_of(api, "GET", "/problems/refused", NAVIGATION) == 200
    assert await status_of(api, "HEAD", "/problems/refused", NAVIGATION) == 200
    assert await status_of(api, "GET", "/console/topics", NAVIGATION) == 200
    assert await status_of(api, "GET", "/console", NAVIGATION) == 200
    assert await status_of(api, "POST", "/console/topics", NAVIGATION) == 403
    assert await status_of(api, "GET", "/console/topics", {**NAVIGATION, "Sec-Fetch-Mode": "no-cors"}) == 403
    assert await status_of(api, "GET", "/consoles", NAVIGATION) == 403


async def test_health_is_answered_to_any_page(api: ApiFixture) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert (
            await status_of(api, "GET", path, {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}) == 200
        )
        assert await status_of(api, "GET", path, {"Origin": "https://evil.example"}) == 200
        assert await status_of(api, "GET", path, {"Host": "evil.example"}) == 403


HOSTS = {
    "127.0.0.1": True, "127.0.0.1:80": True, "10.1.2.3:8080": True, "[::1]": True, "[::1]:8080": True,
    "[FE80::1]:1": True, "[::ffff:1.2.3.4]": True, "localhost": True, "localhost:": True, "LocalHost:8080": True,
    "localhost.": True, "localhost.:8080": True, "127.0.0.1.": True, "later.internal": True, "LATER.internal.:1": True,
    "evil.example": False, "evil.example:8080": False, "localhost.evil.example": False, "evil.localhost": False,
    "localhost@evil.example": False, "evil.example#localhost": False, "localhost evil.example": False,
    "127.0.0.1.evil.example": False, "127.1": False, "2130706433": False, "0x7f.0.0.1": False, "::1": False,
    "[127.0.0.1]": False, "[localhost]": False, "[::1": False, "localhost:x": False, "localhost:1:2": False, "": False,
    "localhost..": False, ".": False, ":8080": False, "sub.later.internal": False, "later": False,
}  # fmt: skip
"""Values of `Host`, and whether they are allowed where `later.internal` is the only name."""


@pytest.fixture
async def named_api() -> AsyncIterator[ApiFixture]:
    """The API, which may be called as later.internal, by pages of https://pages.internal as well."""
    protection = CrossSiteProtection(["later.internal"], ["https://pages.internal"])
    async with serve_api(cross_site_protection=protection) as built:
        yield built


async def test_a_foreign_host_is_refused(named_api: ApiFixture) -> None:
    for host, is_allowed in HOSTS.items():
        for method, path in (("POST", "/create"), ("GET", "/topics"), ("GET", "/livez"), ("PUT", "/topics/x/policy")):
            answer = await exchange(named_api, f"{method} {path} HTTP/1.1", f"Host: {host}")
            assert (answer[0] != 403) == is_allowed, host
            if not is_allowed:
                assert (answer[1]["type"], answer[1]["field"]) == ("/problems/cross-site", "Host")


@each_case(
    ("line", "headers", "status"),
    [
        ("GET /topics HTTP/1.1", [], 400),
        ("GET /topics HTTP/1.1", ["Host: localhost", "Host: evil.example"], 400),
        ("GET /topics HTTP/1.1", ["Host: localhost", "host: localhost"], 400),
        ("GET /topics HTTP/1.0", [], 200),
        ("GET /topics HTTP/1.0", ["Origin: http://evil.example"], 403),
        ("GET /topics HTTP/1.0", ["Host: evil.example"], 403),
        ("GET /topics HTTP/1.0", ["Host:"], 403),
    ],
)
async def test_a_host_that_is_missing_or_doubled(api: ApiFixture, line: str, headers: list[str], status: int) -> None:
    assert (await exchange(api, line, *headers))[0] == status


async def test_a_page_behind_a_proxy_that_rewrites_host_may_be_allowed(named_api: ApiFixture) -> None:
    for origin, status in (
        ("https://pages.internal", 200),
        ("HTTPS://Pages.internal", 200),
        ("http://pages.internal", 403),
    ):
        assert await status_of(named_api, "POST", "/create", {"Origin": origin}, MINIMAL) == status


async def test_a_refused_request_ends_its_connection_unread(api: ApiFixture) -> None:
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    writer.write(b"POST /create HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    problem = json.loads(await reader.readuntil(b"}"))
    writer.close()
    assert head.startswith(b"HTTP/1.1 403 ")
    assert b"Connection: close" in head
    assert "--allow-host" in problem["detail"]


async def test_the_health_server_of_a_worker_is_protected_too() -> None:
    async def is_ready() -> None:
        return None

    async def no_metrics(accept: str) -> Exposition:
        return Exposition("", "text/plain")

    app = build_health_app(
        authorization=Authorization(),
        cross_site_protection=CrossSiteProtection(["worker"]),
        metrics=Metrics(),
        health=HealthSource(why_not_ready=is_ready, exposition=no_metrics),
        clock=fixed_clock(),
    )
    async with TestClient(DaemonServer(app)) as http:
        for path in ("/livez", "/readyz", "/metrics"):
            for host, status in (("worker:8081", 200), ("evil.example", 403)):
                async with http.get(path, headers={"Host": host}) as response:
                    assert response.status == status


@each_case("path", ["/topics/x/pause", "/topics/x/resume", "/topics/x/purge", "/run-now", "/delete"])
async def test_a_callback_to_a_call_of_ours_changes_nothing(api: ApiFixture, path: str) -> None:
    await api.post("/create", {**MINIMAL, "topic": "x", "id": "a"})
    status, problem = await api.post(path, {"id": "a", "topic": "x", "content": ""})
    assert (status, problem["type"]) == (400, "/problems/refused")
    assert problem["field"] in ("id", "topic")
    assert (await api.get("/topics/x"))[1]["delay"] == 1
    assert (await api.get("/topics/x/policy"))[1] == {}


@each_case("body", [b"", b" ", b"{}"])
async def test_pause_and_resume_take_no_fields(api: ApiFixture, body: bytes) -> None:
    assert await api.post("/topics/x/pause", body) == (200, {"topic": "x", "paused": True})
    assert await api.post("/topics/x/resume", body) == (200, {"topic": "x", "paused": False})
    assert (await api.post("/topics/x/pause", b"[]"))[0] == 400


async def exchange(api: ApiFixture, line: str, *headers: str) -> tuple[int, dict[str, Any]]:
    """Send a request without a body on a connection of its own, and return the status and body of the answer."""
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    writer.write("\r\n".join([line, *headers, "Connection: close", "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    answer: dict[str, Any] = json.loads(body)
    return int(head.split()[1]), answer
