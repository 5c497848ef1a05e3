"""The wire: JSON into words of the house and back.

Bodies are read by compiled decoders. Only what these refuse is read once more, loosely and slowly, to say which field
is wrong and why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from later.api.answer import Answer
from later.core.clock import rfc3339
from later.core.errors import Refused, TooLarge
from later.core.fields import EXPECTED, refusal, show, task_id
from later.core.retry import Failure
from later.core.task import Draft, Task
from later.store.keys import Bucket
from later.store.records import Found

RESERVED = frozenset({"method", "raw", "context", "tags", "timeout", "cron", "backoff"})
"""Names of fields that a later version may take."""
WARNING = "The task will expire before it is due and never be delivered."

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}

Body = TypeVar("Body", bound=msgspec.Struct)


class ById(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call that knows only an id sends."""

    id: str | None = None


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a create."""

    id: str
    created: bool | UnsetType = UNSET
    warning: str | UnsetType = UNSET


class Deleted(msgspec.Struct, frozen=True):
    """The answer to a delete."""

    id: str


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last attempt did not do it."""

    reason: str
    status: int | None
    message: str
    at: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query, its fields in the contract's order. None: its body cannot be read. UNSET: left out."""

    id: str
    topic: str
    execute_time: int | None = None
    max_retry: int | None = None
    has_retry: int
    callback: str | None = None
    content: str | None = None
    creat_time: int | None = None
    state: str
    due_at: str | UnsetType
    died_at: str | UnsetType
    attempts: int
    last_error: LastError | None
    headers: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


_decode_draft = msgspec.json.Decoder(Draft).decode
_decode_by_id = msgspec.json.Decoder(ById).decode
_encode = msgspec.json.Encoder().encode


def reply(answer: object) -> Answer:
    """200, with the answer as JSON."""
    return Answer(_encode(answer))


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The request's body, decompressed, of at most `limit` bytes; never much more than that is held.

    Raises:
        TooLarge: it is longer, or says so.
        Refused: it ends too early, or is not compressed as it says.
    """
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    content = request.content
    try:
        chunks = [await content.readany()]
        size = len(chunks[0])
        while size <= limit and not content.at_eof():
            chunks.append(await content.readany())
            size += len(chunks[-1])
    except (web.RequestPayloadError, ConnectionError):
        raise Refused("expected a whole body, compressed as Content-Encoding says, if at all") from None
    if size > limit:
        raise too_large(limit)
    return b"".join(chunks)


def too_large(limit: int) -> TooLarge:
    """The refusal of a body of more than `limit` bytes."""
    return TooLarge(f"expected a body of at most {limit} bytes")


def path_part(request: web.Request, name: str) -> str:
    """What stands in the path for `name`, decoded.

    Raises:
        Refused: the path is no UTF-8, and what aiohttp makes of it might be the name of something else.
    """
    try:
        unquote(request.rel_url.raw_path, errors="strict")
    except UnicodeDecodeError:
        raise Refused(f"{name}: expected percent-encoded UTF-8", name) from None
    return request.match_info[name]


def read_query(request: web.Request, *names: str) -> dict[str, str]:
    """What the query says, of these parameters.

    Raises:
        Refused: it has another, which may be one of them misspelt; or one twice; or it is no UTF-8.
    """
    try:
        unquote(request.rel_url.raw_query_string, errors="strict")
    except UnicodeDecodeError:
        raise Refused("expected a query of percent-encoded UTF-8") from None
    for name in request.query:
        if name not in names:
            printable = repr(name[:80])[1:-1]
            raise Refused(f"{printable}: unknown parameter", printable)
        if len(request.query.getall(name)) > 1:
            raise Refused(f"{name}: expected it once, got it more than once", name)
    return dict(request.query)


def read_switch(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false, and false where it is not there. Raises Refused."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Refused(f"{name}: expected true or false, got {show(text)}", name)
    return text == "true"


def read_draft(body: bytes) -> Draft:
    """What a create asks for.

    Raises:
        Refused: with the first wrong field's name where there is one.
    """
    try:
        return _decode_draft(body)
    except (ValueError, RecursionError):
        return _read_loosely(body, Draft)


def read_id(body: bytes) -> str:
    """The id that a call is about. Raises Refused."""
    try:
        given = _decode_by_id(body)
    except (ValueError, RecursionError):
        given = _read_loosely(body, ById)
    if given.id is None:
        raise refusal("id", None)
    return task_id(given.id)


def created_answer(task: Task, created: bool) -> Created:
    """The answer to a create; whether the task is new only where the caller chose its id."""
    return Created(id=task.id, created=created if task.own_id else UNSET, warning=_warning(task, created))


def created_item(task: Task, created: bool) -> Created:
    """The same as one of a batch's results, which always say it."""
    return Created(id=task.id, created=created, warning=_warning(task, created))


def _warning(task: Task, created: bool) -> str | UnsetType:
    never = created and task.expires_at is not None and task.expires_at <= task.execute_at
    return WARNING if never else UNSET


def shown(found: Found) -> Shown:
    """What a query tells of a task."""
    failures = found.failure.failures if found.failure else 0
    task, dead = found.task, found.state is Bucket.DEAD
    score = rfc3339(found.score)
    if not isinstance(task, Task):
        return Shown(
            id=found.id,
            topic=found.topic,
            has_retry=failures,
            state=found.state.value,
            due_at=UNSET if dead else score,
            died_at=score if dead else UNSET,
            attempts=found.attempts,
            last_error=_last_error(found.failure),
        )
    return Shown(
        id=found.id,
        topic=found.topic,
        execute_time=-(-task.execute_at // 1000),
        max_retry=task.max_retry,
        has_retry=min(failures, task.max_retry),
        callback=task.callback,
        content=task.content,
        creat_time=task.created_at // 1000,
        state=found.state.value,
        due_at=UNSET if dead else score,
        died_at=score if dead else UNSET,
        attempts=found.attempts,
        last_error=_last_error(found.failure),
        headers=list(task.headers) or UNSET,
        expires_at=UNSET if task.expires_at is None else rfc3339(task.expires_at),
    )


def _last_error(failure: Failure | None) -> LastError | None:
    if failure is None:
        return None
    return LastError(reason=failure.reason, status=failure.status, message=failure.message, at=rfc3339(failure.at))


def _read_loosely(body: bytes, kind: type[Body]) -> Body:
    """Say what is wrong with a body that the decoder refused.

    Where nothing is (a wrong value whose key comes again with a right one: the last counts), it is taken.
    """
    given = read_object(body)
    for field, value in given.items():
        if field not in kind.__struct_fields__:
            raise unknown(field)
        if value is not None:
            _CHECKS[field](field, value)
    return msgspec.convert(given, kind)


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object of whatever fields, read by Python's own decoder; of a name that comes twice, the last.

    Raises:
        Refused: it is none; the text says why.
    """
    if not body.strip():
        raise Refused("expected a JSON object, got nothing")
    if body.startswith(_BYTE_ORDER_MARK):
        raise Refused("expected JSON without a byte order mark")
    try:
        given = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refused(f"expected UTF-8, got the byte 0x{body[error.start]:02x} at position {error.start}") from None
    except json.JSONDecodeError as error:
        raise Refused(f"expected JSON: {error}") from None
    except RecursionError:
        raise Refused("expected JSON, got it nested too deeply") from None
    except ValueError:  # how Python refuses to read very long integers
        raise Refused("expected JSON, got an integer of too many digits in it") from None
    if not isinstance(given, dict):
        raise Refused(f"expected a JSON object, got {_kind(given)}")
    return given


def unknown(name: str) -> Refused:
    """The refusal of a field that the body may not have."""
    printable = repr(name[:80])[1:-1]
    what = "not a field of this version" if name in RESERVED else "unknown field"
    return Refused(f"{printable}: {what}", printable)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise refusal(field, value)
    _check_unicode(field, value)


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{field}: expected Unicode text, got a lone surrogate in it", field) from None


def _check_number(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(field, value)
    if not abs(value) <= sys.float_info.max:  # NaN neither
        raise refusal(field, value)


def _check_integer(field: str, value: object) -> None:
    if isinstance(value, float):
        raise Refused(f"{field}: expected {EXPECTED[field]}, got {value}", field)
    _check_number(field, value)


def _check_headers(field: str, value: object) -> None:
    """Without showing a value: they are secrets."""
    if not isinstance(value, dict):
        raise Refused(f"{field}: expected {EXPECTED[field]}, got {_kind(value)}", field)
    for name, text in value.items():
        if not isinstance(text, str):
            raise Refused(f"{field}: expected {EXPECTED[field]}, got {_kind(text)} in {show(name)}", field)
        _check_unicode(field, name + text)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")


_CHECKS: dict[str, Callable[[str, object], None]] = {
    "topic": _check_text,
    "callback": _check_text,
    "delay": _check_number,
    "execute_time": _check_number,
    "retry": _check_integer,
    "content": _check_text,
    "headers": _check_headers,
    "ttl": _check_number,
    "id": _check_text,
}
"""For each field a check of its type; the policy checks the rest."""
