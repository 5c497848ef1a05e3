"""What is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
from email.utils import parsedate_to_datetime

import pytest

from tests.api.frontend import GOOD, serve_frontend


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03hush",
        b"POST /create HTTP/1.1\r\nHost: h\r\nAuthorization: hush\x00\r\n\r\n",
        b"POST /create HTTP/1.1\r\nHost: h\r\nContent-Length: hush\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: h\r\nX-A: " + b"hush" * 5000 + b"\r\n\r\n",
    ],
)
async def test_malformed_http_is_a_problem_in_the_same_shape(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_frontend() as frontend:
        reader, writer = await asyncio.open_connection(frontend.http.host, frontend.http.port)
        writer.write(request_bytes)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert b"Content-Type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["title"], problem["status"]) == ("Bad Request", 400)
    assert problem["detail"].startswith("malformed HTTP: ")
    assert "hush" not in problem["detail"] + caplog.text


async def test_what_is_http_is_served_as_ever() -> None:
    async with serve_frontend() as frontend:
        assert (await frontend.post("/create", {**GOOD, "id": "a"})) == (200, {"id": "a", "created": True})
        assert (await frontend.post("/nowhere", {}))[0] == 404


@pytest.mark.parametrize("path", ["/create", "/create?for=me", "/creat%65", "http://elsewhere/create"])
async def test_a_path_is_the_same_however_it_is_written(path: str) -> None:
    async with serve_frontend() as frontend:
        reader, writer = await asyncio.open_connection(frontend.http.host, frontend.http.port)
        body = json.dumps({**GOOD, "id": "a"}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"id":"a","created":true}')


async def test_a_caller_that_waits_to_be_asked_for_its_body_is_asked() -> None:
    async with serve_frontend() as frontend:
        reader, writer = await asyncio.open_connection(frontend.http.host, frontend.http.port)
        body = json.dumps({**GOOD, "id": "a"}).encode()
        head = b"POST /create HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: 100-continue\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.endswith(b'{"id":"a","created":true}')


async def heard(requests: bytes) -> bytes:
    """All that a connection says to these requests; the last of them must close it."""
    async with serve_frontend() as frontend:
        reader, writer = await asyncio.open_connection(frontend.http.host, frontend.http.port)
        writer.write(requests)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


def asked(line: str, *headers: str) -> bytes:
    """A request that creates the task `a`."""
    body = json.dumps({**GOOD, "id": "a"})
    return "\r\n".join([line, "Host: h", *headers, f"Content-Length: {len(body)}", "", body]).encode()


CREATE, CLOSE = "POST /create HTTP/1.1", "Connection: close"


async def test_an_answer_on_a_connection_that_stays_open_says_what_one_on_another_says() -> None:
    answers = await heard(asked(CREATE) + asked(CREATE, CLOSE))
    first, second = (b"HTTP/1.1" + part for part in answers.split(b"HTTP/1.1")[1:])
    stays, closes = (_headers(answer) for answer in (first, second))
    assert first.endswith(b'\r\n\r\n{"id":"a","created":true}')
    assert second.endswith(b'\r\n\r\n{"id":"a","created":false}')
    assert closes.pop("Connection") == "close"
    assert (stays.pop("Content-Length"), closes.pop("Content-Length")) == ("25", "26")
    assert abs(parsedate_to_datetime(stays.pop("Date")) - parsedate_to_datetime(closes.pop("Date"))).seconds <= 1
    assert stays == closes


async def test_requests_that_were_sent_at_once_are_answered_in_turn() -> None:
    answers = await heard(asked(CREATE) * 3 + asked(CREATE, CLOSE))
    assert [part[-6:] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [b":true}"] + [b"false}"] * 3


async def test_an_old_client_is_answered_in_its_own_way() -> None:
    answer = await heard(asked("POST /create HTTP/1.0"))
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b'{"id":"a","created":true}')


async def test_who_asks_for_the_head_alone_gets_no_body() -> None:
    answer = await heard(b"HEAD /livez HTTP/1.1\r\nHost: h\r\n\r\n" + asked(CREATE, CLOSE))
    head, create = (b"HTTP/1.1" + part for part in answer.split(b"HTTP/1.1")[1:])
    assert head.endswith(b"\r\n\r\n")
    assert create.endswith(b'{"id":"a","created":true}')


def _headers(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


async def test_a_body_that_is_not_what_it_says_is_nothing_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_frontend() as frontend:
        reader, writer = await asyncio.open_connection(frontend.http.host, frontend.http.port)
        head = b"POST /create HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
        writer.write(head + b"Content-Length: 4\r\n\r\nxxxx")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert caplog.text == ""
