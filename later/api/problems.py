"""Errors as HTTP answers: the status says whose fault it is, and the body has the shape of RFC 9457."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import UNSET, UnsetType

from later.api.json_response import DATA_HEADERS
from later.api.problem_types import CROSS_SITE, FAULT, SLOW_BODY, TOO_LARGE, UNSUPPORTED, ProblemType, problem_type
from later.api.requests import ACCEPTED_ENCODINGS
from later.core.errors import Denied, LaterError, NotDurable, NotFound, NotKnown, Refused, StoreDown, TooOften

RETRY_AFTER_S = "1"
INTERNAL_ERROR = "this is a fault of later's own: its log says more"
CLOSING = frozenset({SLOW_BODY.status, TOO_LARGE.status, UNSUPPORTED.status, HTTPStatus.EXPECTATION_FAILED})
"""Statuses that end the connection, as a cross-site request does.

The unread body would be taken for the next request, or be read in vain."""

log = structlog.get_logger()


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error in an answer. `field` is the part of the request that is wrong; `ended` is as in `NotFound`.

    `unknown` is true if the request may have been carried out all the same. `stored` is true if it was, but has only
    reached this `durability`; then `id` is that of the task.
    """

    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET
    unknown: bool | UnsetType = UNSET
    id: str | UnsetType = UNSET
    stored: bool | UnsetType = UNSET
    durability: str | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document: the body of an answer that is an error as a whole. `incident` is an id in the log."""

    type: str
    title: str
    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET
    unknown: bool | UnsetType = UNSET
    id: str | UnsetType = UNSET
    stored: bool | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    incident: str | UnsetType = UNSET


class ProblemResponse(web.Response):
    """An answer that reports an error. If it ends the connection, the client learns that with the answer.

    aiohttp reads for 10 s more what the client sends, because closing at once could destroy the answer on its way. Only
    our half of the connection is closed until then (RFC 9112, section 9.6).
    """

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the rest of the answer."""
        request = self._req
        await super().write_eof(data)
        transport = None if request is None or self.keep_alive else request.transport
        if transport is not None and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()


ErrorAnswer = Callable[[web.BaseRequest, Exception], web.Response]
"""A function that returns the answer to an error of a request, as `error_response` does."""

_encode = msgspec.json.Encoder().encode


def error_middleware(answer_error: ErrorAnswer) -> Middleware:
    """Return the middleware that answers whatever error a handler raises."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            return answer_error(request, error)

    return answer_errors


def error_response(request: web.BaseRequest, error: Exception) -> web.Response:
    """Return the problem document that answers an error, and log it if it is a fault of later.

    Call it in the error's `except` block.
    """
    match error:
        case web.HTTPNotFound():
            return problem_response(ErrorBody(status=404, detail="there is nothing at this path"))
        case web.HTTPMethodNotAllowed():
            body = ErrorBody(status=405, detail=f"this path does not take {request.method}")
            return problem_response(body, headers={"Allow": error.headers["Allow"]})
        case web.HTTPException():
            return problem_response(ErrorBody(status=error.status, detail=error.reason))
        case Denied():
            return _denial_response(request, error)
        case LaterError() if (type := problem_type(error)) is not FAULT:
            return problem_response(error_body(error), type)
    incident = log_fault(request)
    detail = str(error) if isinstance(error, LaterError) else INTERNAL_ERROR
    return problem_response(ErrorBody(status=FAULT.status, detail=detail), FAULT, incident=incident)


def _denial_response(request: web.BaseRequest, error: Denied) -> web.Response:
    """Return the answer to a caller whose key is missing or does not allow this. A body that is to come is not read."""
    response = problem_response(error_body(error), problem_type(error), headers=denial_headers(error))
    if not request.content.is_eof():
        response.force_close()
    return response


def denial_headers(error: Denied) -> dict[str, str]:
    """Return the headers of an answer to a caller whose key is missing or does not allow this."""
    if isinstance(error, NotKnown):
        was_sent = "" if error.reason == "no_key" else ', error="invalid_token"'
        return {"WWW-Authenticate": f'Bearer realm="later"{was_sent}'}
    return {"Retry-After": str(error.retry_after_s)} if isinstance(error, TooOften) else {}


def error_body(error: LaterError) -> ErrorBody:
    """Return an error as callers see it."""
    return ErrorBody(
        status=problem_type(error).status,
        detail=error.detail if isinstance(error, Refused) else str(error),
        field=error.field if isinstance(error, Refused) and error.field is not None else UNSET,
        ended=(isinstance(error, NotFound) and error.ended) or UNSET,
        unknown=(isinstance(error, StoreDown) and error.unknown) or UNSET,
        id=error.id or UNSET if isinstance(error, NotDurable) else UNSET,
        stored=(isinstance(error, NotDurable) and error.stored) or UNSET,
        durability=error.reached if isinstance(error, NotDurable) else UNSET,
    )


def log_fault(request: web.BaseRequest) -> str:
    """Log the error that is being handled as a fault of later's own; return the id by which the answer names it.

    The log gets the traceback, but nothing of the request that might be a secret: no query, headers or body.
    """
    incident = secrets.token_hex(6)
    log.exception("request failed", method=request.method, path=request.path, incident=incident)
    return incident


def problem_response(
    error: ErrorBody,
    type: ProblemType | None = None,
    *,
    headers: dict[str, str] | None = None,
    incident: str | UnsetType = UNSET,
) -> web.Response:
    """Return the answer that reports this error; without a type, its status says all."""
    problem = Problem(
        type="about:blank" if type is None else type.reference,
        title=HTTPStatus(error.status).phrase if type is None else type.title,
        status=error.status,
        detail=error.detail,
        field=error.field,
        ended=error.ended,
        unknown=error.unknown,
        id=error.id,
        stored=error.stored,
        durability=error.durability,
        incident=incident,
    )
    response = ProblemResponse(
        body=_encode(problem),
        status=error.status,
        headers={**DATA_HEADERS, **(headers or {})},
        content_type="application/problem+json",
    )
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = RETRY_AFTER_S
    elif error.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        response.headers["Accept-Encoding"] = ", ".join(ACCEPTED_ENCODINGS)
    if error.status in CLOSING or type is CROSS_SITE:
        response.force_close()
    return response
