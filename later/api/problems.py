"""Errors on the wire: each says whose fault it is by its status, in the shape of RFC 9457."""

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
    """An error as callers see it. `field` is the part of the request that is wrong, `ended` that of `NotFound`."""

    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer that says what is wrong."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET


_TITLES = {413: "Content Too Large"}  # Python before 3.13 has an older name
_encode = msgspec.json.Encoder().encode


def error_body(error: LaterError) -> ErrorBody:
    """What callers are told of an error of ours."""
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


def problem_response(error: ErrorBody) -> web.Response:
    """The answer that tells of a fault."""
    told = Problem(
        title=_TITLES.get(error.status) or HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.detail,
        field=error.field,
        ended=error.ended,
    )
    response = web.Response(
        body=_encode(told),
        status=error.status,
        headers=RETRY_AFTER_HEADERS if error.status == 503 else None,
        content_type="application/problem+json",
    )
    if error.status == 413:
        response.force_close()  # what is left of the body would be taken for the next request, or read in vain
    return response


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make an answer of whatever a handler raises."""
    try:
        return await handler(request)
    except LaterError as error:
        told = error_body(error)
        if told.status == 500:
            _log_failure(request)
        return problem_response(told)
    except web.HTTPException as error:
        return _in_our_shape(request, error)
    except Exception:
        _log_failure(request)
        return problem_response(ErrorBody(status=500, detail=INTERNAL_ERROR))


def _log_failure(request: web.BaseRequest) -> None:
    """With the traceback, but nothing of the request that might be a secret: no query, headers or body."""
    log.exception("request failed", method=request.method, path=request.path)


def _in_our_shape(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own errors: no such path, no such method, and the like."""
    match error:
        case web.HTTPNotFound():
            return problem_response(ErrorBody(status=404, detail="there is nothing at this path"))
        case web.HTTPMethodNotAllowed():
            response = problem_response(ErrorBody(status=405, detail=f"this path does not take {request.method}"))
            response.headers["Allow"] = error.headers["Allow"]
            return response
        case _:
            return problem_response(ErrorBody(status=error.status, detail=error.reason))
