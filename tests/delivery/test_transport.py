"""Requests and replies as bytes, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from later.core.policy import Ack
from later.core.retry import Outcome, OutcomeKind
from later.delivery.http_client import MAX_REPLY_BYTES
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.receivers import (
    BUSY,
    DONE,
    SHORT_TIMEOUT_MS,
    Behavior,
    Connection,
    Receiver,
    a_sender,
    answers,
    answers_and_closes,
    deliver_to,
    parse_headers,
    reply_with_body,
)

pytestmark = pytest.mark.usefixtures("client")


async def sent_request(path: str = "/", **changes: Any) -> tuple[str, bytes]:
    """Return head and body of the request that is sent for a task."""
    requests: list[tuple[str, bytes]] = []

    async def record(connection: Connection) -> None:
        requests.append(await connection.read_request())
        await connection.write(DONE)

    async with Receiver(record).listen() as receiver, a_sender() as sender:
        await sender.send(a_task(callback=receiver.url + path, **changes), 3, NOW + 1999, failures=2)
    return requests[0]


class TestRequest:
    async def test_a_request_is_what_the_contract_says(self) -> None:
        head, body = await sent_request(
            "/cb?x=1",
            id="order-1",
            topic="order",
            content="grüße",
            created_at=1504934220042,
            execute_at=1504934230007,
            headers={"X-Own": "1"},
            max_retry=5,
        )
        headers = parse_headers(head) | {"host": "", "content-length": "", "accept": ""}
        assert (head.split("\r\n")[0], headers, json.loads(body)) == (
            "POST /cb?x=1 HTTP/1.1",
            {
                "host": "",
                "content-length": "",
                "accept": "",
                "content-type": "application/json",
                "user-agent": "later/0.1",
                "accept-encoding": "identity",
                "webhook-id": "order-1",
                "webhook-timestamp": str(NOW // 1000 + 1),
                "later-attempt": "3",
                "later-due": "2017-09-09T05:17:10.007Z",
                "later-created": "2017-09-09T05:17:00.042Z",
                "later-timeout": "60",
                "later-failures": "2",
                "later-max-retry": "5",
                "x-own": "1",
            },
            {"id": "order-1", "topic": "order", "content": "grüße"},
        )

    async def test_a_task_may_replace_headers_without_a_meaning_of_their_own(self) -> None:
        head, _ = await sent_request(headers={"uSER-agent": "mine", "ACCEPT-encoding": "gzip"})
        assert [line for line in head.lower().split("\r\n") if line.startswith(("user-agent", "accept-e"))] == [
            "user-agent: mine",
            "accept-encoding: gzip",
        ]

    async def test_a_header_may_hold_any_character(self) -> None:
        head, _ = await sent_request(headers={"X-Own": "grüße 🦔"})
        assert parse_headers(head)["x-own"] == "grüße 🦔"

    @each_case(
        ("path", "target"),
        [
            ("", "/"),
            ("/", "/"),
            ("?x=1", "/?x=1"),
            ("/a%2Fb%41/%7e?q=a+b%20%2B", "/a%2Fb%41/%7e?q=a+b%20%2B"),
            ("/a//b/../c;d=1,2?a=1&a==&b[]=2", "/a//b/../c;d=1,2?a=1&a==&b[]=2"),
            ("/?next=http://h/p?q@r", "/?next=http://h/p?q@r"),
            ('/"<>|^{}`%?a="<>|^{}`%&b=%4', "/%22%3C%3E%7C%5E%7B%7D%60%25?a=%22%3C%3E%7C%5E%7B%7D%60%25&b=%254"),
            ("/%41{%2F?%41=é", "/%41%7B%2F?%41=%C3%A9"),
            ("/grüße?ü=🦔", "/gr%C3%BC%C3%9Fe?%C3%BC=%F0%9F%A6%94"),
            ("/%", "/%25"),
            ("/%zz%%20", "/%25zz%25%20"),
            ("?", "/?"),
            ("/a?", "/a?"),
            ("/%41 ?".replace(" ", ""), "/%41?"),
            ("/ü?", "/%C3%BC?"),
            ("/a??", "/a??"),
            ("/a?b?", "/a?b?"),
        ],
    )
    async def test_the_url_is_sent_as_it_was_written(self, path: str, target: str) -> None:
        head, _ = await sent_request(path)
        assert head.split("\r\n")[0] == f"POST {target} HTTP/1.1"

    async def test_an_address_in_another_form_is_called(self) -> None:
        async with Receiver(answers(DONE)).listen() as receiver, a_sender() as sender:
            callback = receiver.url.replace("127.0.0.1", "0x7f.1")
            assert (await sender.send(a_task(callback=callback), 1, NOW)).kind is OutcomeKind.DONE

    async def test_a_long_content_arrives_whole(self) -> None:
        _, body = await sent_request(content='"' * 2_000_000)
        assert json.loads(body)["content"] == '"' * 2_000_000

    async def test_an_empty_content_arrives_empty(self) -> None:
        _, body = await sent_request(content="")
        assert json.loads(body)["content"] == ""

    async def test_proxies_of_the_environment_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert (await deliver_to(answers(DONE))).kind is OutcomeKind.DONE

    async def test_cookies_are_not_kept(self) -> None:
        heads: list[str] = []

        async def set_cookies(connection: Connection) -> None:
            for _ in range(2):
                heads.append((await connection.read_request())[0].lower())
                await connection.write(DONE.replace(b"\r\n", b"\r\nSet-Cookie: a=b\r\n", 1))

        await deliver_to(set_cookies, calls=2)
        assert ["cookie" in head for head in heads] == [False, False]

    async def test_redirects_are_not_followed(self) -> None:
        async with Receiver(answers(DONE)).listen() as target, a_sender() as sender:
            moved = f"HTTP/1.1 307 Moved\r\nLocation: {target.url}\r\nContent-Length: 0\r\n\r\n".encode()
            async with Receiver(answers(moved)).listen() as receiver:
                outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert (outcome.reason, outcome.status, target.connections) == ("status", 307, 0)


def chunked(*chunks: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


class TestReply:
    @each_case(
        ("reply", "kind"),
        [
            (BUSY, OutcomeKind.BUSY),
            (b"HTTP/1.1 204 No Content\r\n\r\n", OutcomeKind.DONE),
            (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", OutcomeKind.BUSY),
            (chunked(b"7\r\n", b'{"code"\r\n', b"6\r\n: 101}\r\n", b"0\r\n\r\n"), OutcomeKind.BUSY),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + BUSY, OutcomeKind.BUSY),
            (b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 3 + BUSY, OutcomeKind.BUSY),
            (reply_with_body(b"\x1f\x8b\x08 is no gzip", "200 OK", "Content-Encoding: gzip"), OutcomeKind.DONE),
            (reply_with_body(b'{"code": 101}'.ljust(MAX_REPLY_BYTES)), OutcomeKind.BUSY),
            (reply_with_body(b'{"code": 101}'.ljust(MAX_REPLY_BYTES + 1)), OutcomeKind.DONE),
            (chunked(b"10001\r\n", b'{"code": 101}'.ljust(MAX_REPLY_BYTES + 1), b"\r\n0\r\n\r\n"), OutcomeKind.DONE),
        ],
    )
    async def test_a_complete_reply_decides_the_outcome(self, reply: bytes, kind: OutcomeKind) -> None:
        assert (await deliver_to(answers(reply))).kind is kind

    @each_case("version", [b"1.0", b"1.1"])
    async def test_a_body_may_end_with_the_connection(self, version: bytes) -> None:
        reply = b"HTTP/" + version + b" 200 OK\r\nConnection: close\r\n\r\n" + b'{"code": 101}'
        assert (await deliver_to(answers_and_closes(reply))).kind is OutcomeKind.BUSY

    @each_case(
        "reply",
        [
            b"",
            b"HTTP/1.1 2",
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            BUSY[:-1],
            b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n",
            chunked(b"7\r\n", b'{"code"\r\n'),
            chunked(b"zz\r\n", b'{"code"\r\n'),
            chunked(b"7\r\n", b'{"code": 100}\r\n0\r\n\r\n'),
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x15\x03\x01\x00\x02\x02\x16",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 5000 + b"\r\n",
            b"HTTP/1.1 200 " + b"O" * 100_000 + b"\r\n\r\n",
        ],
    )
    async def test_a_broken_reply_is_a_failure(self, reply: bytes) -> None:
        outcome = await deliver_to(answers_and_closes(reply))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "reply")

    async def test_a_reset_connection_is_a_failure(self) -> None:
        async def reset(connection: Connection) -> None:
            await connection.read_request()
            connection.reset()

        outcome = await deliver_to(reset)
        assert outcome == Outcome(
            kind=OutcomeKind.FAILED, reason="reply", message="no complete answer: Connection reset by peer"
        )

    async def test_an_answer_may_come_before_the_request_was_read(self) -> None:
        async def answer_early(connection: Connection) -> None:
            await connection.read_head()
            await connection.write(BUSY)
            await connection.wait_closed()

        assert (await deliver_to(answer_early, content="x" * 20_000_000)).kind is OutcomeKind.BUSY

    async def test_a_long_reply_is_not_drained_and_its_connection_not_reused(self) -> None:
        async def never_end(connection: Connection) -> None:
            await connection.read_request()
            await connection.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await connection.write(b"x" * 65_536)

        async with Receiver(never_end, answers(DONE)).listen() as receiver, a_sender() as sender:
            task = a_task(callback=receiver.url)
            kinds = [(await sender.send(task, 1, NOW)).kind for _ in range(2)]
        assert (kinds, receiver.connections) == ([OutcomeKind.DONE, OutcomeKind.DONE], 2)

    async def test_an_announced_body_of_ten_mib_is_not_read(self) -> None:
        async def announce(connection: Connection) -> None:
            await connection.read_request()
            await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n")
            await connection.wait_closed()

        assert (await deliver_to(announce)).kind is OutcomeKind.DONE

    @each_case("size", [9, 10_000_000])
    @each_case("start", [b"", b"x"])
    async def test_an_error_status_waits_for_no_body(self, size: int, start: bytes) -> None:
        announced = f"HTTP/1.1 429 Slow Down\r\nRetry-After: 7\r\nContent-Length: {size}\r\n\r\n".encode()
        outcome = await deliver_to(answers(announced + start))
        assert (outcome.kind, outcome.status, outcome.retry_after_ms) == (OutcomeKind.BUSY, 429, 7000)

    async def test_an_error_status_needs_no_complete_body(self) -> None:
        outcome = await deliver_to(answers_and_closes(b"HTTP/1.1 410 Gone\r\nContent-Length: 9\r\n\r\nx"))
        assert outcome.kind is OutcomeKind.GONE

    async def test_an_error_status_decides_at_the_deadline_too(self) -> None:
        outcome = await deliver_to(
            answers(b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n"), timeout_ms=SHORT_TIMEOUT_MS
        )
        assert (outcome.reason, outcome.status) == ("status", 500)

    @each_case("end", [answers, answers_and_closes])
    async def test_with_ack_status_a_status_of_2xx_waits_for_no_body(self, end: Callable[[bytes], Behavior]) -> None:
        announced = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"
        async with Receiver(end(announced)).listen() as receiver, a_sender(ack=Ack.STATUS) as sender:
            outcome = await sender.send(a_task(callback=receiver.url), 1, NOW)
        assert outcome == Outcome(kind=OutcomeKind.DONE, status=200)

    @each_case(("raw", "message"), [(b"caf\xe9", "caf\ufffd"), ("café".encode(), "café")])
    async def test_bytes_of_a_reason_that_are_not_utf_8_are_replaced(self, raw: bytes, message: str) -> None:
        reply = b"HTTP/1.1 500 x\r\nContent-Length: 0\r\nlater-reason: " + raw + b"\r\n\r\n"
        assert (await deliver_to(answers(reply))).message == message

    async def test_a_switch_of_protocols_is_a_failure(self) -> None:
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello"
        outcome = await deliver_to(answers(upgrade))
        assert (outcome.reason, outcome.status) == ("reply", None)
