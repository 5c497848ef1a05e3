"""Replies as bytes: what of them is read, however they arrive, and where the reading ends."""

from __future__ import annotations

import time
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from later.core.reply import Reply
from later.delivery.http_client import MAX_HEARD_BYTES, MAX_REPLY_BYTES, READ_BYTES, BrokenReply
from later.delivery.reply_parser import ReplyParser
from tests.cases import each_case
from tests.delivery.hostile_replies import ENDLESS, HOSTILE_REPLIES
from tests.delivery.scripted_receiver import End, ScriptedReply
from tests.receivers import BUSY, DONE

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"code": 100}'


def read(*pieces: bytes, ends: bool = False, decided_by_status: bool = False) -> Reply | str | None:
    """Return the reply that arrives in these pieces, or why it is broken; None if it is not complete.

    With `ends`, the connection ends after them.
    """
    parser = ReplyParser()
    parser.start(decided_by_status=decided_by_status)
    try:
        for piece in pieces:
            parser.feed(piece)
            if parser.reply is not None:
                return parser.reply
        if ends:
            parser.end()
    except BrokenReply as error:
        return str(error)
    return parser.reply


def done(body: bytes | None = BODY) -> Reply:
    return Reply(status=200, body=body)


REPLIES = {name: reply for name, reply in HOSTILE_REPLIES.items() if reply not in ENDLESS.values()}


@given(st.sampled_from(sorted(REPLIES)), st.lists(st.integers(1, 400), max_size=8))
def test_a_reply_is_the_same_in_whatever_pieces_it_arrives(name: str, cuts: list[int]) -> None:
    reply = REPLIES[name]
    ends = reply.end is not End.KEEP
    assert read(*reply._replace(cuts=tuple(cuts)).writes(), ends=ends) == read(reply.raw, ends=ends)


@each_case("name", [name for name in REPLIES if len(REPLIES[name].raw) < MAX_HEARD_BYTES / (1 + READ_BYTES)])
def test_a_short_reply_is_the_same_byte_by_byte(name: str) -> None:
    reply = REPLIES[name]
    ends = reply.end is not End.KEEP
    assert read(*(bytes([byte]) for byte in reply.raw), ends=ends) == read(reply.raw, ends=ends)


@each_case(
    "head",
    [
        b"HTTP/0.9 200 OK", b"HTTP/1.2 200 OK", b"HTTP/2.0 200 OK", b"HTTP/2 200 OK", b"HTTP/11 200 OK",
        b"http/1.1 200 OK", b"RTSP/1.0 200 OK", b"ICE/1.0 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 20 OK",
        b"HTTP/1.1 099 OK", b"HTTP/1.1 600 OK", b"HTTP/1.1 999 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 101 Switching",
        b'{"code": 100}', b"SSH-2.0-OpenSSH_9.6", b"220 mail.example ESMTP", b"\x16\x03\x01",
    ],
)  # fmt: skip
def test_another_version_protocol_or_status_is_broken(head: bytes) -> None:
    assert isinstance(read(head + b"\r\nContent-Length: 13\r\n\r\n" + BODY), str)


@each_case("protocol", [b"RTSP/1.0", b"ICE/1.0"])
def test_another_protocol_after_a_blank_line_is_broken(protocol: bytes) -> None:
    assert isinstance(read(b"\r\n", protocol + b" 200 OK\r\nContent-Length: 13\r\n\r\n" + BODY), str)


@each_case("status", [200, 299, 404, 599])
def test_a_status_from_200_to_599_is_read(status: int) -> None:
    assert read(b"HTTP/1.1 %d\r\nContent-Length: 0\r\n\r\n" % status) == Reply(
        status=status, body=b"" if status < 300 else None
    )


@each_case("piece", [b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"])
def test_a_few_interim_responses_and_blank_lines_are_no_reply(piece: bytes) -> None:
    assert read(piece * 3, DONE) == done()


@each_case(("count", "is_read"), [(60, True), (65, False)])
def test_about_sixty_interim_responses_are_read(count: int, is_read: bool) -> None:
    reply = read(b"HTTP/1.1 102 Processing\r\n\r\n" * count, DONE)
    assert (reply == done()) is is_read


def test_the_headers_of_an_interim_response_are_not_those_of_the_reply() -> None:
    assert read(b"HTTP/1.1 103 Early Hints\r\nRetry-After: 5\r\nContent-Encoding: gzip\r\n\r\n" + DONE) == done()


@each_case(
    "piece",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        b"\r\n",
        OK + b"X: " + b"x" * 100_000,
        OK + b"X: x\r\n" * 5_000,
        b"HTTP/1.1 200 " + b"O" * 100_000,
    ],
)
def test_a_head_without_end_is_broken(piece: bytes) -> None:
    assert isinstance(read(piece, *[piece] * MAX_HEARD_BYTES), str)


@each_case(
    "pieces",
    [
        [b"1;" + b"x" * 100_000] * 10,
        [b"1\r\nx\r\n"] * 100_000,
        [b"0\r\n"] + [b"X: x\r\n"] * 100_000,
        [b"FFFFFF\r\n", *[b"x" * 60_000] * 10],
    ],
    ids=["extension", "chunks", "trailers", "body"],
)
@each_case("status", [200, 503])
def test_a_body_without_end_is_a_reply_without_a_body(pieces: list[bytes], status: int) -> None:
    head = b"HTTP/1.1 %d\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    assert read(head, *pieces) == Reply(status=status, body=None)


@each_case("reply", ENDLESS.values(), ids=ENDLESS)
def test_a_reply_without_end_costs_at_most_a_hundredth_of_a_second(reply: ScriptedReply) -> None:
    pieces = reply._replace(cuts=tuple(range(0, len(reply.raw), 65_536))).writes()

    def measure_cpu_s() -> float:
        started = time.process_time()
        assert read(*pieces, ends=True) is not None
        return time.process_time() - started

    assert min(measure_cpu_s() for _ in range(3)) < 0.01


@each_case("start", [b"", OK + b"X", OK + b"X: ", OK + b"\r\n", CHUNKED, CHUNKED + b"1;"])
def test_a_reply_in_segments_of_one_byte_ends_after_eight_thousand(start: bytes) -> None:
    """Each one costs as much as a long one: 150,000 came within a deadline, and took a second of CPU."""
    piece = b"\r\n" if not start else b"x" if start != CHUNKED else b"0"
    parser = ReplyParser()
    parser.feed(start)
    reads = 0
    with suppress(BrokenReply):
        while parser.reply is None:
            parser.feed(piece)
            reads += 1
    assert reads <= 8000


@each_case("pieces", [1, 100])
def test_what_follows_a_reply_changes_nothing_but_its_connection(pieces: int) -> None:
    parser = ReplyParser()
    following = (DONE + BUSY) * 10_000
    parser.feed(DONE + following[: len(following) // pieces])
    assert (parser.reply, parser.is_reusable) == (done(), False)


@each_case(
    ("reply", "is_reusable"),
    [
        (DONE, True),
        (OK + b"Connection: close\r\nContent-Length: 13\r\n\r\n" + BODY, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\n" + BODY, False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n" + BODY, True),
        (OK + b"Content-Length: 70000\r\n\r\n", False),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n12345", False),
    ],
)
def test_only_a_connection_that_can_have_another_reply_is_reused(reply: bytes, is_reusable: bool) -> None:
    parser = ReplyParser()
    parser.feed(reply)
    assert (parser.reply is not None, parser.is_reusable) == (True, is_reusable)


def test_a_reply_can_follow_another() -> None:
    parser = ReplyParser()
    parser.feed(OK + b"Retry-After: 5\r\nContent-Length: 13\r\n\r\n" + BODY)
    parser.start(decided_by_status=False)
    parser.feed(DONE)
    assert parser.reply == done()


@given(st.lists(st.tuples(st.sampled_from(sorted(REPLIES)), st.booleans()), max_size=8))
def test_a_reply_is_the_same_after_others_as_alone(replies: list[tuple[str, bool]]) -> None:
    parser = ReplyParser()
    for name, decided_by_status in [both for both in replies for _ in range(2)]:
        raw = REPLIES[name].raw
        alone = ReplyParser()
        for each in (parser, alone):
            each.start(decided_by_status=decided_by_status)
            with suppress(BrokenReply):
                each.feed(raw)
        assert (parser.reply, parser.is_reusable, parser.heard) == (alone.reply, alone.is_reusable, alone.heard)
        if not parser.is_reusable:
            parser = ReplyParser()


def test_a_reply_with_the_bytes_of_the_last_one_is_not_parsed_again() -> None:
    parser = ReplyParser()
    parser.feed(DONE)
    first = parser.reply
    parser.start(decided_by_status=False)
    parser.feed(DONE)
    assert parser.reply is first


def test_a_reply_whose_body_was_read_is_not_one_that_its_status_decides() -> None:
    parser = ReplyParser()
    parser.feed(DONE)
    parser.start(decided_by_status=True)
    parser.feed(DONE)
    assert parser.reply == done(None)


@each_case(("size", "is_read"), [(MAX_REPLY_BYTES, True), (MAX_REPLY_BYTES + 1, False)])
def test_a_body_is_read_up_to_64_kib(size: int, is_read: bool) -> None:
    body = BODY.ljust(size)
    expected = done(body if is_read else None)
    assert read(OK + b"Content-Length: %d\r\n\r\n" % size + body) == expected
    assert read(OK + b"\r\n" + body, ends=True) == expected
    assert read(OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + body + b"\r\n0\r\n\r\n") == expected


@each_case(
    "reply",
    [b"", b"HTTP/1.1 2", OK + b"\r", b"HTTP/1.1 100 Continue\r\n\r\n", DONE[:-1],
     OK + b"Transfer-Encoding: chunked\r\n\r\nd\r\n" + BODY + b"\r\n"],
)  # fmt: skip
def test_a_reply_that_its_connection_cuts_off_is_broken(reply: bytes) -> None:
    assert isinstance(read(reply, ends=True), str)


def test_a_status_that_decides_is_known_before_the_body() -> None:
    parser = ReplyParser()
    parser.feed(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 9\r\n\r\n")
    assert (parser.reply, parser.decisive_reply) == (None, Reply(status=503, body=None, retry_after="7"))


def test_a_2xx_decides_only_if_bodies_are_ignored() -> None:
    head = OK + b"Content-Length: 9\r\n\r\n"
    parsers = [ReplyParser(), ReplyParser()]
    for parser, decided_by_status in zip(parsers, [False, True], strict=True):
        parser.start(decided_by_status=decided_by_status)
        parser.feed(head)
    assert [parser.decisive_reply for parser in parsers] == [None, done(None)]


def test_the_first_of_several_headers_counts() -> None:
    headers = b"RETRY-AFTER: 1\r\nretry-after: 2\r\nlater-after: 3\r\nLocation: /x\r\nlater-reason:\r\n"
    reply = read(OK + b"Content-Length: 0\r\n" + headers + b"\r\n")
    assert reply == Reply(status=200, body=b"", retry_after="1", later_after="3", later_reason="", location="/x")
