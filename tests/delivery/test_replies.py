"""Outcomes of replies: every row of the callback's contract."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aioresponses import aioresponses

from later.core.retry import Outcome, OutcomeKind
from later.core.validation import DAY_MS
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.client_settings import ClientSettings
from later.delivery.http_client import MAX_REPLY_BYTES
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.receivers import PolicySender, a_sender

URL = "http://receiver.example/callback"
IN_A_MINUTE = "Fri, 15 Jan 2027 08:01:00 GMT"
A_MINUTE_AGO = "Fri, 15 Jan 2027 07:59:00 GMT"
IN_TWO_DAYS = "Sun, 17 Jan 2027 08:00:00 GMT"


class MockResponse(aiohttp.ClientResponse):
    """A response as aioresponses 0.7 builds it, with the argument that aiohttp requires since 3.14, and a version."""

    version = aiohttp.HttpVersion11

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, stream_writer=Mock(), **named)


@pytest.fixture
async def sender() -> AsyncIterator[PolicySender]:
    async with a_sender(
        timeout_ms=1000, client=AiohttpClient(ClientSettings(max_lookups=8, max_idle=8, guard=NO_GUARD))
    ) as sender:
        yield sender


async def outcome_from(sender: PolicySender, status: int = 200, body: bytes = b"", **headers: str) -> Outcome:
    """Return the outcome of a call that gets this answer; `Retry_After="5"` is the header Retry-After."""
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    with aioresponses() as receiver:
        receiver.post(URL, status=status, body=body, headers=header_fields, response_class=MockResponse)
        return await sender.send(a_task(callback=URL), 1, NOW)


async def outcome_from_error(sender: PolicySender, error: Exception) -> Outcome:
    with aioresponses() as receiver:
        receiver.post(URL, exception=error, repeat=True)
        return await sender.send(a_task(callback=URL), 1, NOW)


def pad(body: bytes, size: int) -> bytes:
    """Return the same JSON, padded to `size` bytes."""
    return body + b" " * (size - len(body))


@each_case(
    ("status", "body"),
    [
        (200, b'{"code": 100}'),
        (201, b'{"code":100,"message":"done"}'),
        (299, b' {"code": 100} '),
        (200, b""),
        (204, b""),
        (200, b"OK"),
        (200, b"[]"),
        (200, b'[{"code": 101}]'),
        (200, b"101"),
        (200, b'"code"'),
        (200, b"null"),
        (200, b"{}"),
        (200, b'{"status": {"code": 101}}'),
        (200, b'{"Code": 101}'),
        (200, b'{"code": 101'),
        (200, b"\xff\xfe\x00"),
        (200, b"[" * 60_000),
        (200, b"<html>101</html>"),
    ],
)
async def test_a_task_is_done_with_code_100_or_without_a_code(sender: PolicySender, status: int, body: bytes) -> None:
    assert await outcome_from(sender, status, body) == Outcome(kind=OutcomeKind.DONE, status=status)


@each_case("status", [200, 202])
async def test_code_101_is_busy(sender: PolicySender, status: int) -> None:
    outcome = await outcome_from(sender, status, b'{"code": 101}')
    assert outcome == Outcome(kind=OutcomeKind.BUSY, reason="code", status=status, message="answered code 101: busy")


@each_case(
    "code",
    ["5", "0", "-100", "99", "102", '"100"', "100.0", "1e2", "true", "false", "null", "[100]", "{}", '""', "1" * 5000],
)
async def test_any_other_code_is_failed(sender: PolicySender, code: str) -> None:
    outcome = await outcome_from(sender, 200, f'{{"code": {code}}}'.encode())
    assert (outcome.kind, outcome.reason, outcome.status) == (OutcomeKind.FAILED, "code", 200)


@each_case("status", [429, 503])
@each_case("body", [b"", b'{"code": 100}', b'{"code": 5}'])
async def test_429_and_503_are_busy_whatever_the_body(sender: PolicySender, status: int, body: bytes) -> None:
    outcome = await outcome_from(sender, status, body)
    assert (outcome.kind, outcome.reason, outcome.status) == (OutcomeKind.BUSY, "status", status)


async def test_410_is_gone(sender: PolicySender) -> None:
    outcome = await outcome_from(sender, 410, b'{"code": 100}')
    assert (outcome.kind, outcome.reason, outcome.status) == (OutcomeKind.GONE, "status", 410)


@each_case("status", [300, 301, 302, 303, 304, 307, 308, 400, 401, 404, 409, 413, 418, 500, 502, 504])
async def test_any_other_status_is_failed_whatever_the_body(sender: PolicySender, status: int) -> None:
    outcome = await outcome_from(sender, status, b'{"code": 100}')
    assert outcome == Outcome(kind=OutcomeKind.FAILED, reason="status", status=status, message=f"answered {status}")


async def test_the_message_of_a_redirect_says_where_it_points(sender: PolicySender) -> None:
    outcome = await outcome_from(sender, 307, Location="https://user:s3cret@h/later/?token=s3cret")
    assert outcome.message == "answered 307, which points to https://h/later/: redirects are not followed"


@each_case(("status", "body"), [(503, b""), (500, b""), (200, b'{"code": 101}'), (200, b'{"code": 7}')])
async def test_later_after_and_later_reason_are_read(sender: PolicySender, status: int, body: bytes) -> None:
    outcome = await outcome_from(
        sender, status, body, Retry_After="60", Later_After="2.5", Later_Reason="out%20of%20stock"
    )
    assert (outcome.later_after_ms, outcome.retry_after_ms, outcome.message) == (2500, None, "out of stock")


@each_case(
    ("text", "pause_ms"),
    [
        ("120", 120_000),
        ("0", 0),
        ("172800", 2 * DAY_MS),
        (IN_A_MINUTE, 60_000),
        (A_MINUTE_AGO, 0),
        (IN_TWO_DAYS, 2 * DAY_MS),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
@each_case(("status", "body"), [(429, b""), (503, b""), (200, b'{"code": 101}')])
async def test_retry_after_of_a_busy_receiver_is_read(
    sender: PolicySender, status: int, body: bytes, text: str, pause_ms: int | None
) -> None:
    outcome = await outcome_from(sender, status, body, Retry_After=text)
    assert (outcome.kind, outcome.retry_after_ms) == (OutcomeKind.BUSY, pause_ms)


@each_case(("status", "body"), [(200, b""), (500, b""), (410, b""), (200, b'{"code": 5}')])
async def test_retry_after_of_other_answers_is_ignored(sender: PolicySender, status: int, body: bytes) -> None:
    assert (await outcome_from(sender, status, body, Retry_After="120")).retry_after_ms is None


@each_case("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "unheard-of"])
async def test_an_encoded_body_is_not_read(sender: PolicySender, encoding: str) -> None:
    outcome = await outcome_from(sender, 200, b'{"code": 5}', Content_Encoding=encoding)
    assert outcome.kind is OutcomeKind.DONE


@each_case("encoding", ["identity", " Identity ", ""])
async def test_a_body_with_encoding_identity_is_read(sender: PolicySender, encoding: str) -> None:
    outcome = await outcome_from(sender, 200, b'{"code": 5}', Content_Encoding=encoding)
    assert outcome.kind is OutcomeKind.FAILED


@each_case("content_type", ["text/plain", "text/html; charset=latin-1", "nonsense", ""])
async def test_json_is_read_whatever_its_content_type(sender: PolicySender, content_type: str) -> None:
    outcome = await outcome_from(sender, 200, b'{"code": 101}', Content_Type=content_type)
    assert outcome.kind is OutcomeKind.BUSY


@each_case(
    ("size", "kind"),
    [(MAX_REPLY_BYTES, OutcomeKind.BUSY), (MAX_REPLY_BYTES + 1, OutcomeKind.DONE)],
)
async def test_a_body_is_read_up_to_64_kib(sender: PolicySender, size: int, kind: OutcomeKind) -> None:
    outcome = await outcome_from(sender, 200, pad(b'{"code": 101}', size))
    assert outcome.kind is kind


@each_case(
    ("error", "reason"),
    [
        (TimeoutError(), "timeout"),
        (aiohttp.ServerTimeoutError(), "timeout"),
        (aiohttp.ClientPayloadError("of http://receiver.example/?secret"), "reply"),
        (aiohttp.ServerDisconnectedError(), "reply"),
        (ConnectionResetError(104, "reset"), "reply"),
        (aiohttp.InvalidURL("http://receiver.example/?secret"), "connect"),
        (aiohttp.ClientConnectionError("to http://receiver.example/?secret"), "connect"),
        (ssl.SSLError("of http://receiver.example/?secret"), "reply"),
        (HttpProcessingError(message="of http://receiver.example/?secret"), "reply"),
    ],
)
async def test_an_error_becomes_an_outcome_without_the_query(
    sender: PolicySender, error: Exception, reason: str
) -> None:
    outcome = await outcome_from_error(sender, error)
    assert (outcome.kind, outcome.reason, "secret" in outcome.message) == (OutcomeKind.FAILED, reason, False)


@each_case("error", [ValueError(), RecursionError(), KeyError(), AttributeError()])
async def test_an_error_that_is_not_of_http_or_the_system_is_no_outcome(sender: PolicySender, error: Exception) -> None:
    with pytest.raises(type(error)):
        await outcome_from_error(sender, error)


@each_case(
    "changes",
    [
        {"callback": "nonsense"},
        {"callback": "http://"},
        {"callback": "ftp://receiver.example/"},
        {"callback": "http://receiver.example:99999/"},
        {"headers": {"X-Own": "two\r\nlines"}},
        {"content": "ends in \ud83d"},
        {"execute_at": 10**18},
    ],
)
async def test_a_task_that_cannot_be_sent_is_a_failure(sender: PolicySender, changes: dict[str, Any]) -> None:
    outcome = await sender.send(a_task(**{"callback": "http://127.0.0.1:9/", **changes}), 1, NOW)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "connect")
