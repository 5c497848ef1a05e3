"""Readers of requests: the body, its JSON, the path and the query."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import msgspec
from aiohttp import StreamReader, hdrs, web
from aiohttp.http import HttpVersion11

from later.core import validation
from later.core.caller import Caller
from later.core.durability import Durability, parse_durability
from later.core.edit import TaskChanges
from later.core.errors import Refused, SlowBody, TooLarge, UnknownExpectation, Unsupported
from later.core.json_body import body_parser, parse_object, unknown_field
from later.core.retry import DEATH_REASONS
from later.core.signing import MAX_OVERLAP_S
from later.core.validation import EXPECTED_TIME, escape_name, format_value, refusal

ACCEPTED_ENCODINGS = ("identity", "gzip", "deflate")
"""The values of Content-Encoding that are accepted; a body is compressed in one way at most."""

BODY_S = 30.0
"""How long a client may take over the body of a request, from its head."""
_COMPRESSED_BYTES = 16_384
"""The pieces in which a body is decompressed: zlib copies the rest of a piece after each member of a gzip."""
_INFLATED_BYTES = 262_144
"""The most bytes that are decompressed at a time: other requests go on in between."""
_MALFORMED_BODY = "expected a whole body, compressed as Content-Encoding says, if at all"

MAX_IDS = 1000
"""Ids of tasks in one request that acts on each of them."""
IDS_BYTES = 262_144
"""The length of the longest body of ids. It is taken even where bodies of tasks must be shorter (`--max-body`)."""

EXPECTED = {
    **validation.EXPECTED,
    "state": '"delay", "unack", "error", "dead" or "pending"',
    "due_after": EXPECTED_TIME,
    "due_before": EXPECTED_TIME,
    "died_after": EXPECTED_TIME,
    "died_before": EXPECTED_TIME,
    "reason": ", ".join(f'"{reason}"' for reason in DEATH_REASONS[:-1]) + f' or "{DEATH_REASONS[-1]}"',
    "rate": "a number of tasks a second, 0.0001 at least",
    "states": 'an array of "delay", "error" and "dead"',
    "limit": "an integer ≥ 1",
    "cursor": "one of an earlier answer's",
    "dry_run": "true or false",
    "overlap": f"a number of seconds from 0 to {MAX_OVERLAP_S}",
    "ids": f"an array of 1 to {MAX_IDS} ids",
}
"""The values that each field of a request takes, as a refusal states them."""
MAX_PAGE_SIZE = 1000
EXPECTED_PAGE_SIZE = f"an integer from 1 to {MAX_PAGE_SIZE}"
DEATH_FIELDS = ("died_after", "died_before", "reason")
"""Fields that select dead tasks."""


# The body


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the request's body, decompressed. Not much more than `limit` bytes are ever held in memory.

    A client that expects it is told to go on, but only if its headers are not refused.

    Raises:
        UnknownExpectation: the client expects something else.
        TooLarge: it is longer than `limit`, or its Content-Length says so.
        Unsupported: it has another Content-Encoding or Transfer-Encoding than those that are taken.
        Refused: it is cut short, or not compressed as its Content-Encoding says.
        SlowBody: it is not there in time.
    """
    headers, length = request.headers, request.content_length
    is_waiting = hdrs.EXPECT in headers and check_expectation(request)
    if (length or 0) > limit:
        raise body_too_large(limit)
    encoding = "identity"
    if hdrs.CONTENT_ENCODING in headers:
        encoding = _check_encoding(hdrs.CONTENT_ENCODING, headers.getall(hdrs.CONTENT_ENCODING), ACCEPTED_ENCODINGS)
    if length is None and hdrs.TRANSFER_ENCODING in headers:
        _check_encoding(hdrs.TRANSFER_ENCODING, headers.getall(hdrs.TRANSFER_ENCODING), ("chunked",))
    if is_waiting:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the answer itself is sent yet
    content = request.content
    try:
        # a small body has mostly come with its head: then there is nothing to wait for
        body = content.read_nowait() if content.is_eof() else await _read_in_time(content, limit)
    except (web.RequestPayloadError, ConnectionError):
        raise Refused(_MALFORMED_BODY) from None
    if encoding != "identity" and 0 < len(body) <= limit:
        body = await _decompress(body, encoding, limit)
    if len(body) > limit:
        raise body_too_large(limit)
    return body


async def _read_in_time(content: StreamReader, limit: int) -> bytes:
    """Return a body as it comes. Raises SlowBody."""
    try:
        async with asyncio.timeout(BODY_S):
            return await _read_chunks(content, limit)
    except TimeoutError:
        raise SlowBody(f"expected the whole body within {BODY_S:g} s of its head") from None


async def _read_chunks(content: StreamReader, limit: int) -> bytes:
    """Return a body as it comes: the whole, or a part that is longer than `limit`."""
    chunks: list[bytes] = []
    size = 0
    while size <= limit and not content.at_eof():
        chunks.append(await content.readany())
        size += len(chunks[-1])
    return b"".join(chunks)


async def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without its compression (RFC 9110, section 8.4.1): the whole, or a part longer than `limit`.

    A gzip may have several members, and `deflate` is also sent without the header of zlib.

    Raises:
        Refused: it is not compressed like that, or it is cut short.
    """
    window = 31 if encoding == "gzip" else 15 if body[0] & 0xF == 8 else -15
    parts: list[bytes] = []
    size = position = 0
    try:
        while position < len(body) and size <= limit:
            inflater = zlib.decompressobj(window)
            while not inflater.eof and size <= limit:
                piece = body[position : position + _COMPRESSED_BYTES]
                part = inflater.decompress(piece, _INFLATED_BYTES)
                if not piece and not part:
                    raise Refused(_MALFORMED_BODY)
                position += len(piece) - len(inflater.unconsumed_tail) - len(inflater.unused_data)
                size += len(part)
                parts.append(part)
                await asyncio.sleep(0)
    except zlib.error:
        raise Refused(_MALFORMED_BODY) from None
    return b"".join(parts)


def check_expectation(request: web.BaseRequest) -> bool:
    """Return True if the client waits to be told to go on. HTTP/1.0 knows no expectations.

    Raises:
        UnknownExpectation: it expects something else.
    """
    expectations = request.headers.getall(hdrs.EXPECT, ())
    if not expectations or request.version != HttpVersion11:
        return False
    expectation = ", ".join(expectations)
    if expectation.lower() != "100-continue":
        raise UnknownExpectation(f"Expect: expected 100-continue, got {format_value(expectation)}", "Expect")
    return True


def _check_encoding(header: str, values: Sequence[str], accepted: Sequence[str]) -> str:
    """Return the encoding of a body, in lower case. Raises Unsupported unless there is one, and it is accepted."""
    encoding = ", ".join(values)
    if encoding.lower() not in accepted:
        raise Unsupported(f"{header}: expected {' or '.join(accepted)}, got {format_value(encoding)}", str(header))
    return encoding.lower()


def body_too_large(limit: int) -> TooLarge:
    """Return the refusal of a body of more than `limit` bytes."""
    return TooLarge(f"expected a body of at most {limit} bytes")


# Schemas and parsers of bodies


class IdRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that names nothing but a task."""

    id: str | None = None


class DeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a delete."""

    id: str | None = None
    durability: str | None = None


class RunNowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a run-now: one task, or several."""

    id: str | None = None
    ids: list[str] | None = None
    durability: str | None = None


class ListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a listing, every field as it came."""

    topic: str | None = None
    state: str | None = None
    due_after: float | str | None = None
    due_before: float | str | None = None
    died_after: float | str | None = None
    died_before: float | str | None = None
    reason: str | None = None
    limit: int | None = None
    cursor: str | None = None


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/explain`: a task or a topic."""

    id: str | None = None
    topic: str | None = None


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a redrive, every field as it came: a task, several, or the dead tasks of a topic."""

    id: str | None = None
    ids: list[str] | None = None
    topic: str | None = None
    died_after: float | str | None = None
    died_before: float | str | None = None
    reason: str | None = None
    rate: float | None = None
    limit: int | None = None
    cursor: str | None = None
    dry_run: bool | None = None
    durability: str | None = None


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a purge, every field as it came."""

    states: list[str] | None = None
    died_after: float | str | None = None
    died_before: float | str | None = None
    reason: str | None = None
    limit: int | None = None
    cursor: str | None = None
    dry_run: bool | None = None


parse_update_request = body_parser(TaskChanges, EXPECTED)
parse_list_request = body_parser(ListRequest, EXPECTED | {"limit": EXPECTED_PAGE_SIZE})
parse_explain_request = body_parser(ExplainRequest, EXPECTED)
parse_run_now_request = body_parser(RunNowRequest, EXPECTED)
parse_redrive_request = body_parser(RedriveRequest, EXPECTED)
parse_purge_request = body_parser(PurgeRequest, EXPECTED)
_parse_id_request = body_parser(IdRequest, EXPECTED)
_parse_delete_request = body_parser(DeleteRequest, EXPECTED)


def parse_id(body: bytes, caller: Caller) -> str:
    """Return the name of the task that a caller's body names by its id. Raises Refused."""
    id = _parse_id_request(body).id
    if id is None:
        raise refusal("id", None)
    return caller.task_name(id)


def parse_delete_request(body: bytes, caller: Caller) -> tuple[str, Durability]:
    """Return the name of the task that a caller's body names by its id, and the level of its delete. Raises Refused."""
    request = _parse_delete_request(body)
    if request.id is None:
        raise refusal("id", None)
    return caller.task_name(request.id), parse_durability(request.durability)


def parse_ids(ids: Sequence[str], caller: Caller) -> list[str | Refused]:
    """Return the name of the task that a caller means by each of these ids, or the refusal of one that is no id.

    Raises:
        Refused: there are none, or too many.
    """
    if not 1 <= len(ids) <= MAX_IDS:
        raise Refused(f"ids: expected {EXPECTED['ids']}, got {len(ids) or 'none'}", "ids")
    names: list[str | Refused] = []
    for id in ids:
        try:
            names.append(caller.task_name(id))
        except Refused as error:
            names.append(error)
    return names


def check_run_now_request(body: RunNowRequest) -> None:
    """Check that a run-now names one task, or several. Raises Refused."""
    if body.ids is not None and body.id is not None:
        raise Refused("ids: expected either an id or ids, got both", "ids")
    if body.ids is None and body.id is None:
        raise refusal("id", None)


def check_redrive_request(body: RedriveRequest) -> None:
    """Check that a redrive names one task alone, or several alone, or a topic. Raises Refused."""
    if body.id is None and body.ids is None:
        if body.topic is None:
            raise Refused("topic: expected an id or a topic, got neither", "topic")
        return
    by, words = ("id", "an id") if body.ids is None else ("ids", "ids")
    for field in RedriveRequest.__struct_fields__:
        if field not in (by, "durability") and getattr(body, field) is not None:
            raise Refused(f"{field}: expected either {words} alone, or a topic, got both", field)


def check_no_fields(body: bytes) -> None:
    """Check that a body is empty, or an object without fields.

    Raises:
        Refused: it has a field. A callback's body, whose URL is a call here by mistake or by malice, is no such call.
    """
    if body.strip():
        for name in parse_object(body):
            raise unknown_field(name)


def check_reason(reason: str | None) -> str | None:
    """Check the reason of death by which dead tasks are chosen, and return it.

    Raises:
        Refused: no task dies for that reason, so a misspelt one would choose none.
    """
    if reason is not None and reason not in DEATH_REASONS:
        raise refusal("reason", reason, EXPECTED["reason"])
    return reason


# The path and the query


def path_parameter(request: web.Request, name: str) -> str:
    """Return a parameter of the path, decoded.

    Raises:
        Refused: the path is not UTF-8; what aiohttp makes of it might be the name of something else.
    """
    try:
        unquote(request.rel_url.raw_path, errors="strict")
    except UnicodeDecodeError:
        raise Refused(f"{name}: expected percent-encoded UTF-8", name) from None
    return request.match_info[name]


def check_query(request: web.Request, names: Sequence[str]) -> None:
    """Check that the parameters of the query are among `names`, and that each comes once.

    Raises:
        Refused: a parameter is unknown (perhaps misspelt) or comes twice, or the query is not UTF-8.
    """
    if not request.query_string:
        return
    try:
        unquote(request.rel_url.raw_query_string, errors="strict")
    except UnicodeDecodeError:
        raise Refused("expected a query of percent-encoded UTF-8") from None
    for name in request.query:
        if name not in names:
            shown = escape_name(name) or "''"
            expected = f"only {' or '.join(names)}" if names else "no parameters here"
            raise Refused(f"{shown}: unknown parameter, expected {expected}", shown)
        if len(request.query.getall(name)) > 1:
            raise Refused(f"{name}: expected it once, got it more than once", name)


def parse_switch(query: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is true or false, and false if it is absent. Raises Refused."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Refused(f"{name}: expected true or false, got {format_value(text)}", name)
    return text == "true"
