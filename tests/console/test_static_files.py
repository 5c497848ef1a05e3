"""The files of the console over HTTP: which paths there are, and the headers of their answers."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import NamedTuple

from yarl import URL

from later.console.static_files import CONTENT_SECURITY_POLICY
from tests.api.api_fixture import ApiFixture
from tests.cases import each_case

PAGES = [
    "", "?range=6h", "topics", "topics?sort=due", "topics/order", "topics/a%2Fb", "topics/%3Cimg%20src=x%3E",
    "topics/%F0%9F%98%80", "tasks", "tasks/5", "dead?topic=a&reason=b", "workers", "jobs", "jobs/j", "schedules",
    "api", "sign-in",
]  # fmt: skip
NOT_THERE = [
    "nowhere", "topics/", "topics/a/b", "tasks/a/b", "Dead", "api/", "sign-in/x", "index.html", "%2e%2e/topics",
    "../console/pages.py", "static", "static/", "static/nowhere.js", "static/index.html", "static/../pages.py",
    "static/..%2Fpages.py", "static/%2e%2e/pages.py", "static//etc/passwd", "static/%2Fetc%2Fpasswd",
    "static/..\\pages.py", "static/%00",
]  # fmt: skip
"""Paths below /console/ where nothing is."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(api: ApiFixture, path: str, method: str = "GET", **headers: str) -> Answer:
    """Return the answer to a request for a path below /console, as it is written."""
    url = URL(f"{api.http.make_url('/')}console{path}", encoded=True)
    async with api.http.session.request(
        method, url, headers=headers, allow_redirects=False, auto_decompress=False
    ) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


@each_case("path", PAGES)
async def test_every_page_is_the_same_document(api: ApiFixture, path: str) -> None:
    answer = await ask(api, f"/{path}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == (await ask(api, "/")).body


@each_case("path", NOT_THERE)
async def test_other_paths_lead_nowhere(api: ApiFixture, path: str) -> None:
    assert (await ask(api, f"/{path}")).status == 404


async def test_the_path_without_a_slash_leads_to_the_first_page(api: ApiFixture) -> None:
    answer = await ask(api, "")
    assert (answer.status, answer.headers["Location"]) == (308, "/console/")


async def test_pages_are_read_only(api: ApiFixture) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await ask(api, "/topics", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")


async def test_every_answer_has_the_headers_that_protect_a_page(api: ApiFixture) -> None:
    page = await ask(api, "/")
    answers = [page, await ask(api, ""), await ask(api, "/", **{"If-None-Match": page.headers["ETag"]})]
    assert [answer.status for answer in answers] == [200, 308, 304]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-cache"


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "frame-ancestors 'none'" in CONTENT_SECURITY_POLICY


async def test_a_file_that_is_the_same_is_not_sent_again(api: ApiFixture) -> None:
    for coding in ("identity", "gzip"):
        etag = (await ask(api, "/", **{"Accept-Encoding": coding})).headers["ETag"]
        for known in (etag, f'"other", W/{etag}', "*"):
            answer = await ask(api, "/", **{"If-None-Match": known, "Accept-Encoding": coding})
            assert (answer.status, answer.body) == (304, b"")
        other = await ask(api, "/", **{"If-None-Match": f'"x{etag[1:]}', "Accept-Encoding": coding})
        assert other.status == 200


@each_case(
    ("accepted", "is_compressed"),
    [
        ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=1.0", True), ("", False), ("identity", False), ("br", False),
        ("gzip;q=0", False), ("gzip; q=0.000", False), ("x-gzip", False),
    ],
)  # fmt: skip
async def test_a_client_that_takes_gzip_gets_less(api: ApiFixture, accepted: str, is_compressed: bool) -> None:
    plain = await ask(api, "/", **{"Accept-Encoding": "identity"})
    answer = await ask(api, "/", **{"Accept-Encoding": accepted})
    assert (answer.headers.get("Content-Encoding") == "gzip") == is_compressed
    assert (gzip.decompress(answer.body) if is_compressed else answer.body) == plain.body
    assert (answer.headers["ETag"] != plain.headers["ETag"]) == is_compressed
    assert answer.headers["Vary"] == "Accept-Encoding"


async def test_head_tells_the_length_and_sends_nothing(api: ApiFixture) -> None:
    for coding in ("identity", "gzip"):
        answers = [await ask(api, "/", method, **{"Accept-Encoding": coding}) for method in ("GET", "HEAD")]
        names = ("Content-Length", "ETag", "Content-Type", "Content-Security-Policy")
        assert [answers[1].headers[name] for name in names] == [answers[0].headers[name] for name in names]
        assert answers[1].body == b""


async def test_a_link_from_elsewhere_opens_a_page_but_loads_no_file(api: ApiFixture) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await ask(api, "/topics/order", **elsewhere)).status == 200
    assert (await ask(api, "/topics/order", **{**elsewhere, "Sec-Fetch-Mode": "no-cors"})).status == 403
    assert (await ask(api, "/topics/order", "POST", **elsewhere)).status == 403


async def test_pages_need_no_key_and_are_no_part_of_the_api(api: ApiFixture) -> None:
    status, answer = await api.get("/")
    assert status == 200
    assert {route["path"] for route in answer["routes"] if "console" in route["path"]} == {"/console/session"}
