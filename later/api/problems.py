"""Errors as HTTP answers: the status says whose fault it is, and the body has the shape of RFC 9457."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import UNSET, UnsetType

from later.core.errors import Conflict, LaterError, NotFound, Refused, StoreDown, StoreMismatch, TooLarge

RETRY_AFTER_HEADERS = {"Retry-After": "1"}
INTERNAL_ERROR = "this is a fault of later's own: its log says more"

log = structlog.get_logger()


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error in an answer. `field` is the part of the request that is wrong; `ended` is as in `NotFound`."""

    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document: the body of an answer that is an error as a whole."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET


_TITLES = {413: "Content Too Large"}  # Python before 3.13 has an older name
_encode = msgspec.json.Encoder().encode


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer whatever error a handler raises."""
    try:
        return await handler(request)
    except Exception as error:
        return error_response(request, error)


def error_response(request: web.BaseRequest, error: Exception) -> web.Response:
    """Return the answer to an error, and log it if it is a fault of later. Call it in the error's `except` block."""
    match error:
        case web.HTTPNotFound():
            body = ErrorBody(status=404, detail="there is nothing at this path")
        case web.HTTPMethodNotAllowed():
            body = ErrorBody(status=405, detail=f"this path does not take {request.method}")
            return problem_response(body, {"Allow": error.headers["Allow"]})
        case web.HTTPException():
            body = ErrorBody(status=error.status, detail=error.reason)
        case LaterError():
            body = error_body(error)
        case _:
            body = ErrorBody(status=500, detail=INTERNAL_ERROR)
    if body.status == 500 and not isinstance(error, web.HTTPException):
        # the traceback, but nothing of the request that might be a secret: no query, headers or body
        log.exception("request failed", method=request.method, path=request.path)
    return problem_response(body)


def error_body(error: LaterError) -> ErrorBody:
    """Return an error as callers see it."""
    match error:
        case Refused():
            status = 413 if isinstance(error, TooLarge) else 400
            return ErrorBody(status=status, detail=error.detail, field=UNSET if error.field is None else error.field)
        case NotFound():
            return ErrorBody(status=404, detail=str(error), ended=error.ended or UNSET)
        case Conflict():
            return ErrorBody(status=409, detail=str(error))
        case StoreDown() | StoreMismatch():
            return ErrorBody(status=503, detail=str(error))
        case _:
            return ErrorBody(status=500, detail=str(error))


def problem_response(error: ErrorBody, headers: dict[str, str] | None = None) -> web.Response:
    """Return the answer that reports this error, with these headers."""
    problem = Problem(
        title=_TITLES.get(error.status) or HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.detail,
        field=error.field,
        ended=error.ended,
    )
    response = web.Response(
        body=_encode(problem),
        status=error.status,
        headers=RETRY_AFTER_HEADERS if error.status == 503 else headers,
        content_type="application/problem+json",
    )
    if error.status == 413:
        response.force_close()  # the rest of the body would be taken for the next request, or be read in vain
    return response
