"""Errors below /v2: whatever goes wrong, the answer is a title and a description, which Zaqar's clients show."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from later.core.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    PushedTopic,
    Refused,
    SlowBody,
    StoreFault,
    StoreFull,
    StoreMismatch,
    TooLarge,
    TooManyWaiting,
    TooOften,
    UnknownExpectation,
    Unsupported,
)
from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import ZaqarApi
from tests.cases import each_case

NOTHING_HERE = (404, "Not found", "There is nothing at this path.")
TRY_AGAIN = "Please try again in a few seconds."
CALLS = [
    ("GET", "/v2/health", None, "Health status could not be read."),
    ("GET", "/v2/queues", None, "Queues could not be listed."),
    ("PUT", "/v2/queues/jobs", None, "Queue could not be created."),
    ("GET", "/v2/queues/jobs", None, "Queue metadata could not be retrieved."),
    ("PATCH", "/v2/queues/jobs", [{"op": "add", "path": "/metadata/a", "value": 1}], "Queue could not be updated."),
    ("DELETE", "/v2/queues/jobs", None, "Queue could not be deleted."),
    ("GET", "/v2/queues/jobs/stats", None, "Queue stats could not be read."),
    ("POST", "/v2/queues/jobs/purge", None, "Queue could not be purged."),
    ("POST", "/v2/queues/jobs/messages", {"messages": [{"body": 1}]}, "Messages could not be enqueued."),
    ("GET", "/v2/queues/jobs/messages", None, "Messages could not be listed."),
    ("GET", "/v2/queues/jobs/messages?ids=a,b", None, "Message could not be retrieved."),
    ("DELETE", "/v2/queues/jobs/messages?ids=a", None, "Messages could not be deleted."),
    ("DELETE", "/v2/queues/jobs/messages?pop=1", None, "Messages could not be popped."),
    ("GET", "/v2/queues/jobs/messages/a", None, "Message could not be retrieved."),
    ("DELETE", "/v2/queues/jobs/messages/a", None, "Message could not be deleted."),
    ("POST", "/v2/queues/jobs/claims", None, "Claim could not be created."),
    ("GET", "/v2/queues/jobs/claims/51db7067821e727dc24df754", None, "Claim could not be queried."),
    ("PATCH", "/v2/queues/jobs/claims/51db7067821e727dc24df754", {"ttl": 60}, "Claim could not be updated."),
    ("DELETE", "/v2/queues/jobs/claims/51db7067821e727dc24df754", None, "Claim could not be deleted."),
]
"""Each call that needs the store, and the sentence that answers it while the store is away."""
PATCH_TYPE: dict[str, str | None] = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}


async def exchange(api: ApiFixture, request: str) -> tuple[bytes, dict[str, Any]]:
    """Send a request on a connection of its own, and return the head and the body of the answer."""
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    writer.write(request.encode())
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head, json.loads(body)


@each_case(
    "path",
    [
        "/v2", "/v2/nothing", "/v2/queues/", "/v2/queues/jobs/subscriptions", "/v2/queues/jobs/subscriptions/x/confirm",
        "/v2/queues/jobs/share", "/v2/pools", "/v2/flavors/x", "/v2/topics", "/v2//ping", "/v2/480924/queues/",
    ],
)  # fmt: skip
async def test_what_is_not_there_is_404_whatever_the_headers_are(zaqar: ZaqarApi, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert await zaqar.error(method, path) == NOTHING_HERE
        assert await zaqar.error(method, path, headers={"Client-ID": None, "X-Project-Id": None}) == NOTHING_HERE


async def test_other_paths_have_problem_documents_as_before(api: ApiFixture) -> None:
    for path in ("/v20/ping", "/v1/queues", "/nothing", "/vier"):
        assert (await api.get(path))[1]["type"] == "about:blank"


async def test_a_method_that_a_path_lacks_is_named_and_the_others_are_listed(zaqar: ZaqarApi) -> None:
    answer = await zaqar.call("POST", "/v2/queues/jobs")
    assert (answer.status, answer.body) == (
        405, {"title": "Method not allowed", "description": "This path does not take POST."},
    )  # fmt: skip
    assert answer.headers["Allow"] == "DELETE,GET,HEAD,PATCH,PUT"


@each_case(
    ("headers", "status", "title"),
    [
        ({"Origin": "https://evil.example"}, 403, "Not authorized"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "Not authorized"),
        ({"Host": "evil.example"}, 403, "Not authorized"),
        ({"Expect": "bla"}, 400, "Invalid API request"),
        ({"Content-Encoding": "br"}, 400, "Invalid request body"),
        ({"Content-Encoding": "gzip"}, 400, "Invalid API request"),
    ],
)
async def test_headers_that_are_refused(zaqar: ZaqarApi, headers: dict[str, str], status: int, title: str) -> None:
    path = "/v2/queues/jobs/messages"
    assert (await zaqar.error("POST", path, {"messages": []}, headers={**headers}))[:2] == (status, title)
    if title != "Invalid request body" and "Content-Encoding" not in headers:
        assert (await zaqar.error("GET", "/v2/nothing", headers={**headers}))[:2] == (status, title)


async def test_malformed_http_on_a_known_path_is_refused_in_the_same_form(api: ApiFixture) -> None:
    request = "POST /v2/queues/jobs/claims HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    head, body = await exchange(api, request)
    assert head.startswith(b"HTTP/1.0 400 ")
    assert body == {"title": "Invalid API request", "description": "malformed HTTP: Transfer-Encoding in HTTP/1.0"}


async def test_a_body_that_is_too_large_is_400_and_ends_the_connection(api: ApiFixture) -> None:
    for path in ("/v2/queues/jobs/messages", "/v2/queues/jobs/claims", "/v2/queues/jobs/purge"):
        head, body = await exchange(
            api,
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nClient-ID: {'1' * 32}\r\nX-Project-Id: p\r\n"
            "Content-Length: 99999999\r\n\r\n",
        )
        assert head.startswith(b"HTTP/1.1 400 "), path
        assert b"\r\nConnection: close" in head, path
        assert body.keys() == {"title", "description"}


async def test_a_store_that_is_away_is_said_in_zaqars_words(zaqar: ZaqarApi) -> None:
    await zaqar.call("PUT", "/v2/queues/jobs")
    await zaqar.api.lose_store()
    for method, path, body, sentence in CALLS:
        answer = await zaqar.call(method, path, body, headers=PATCH_TYPE if method == "PATCH" else None)
        assert (answer.status, answer.body) == (
            503, {"title": "Service temporarily unavailable", "description": f"{sentence} {TRY_AGAIN}"},
        ), (method, path)  # fmt: skip
        assert answer.headers["Retry-After"] == "1"


async def test_a_fault_is_500_and_its_incident_is_in_the_log(zaqar: ZaqarApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("s3cret")

    monkeypatch.setattr(zaqar.api.client, "execute_each", fail)
    with capture_logs() as logs:
        status, title, description = await zaqar.error("GET", "/v2/queues/jobs")
    [entry] = logs
    assert (entry["event"], entry["path"]) == ("request failed", "/v2/queues/jobs")
    assert (status, title) == (500, "Internal server error")
    assert description == f"this is a fault of later's own: its log says more (incident {entry['incident']})"


@each_case(
    ("error", "status", "title"),
    [
        (PushedTopic("jobs"), 409, "Resource conflict"),
        (Conflict("changed"), 409, "Resource conflict"),
        (NotFound("a"), 404, "Not found"),
        (Refused("wrong"), 400, "Invalid API request"),
        (UnknownExpectation("wrong"), 400, "Invalid API request"),
        (TooLarge("too large"), 400, "Invalid request body"),
        (SlowBody("too slow"), 400, "Invalid request body"),
        (Unsupported("compressed"), 400, "Invalid request body"),
        (NotAllowed("not for this key", reason="scope"), 403, "Not authorized"),
        (TooOften("too often", 5), 503, "Service temporarily unavailable"),
        (StoreFull("full"), 503, "Service temporarily unavailable"),
        (StoreMismatch("other shards"), 503, "Service temporarily unavailable"),
        (TooManyWaiting("too many"), 503, "Service temporarily unavailable"),
        (StoreFault("a task is in no bucket"), 500, "Internal server error"),
    ],
)
async def test_an_error_of_ours_has_the_title_of_zaqars(
    zaqar: ZaqarApi, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, title: str
) -> None:
    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(zaqar.api.client, "execute_each", fail)
        assert (await zaqar.error("GET", "/v2/queues/jobs"))[:2] == (status, title)
