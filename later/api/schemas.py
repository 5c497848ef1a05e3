"""The wire: JSON into words of the house and back.

Bodies are read by compiled decoders. Only what these refuse is read once more, loosely and slowly, to say which field
is wrong and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from later.api.response import JsonResponse
from later.core.clock import rfc3339
from later.core.errors import Refused, TooLarge
from later.core.parsing import parse_leniently
from later.core.retry import Failure
from later.core.task import Task
from later.core.validation import check_id, describe, refusal
from later.store.keys import Bucket
from later.store.types import TaskRecord

WARNING = "The task will expire before it is due and never be delivered."

Body = TypeVar("Body", bound=msgspec.Struct)


class IdRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call that knows only an id sends."""

    id: str | None = None


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a create."""

    id: str
    created: bool | UnsetType = UNSET
    warning: str | UnsetType = UNSET


class DeleteResponse(msgspec.Struct, frozen=True):
    """The answer to a delete."""

    id: str


class LastErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last attempt did not do it."""

    reason: str
    status: int | None
    message: str
    at: str


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
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
    last_error: LastErrorView | None
    headers: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


_decode_by_id = msgspec.json.Decoder(IdRequest).decode
_encode = msgspec.json.Encoder().encode


def json_response(answer: object) -> JsonResponse:
    """200, with the answer as JSON."""
    return JsonResponse(_encode(answer))


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The request's body, decompressed, of at most `limit` bytes; never much more than that is held.

    Raises:
        TooLarge: it is longer, or says so.
        Refused: it ends too early, or is not compressed as it says.
    """
    if (request.content_length or 0) > limit:
        raise body_too_large(limit)
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
        raise body_too_large(limit)
    return b"".join(chunks)


def body_too_large(limit: int) -> TooLarge:
    """The refusal of a body of more than `limit` bytes."""
    return TooLarge(f"expected a body of at most {limit} bytes")


def path_parameter(request: web.Request, name: str) -> str:
    """What stands in the path for `name`, decoded.

    Raises:
        Refused: the path is no UTF-8, and what aiohttp makes of it might be the name of something else.
    """
    try:
        unquote(request.rel_url.raw_path, errors="strict")
    except UnicodeDecodeError:
        raise Refused(f"{name}: expected percent-encoded UTF-8", name) from None
    return request.match_info[name]


def parse_query(request: web.Request, *names: str) -> dict[str, str]:
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


def parse_switch(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false, and false where it is not there. Raises Refused."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Refused(f"{name}: expected true or false, got {describe(text)}", name)
    return text == "true"


def parse_id(body: bytes) -> str:
    """The id that a call is about. Raises Refused."""
    try:
        given = _decode_by_id(body)
    except (ValueError, RecursionError):
        given = parse_leniently(body, IdRequest)
    if given.id is None:
        raise refusal("id", None)
    return check_id(given.id)


def body_parser(schema: type[Body]) -> Callable[[bytes], Body]:
    """What reads bodies of this kind, and raises Refused."""
    decode = msgspec.json.Decoder(schema).decode

    def read(body: bytes) -> Body:
        try:
            return decode(body)
        except (ValueError, RecursionError):
            return parse_leniently(body, schema)

    return read


def create_response(task: Task, created: bool) -> CreateResponse:
    """The answer to a create; whether the task is new only where the caller chose its id."""
    return CreateResponse(id=task.id, created=created if task.own_id else UNSET, warning=_warning(task, created))


def batch_create_result(task: Task, created: bool) -> CreateResponse:
    """The same as one of a batch's results, which always say it."""
    return CreateResponse(id=task.id, created=created, warning=_warning(task, created))


def _warning(task: Task, created: bool) -> str | UnsetType:
    never = created and task.expires_at is not None and task.expires_at <= task.execute_at
    return WARNING if never else UNSET


def task_view(record: TaskRecord) -> TaskView:
    """Return the view of a task for a query's answer."""
    task = record.task if isinstance(record.task, Task) else None
    is_dead, score = record.state is Bucket.DEAD, rfc3339(record.score)
    return TaskView(
        id=record.id,
        topic=record.topic,
        execute_time=record.execute_time_s,
        max_retry=None if task is None else task.max_retry,
        has_retry=record.retries_used,
        callback=None if task is None else task.callback,
        content=None if task is None else task.content,
        creat_time=record.created_time_s,
        state=record.state.value,
        due_at=UNSET if is_dead else score,
        died_at=score if is_dead else UNSET,
        attempts=record.attempts,
        last_error=last_error_view(record.failure),
        headers=UNSET if task is None or not task.headers else list(task.headers),
        expires_at=UNSET if task is None or task.expires_at is None else rfc3339(task.expires_at),
    )


def last_error_view(failure: Failure | None) -> LastErrorView | None:
    """Why the last attempt did not do it, if it did not."""
    if failure is None:
        return None
    return LastErrorView(reason=failure.reason, status=failure.status, message=failure.message, at=rfc3339(failure.at))
