"""The server below the routes: malformed HTTP, the fast path, and the form of answers."""

from __future__ import annotations

import asyncio
import json
from email.utils import parsedate_to_datetime

import pytest

from later import __version__
from tests.api.api_fixture import MINIMAL, ApiFixture, create_result, ok, serve_api
from tests.cases import each_case


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03s3cret",
        b"POST /create HTTP/1.1\r\nHost: localhost\r\nAuthorization: s3cret\x00\r\n\r\n",
        b"POST /create HTTP/1.1\r\nHost: localhost\r\nContent-Length: s3cret\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"s3cret" * 5000 + b"\r\n\r\n",
    ],
)
async def test_malformed_http_is_answered_with_a_problem_document(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        writer.write(request_bytes)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert b"Content-Type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["title"], problem["status"]) == ("Bad Request", 400)
    assert problem["detail"].startswith("malformed HTTP: ")
    assert "s3cret" not in problem["detail"] + caplog.text
    value = api.metrics.registry.get_sample_value
    assert value("later_http_requests_total", {"route": "other", "code": "400"}) == 1


@each_case(
    ("request_bytes", "reason"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", "Missing 'Host' header in request."),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "Duplicate 'Host' header found."),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n",
            "Duplicate 'Content-Type' header found.",
        ),
        (b"GET http://[s3cret]/ HTTP/1.1\r\nHost: a\r\n\r\n", "expected a path as the target"),
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", "expected a path as the target"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding can't be present with Content-Length",
        ),
    ],
)
async def test_malformed_http_is_told_what_is_wrong(request_bytes: bytes, reason: str) -> None:
    _, _, body = (await send(request_bytes)).partition(b"\r\n\r\n")
    assert json.loads(body)["detail"] == f"malformed HTTP: {reason}"


async def test_well_formed_http_is_served() -> None:
    async with serve_api() as api:
        assert (await api.post("/create", {**MINIMAL, "id": "a"})) == ok(**create_result("a"))
        assert (await api.post("/nowhere", {}))[0] == 404


@each_case("path", ["/create", "/create?", "/creat%65", "http://elsewhere/create"])
async def test_equivalent_paths_are_the_same_route(path: str) -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        body = json.dumps({**MINIMAL, "id": "a"}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(CREATED)


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        body = json.dumps({**MINIMAL, "id": "a"}).encode()
        head = b"POST /create HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.endswith(CREATED)


async def send(requests: bytes) -> bytes:
    """Send requests on one connection, and return all answers; the last request must close the connection."""
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        writer.write(requests)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


def create_request(line: str, *headers: str) -> bytes:
    """Return a request that creates the task `a`."""
    body = json.dumps({**MINIMAL, "id": "a"})
    return "\r\n".join([line, "Host: localhost", *headers, f"Content-Length: {len(body)}", "", body]).encode()


CREATED = b'{"id":"a","due_at":"2027-01-15T08:00:00.000Z","created":true}'
CREATE, CLOSE = "POST /create HTTP/1.1", "Connection: close"


async def test_an_answer_has_the_same_headers_with_and_without_keep_alive() -> None:
    answers = await send(create_request(CREATE) + create_request(CREATE, CLOSE))
    first, second = (b"HTTP/1.1" + part for part in answers.split(b"HTTP/1.1")[1:])
    kept_alive, closed = (_headers(answer) for answer in (first, second))
    assert first.endswith(b"\r\n\r\n" + CREATED)
    assert second.endswith(b"\r\n\r\n" + CREATED.replace(b"true", b"false"))
    assert closed.pop("Connection") == "close"
    assert (kept_alive.pop("Content-Length"), closed.pop("Content-Length")) == ("61", "62")
    assert abs(parsedate_to_datetime(kept_alive.pop("Date")) - parsedate_to_datetime(closed.pop("Date"))).seconds <= 1
    assert kept_alive == closed


async def test_pipelined_requests_are_answered_in_order() -> None:
    answers = await send(create_request(CREATE) * 3 + create_request(CREATE, CLOSE))
    assert [part[-6:] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [b":true}"] + [b"false}"] * 3


async def test_an_http_1_0_client_is_answered_in_http_1_0() -> None:
    answer = await send(create_request("POST /create HTTP/1.0"))
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(CREATED)


async def test_a_head_request_gets_no_body() -> None:
    answer = await send(b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + create_request(CREATE, CLOSE))
    head, create = (b"HTTP/1.1" + part for part in answer.split(b"HTTP/1.1")[1:])
    assert head.endswith(b"\r\n\r\n")
    assert create.endswith(CREATED)


def _headers(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


async def test_a_body_that_is_not_as_declared_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        head = b"POST /create HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
        writer.write(head + b"Content-Length: 4\r\n\r\nxxxx")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert caplog.text == ""


async def exchange(*lines: str, body: bytes = b"") -> tuple[bytes, bytes]:
    """Send a request with this body on a connection of its own, and return the head and the rest of what comes."""
    answer = await send("\r\n".join([*lines, "", ""]).encode() + body)
    head, _, rest = answer.partition(b"\r\n\r\n")
    return head, rest


SMUGGLED = b"2\r\n{}\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""A chunked body, and a request that a proxy may have taken for part of the body before."""


@each_case(
    ("line", "headers"),
    [
        ("POST /create HTTP/1.0", ["Transfer-Encoding: chunked"]),
        ("POST /create HTTP/1.0", ["Transfer-Encoding: chunked", "Connection: keep-alive"]),
        ("POST /create/batch HTTP/1.0", ["Transfer-Encoding: chunked", "Connection: keep-alive"]),
        ("GET /topics HTTP/1.0", ["Transfer-Encoding: chunked", "Connection: keep-alive"]),
        ("POST /create HTTP/1.1", ["Content-Length: 2", "Transfer-Encoding: chunked"]),
        ("POST /create HTTP/1.1", ["Transfer-Encoding: chunked", "Content-Length: 2"]),
        ("POST /create HTTP/1.1", ["Content-Length: 2", "Content-Length: 2"]),
        ("POST /create HTTP/1.1", ["Content-Length: 2", "Content-Length: 22"]),
        ("POST /create HTTP/1.1", ["Content-Length: 2, 2"]),
        ("POST /create HTTP/1.1", ["Content-Length: +2"]),
        ("POST /create HTTP/1.1", ["Content-Length : 2"]),
        ("POST /create HTTP/1.1", ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"]),
        ("POST /create HTTP/1.1", ["Transfer-Encoding: chunked, chunked"]),
        ("POST /create HTTP/1.1", ["Transfer-Encoding: xchunked"]),
        ("POST /create HTTP/1.1", ["Transfer-Encoding: identity"]),
    ],
)
async def test_a_body_of_two_possible_lengths_is_refused_and_ends_the_connection(line: str, headers: list[str]) -> None:
    head, rest = await exchange(line, "Host: localhost", *headers, body=SMUGGLED)
    assert head.split(b" ")[1] == b"400"
    assert json.loads(rest)["detail"].startswith("malformed HTTP: ")  # so it is the only answer


@each_case(
    ("header", "accepted"),
    [
        ("Content-Encoding: br", 'identity or gzip or deflate, got "br"'),
        ("Content-Encoding: zstd", 'identity or gzip or deflate, got "zstd"'),
        ("Content-Encoding: compress", 'identity or gzip or deflate, got "compress"'),
        ("Content-Encoding: gzip, gzip", 'identity or gzip or deflate, got "gzip, gzip"'),
        ("Content-Encoding: gzip\r\nContent-Encoding: gzip", 'identity or gzip or deflate, got "gzip, gzip"'),
        ("Transfer-Encoding: gzip, chunked", 'chunked, got "gzip, chunked"'),
    ],
)
async def test_an_encoding_that_is_not_accepted_is_415(header: str, accepted: str) -> None:
    length, body = ([], SMUGGLED[:12]) if header.startswith("Transfer") else (["Content-Length: 2"], b"{}")
    head, rest = await exchange(CREATE, "Host: localhost", header, *length, "Connection: close", body=body)
    problem = json.loads(rest)
    assert (head.split(b" ")[1], problem["type"]) == (b"415", "/problems/unsupported")
    assert problem["detail"] == f"{header.partition(':')[0]}: expected {accepted}"
    assert b"Accept-Encoding: identity, gzip, deflate" in head


@each_case("line", [CREATE, "GET /livez HTTP/1.1", "POST /nowhere HTTP/1.1"])
async def test_an_unknown_expectation_is_417(line: str) -> None:
    head, rest = await exchange(line, "Host: localhost", "Expect: bla")
    problem = json.loads(rest)
    assert (head.split(b" ")[1], problem["type"]) == (b"417", "/problems/unsupported")
    assert problem["detail"] == 'Expect: expected 100-continue, got "bla"'


async def test_a_head_request_with_an_encoding_that_is_not_accepted_gets_no_body() -> None:
    compressed = ("Host: localhost", "Content-Encoding: br", "Content-Length: 5", "Connection: close")
    for path, status in (("/livez", b"200"), ("/create", b"405")):
        head, rest = await exchange(f"HEAD {path} HTTP/1.1", *compressed, body=b"hello")
        assert (head.split(b" ")[1], rest) == (status, b"")


@each_case("line", ["GET /livez HTTP/1.1", CREATE, "POST /create/batch HTTP/1.1", "POST /nowhere HTTP/1.1"])
async def test_a_body_that_is_not_compressed_as_it_says_is_read_to_its_end(line: str) -> None:
    broken = "\r\n".join([line, "Host: localhost", "Content-Encoding: gzip", "Content-Length: 5", "", "hello"])
    answers = await send(broken.encode() + create_request(CREATE, CLOSE))
    assert b"Connection: close" not in answers.split(b"HTTP/1.1")[1]
    assert answers.endswith(CREATED)


@each_case(
    ("line", "headers", "status"),
    [
        (CREATE, ["Content-Length: 1048577"], b"413"),
        ("POST /create/batch HTTP/1.1", ["Content-Length: 16777217"], b"413"),
        (CREATE, ["Content-Length: 5", "Content-Encoding: compress"], b"415"),
        (CREATE, ["Content-Length: 5", "Origin: http://evil.example"], b"403"),
        ("POST /create?dryrun=true HTTP/1.1", ["Content-Length: 5"], b"400"),
    ],
)
async def test_what_the_head_says_is_refused_before_the_body_is_sent(
    line: str, headers: list[str], status: bytes
) -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        writer.write("\r\n".join([line, "Host: localhost", "Expect: 100-continue", *headers, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert head.split(b" ")[1] == status


async def test_a_refusal_before_the_body_is_sent_ends_the_connection() -> None:
    length = f"Content-Length: {len(SMUGGLED)}"
    head, rest = await exchange(
        "POST /create?x=1 HTTP/1.1", "Host: localhost", "Expect: 100-continue", length, body=SMUGGLED
    )
    assert (head.split(b" ")[1], json.loads(rest)["field"]) == (b"400", "x")
    assert b"Connection: close" in head


@each_case(
    ("line", "headers", "status"),
    [
        (CREATE, ["Content-Length: 1048577"], b"413"),
        (CREATE, ["Content-Length: 1048577", "Expect: 100-continue"], b"413"),
        (CREATE, ["Content-Length: 5", "Content-Encoding: compress"], b"415"),
        (CREATE, ["Content-Length: 5", "Expect: bla"], b"417"),
        (CREATE, ["Content-Length: 5", "Expect: 100-continue", "Expect: bla"], b"417"),
        (CREATE, ["Content-Length: 5", "Origin: http://evil.example"], b"403"),
        ("POST /create HTTP/1.0", ["Transfer-Encoding: chunked"], b"400"),
    ],
)
async def test_a_refusal_that_ends_the_connection_ends_with_it(line: str, headers: list[str], status: bytes) -> None:
    async with serve_api() as api:
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        writer.write("\r\n".join([line, "Host: localhost", *headers, "", ""]).encode())
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.split(b" ")[1] == status


async def test_every_answer_names_the_server_and_is_not_stored(api: ApiFixture) -> None:
    calls = [
        ("POST", "/create", 200), ("GET", "/topics", 200), ("GET", "/livez", 200), ("GET", "/metrics", 200),
        ("GET", "/nowhere", 404), ("GET", "/create", 405), ("POST", "/query", 400), ("GET", "/?x=1", 400),
        ("DELETE", "/admin/v2/namespaces/public/x/delayedDelivery", 204),
    ]  # fmt: skip
    for method, path, status in calls:
        async with api.http.request(method, path, json=MINIMAL if path == "/create" else {}) as response:
            assert response.status == status
            assert response.headers["Server"] == f"later/{__version__}"
            assert response.headers["Cache-Control"] == "no-store"
