"""Errors on the wire: each says whose fault it is by its status, in the shape of RFC 9457."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import UNSET, UnsetType

from later.core.errors import Conflict, LaterError, NotFound, Refused, StoreDown, StoreMismatch, TooLarge

RETRY_AFTER = {"Retry-After": "1"}
OURS = "this is a fault of later's own: its log says more"

log = structlog.get_logger()


class Fault(msgspec.Struct, frozen=True, kw_only=True):
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


def fault(error: LaterError) -> Fault:
    """What callers are told of an error of ours."""
    match error:
        case Refused():
            status = 413 if isinstance(error, TooLarge) else 400
            return Fault(status=status, detail=error.detail, field=UNSET if error.field is None else error.field)
        case NotFound():
            return Fault(status=404, detail=str(error), ended=error.ended or UNSET)
        case Conflict():
            return Fault(status=409, detail=str(error))
        case StoreDown() | StoreMismatch():
            return Fault(status=503, detail=str(error))
        case _:
            return Fault(status=500, detail=str(error))


def problem(fault: Fault) -> web.Response:
    """The answer that tells of a fault."""
    told = Problem(
        title=_TITLES.get(fault.status) or HTTPStatus(fault.status).phrase,
        status=fault.status,
        detail=fault.detail,
        field=fault.field,
        ended=fault.ended,
    )
    response = web.Response(
        body=_encode(told),
        status=fault.status,
        headers=RETRY_AFTER if fault.status == 503 else None,
        content_type="application/problem+json",
    )
    if fault.status == 413:
        response.force_close()  # what is left of the body would be taken for the next request, or read in vain
    return response


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make an answer of whatever a handler raises."""
    try:
        return await handler(request)
    except LaterError as error:
        told = fault(error)
        if told.status == 500:
            _log_failure(request)
        return problem(told)
    except web.HTTPException as error:
        return _in_our_shape(request, error)
    except Exception:
        _log_failure(request)
        return problem(Fault(status=500, detail=OURS))


def _log_failure(request: web.BaseRequest) -> None:
    """With the traceback, but nothing of the request that might be a secret: no query, headers or body."""
    log.exception("request failed", method=request.method, path=request.path)


def _in_our_shape(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own errors: no such path, no such method, and the like."""
    match error:
        case web.HTTPNotFound():
            return problem(Fault(status=404, detail="there is nothing at this path"))
        case web.HTTPMethodNotAllowed():
            response = problem(Fault(status=405, detail=f"this path does not take {request.method}"))
            response.headers["Allow"] = error.headers["Allow"]
            return response
        case _:
            return problem(Fault(status=error.status, detail=error.reason))
