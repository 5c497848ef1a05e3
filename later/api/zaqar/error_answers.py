"""Errors as Zaqar's API answers them: a status, and a title and a description, which its clients show.

Its clients take 405, 413, 415, 422, 429, 502 and 504 for success. So too large is 400 here, and too often is 503.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from later.api.json_response import DATA_HEADERS
from later.api.problem_types import CROSS_SITE, FAULT, ProblemType, problem_type
from later.api.problems import (
    CLOSING,
    INTERNAL_ERROR,
    RETRY_AFTER_S,
    ProblemResponse,
    denial_headers,
    error_response,
    log_fault,
)
from later.core.errors import Denied, LaterError, Refused

ROOT = "/v2"
TRY_AGAIN = "Please try again in a few seconds."

_encode = msgspec.json.Encoder().encode


class ZaqarError(LaterError):
    """The answer to a request of Zaqar's API that is refused or fails."""

    def __init__(self, status: int, title: str, description: str) -> None:
        super().__init__(f"{title}: {description}")
        self.status = status
        self.title = title
        self.description = description


def invalid_request(description: str) -> ZaqarError:
    return ZaqarError(400, "Invalid API request", description)


def invalid_body(description: str) -> ZaqarError:
    return ZaqarError(400, "Invalid request body", description)


def invalid_parameter(description: str) -> ZaqarError:
    """Return the refusal of a parameter of the query."""
    return ZaqarError(400, "Invalid parameter", description)


def not_found(description: str) -> ZaqarError:
    return ZaqarError(404, "Not found", description)


def conflict(description: str) -> ZaqarError:
    return ZaqarError(409, "Resource conflict", description)


def unavailable(description: str) -> ZaqarError:
    """Return the error of a call that cannot be carried out now: `description` is a sentence that says which."""
    return ZaqarError(503, "Service temporarily unavailable", f"{description} {TRY_AGAIN}")


def answer_error(request: web.BaseRequest, error: Exception) -> web.Response:
    """Return the answer to an error of a request: in Zaqar's form below its root, otherwise a problem document."""
    path = request.path
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        return error_response(request, error)
    headers = dict(DATA_HEADERS)
    closes = False
    match error:
        case ZaqarError():
            answer = error
            closes = not request.content.is_eof()  # a body that is to come would be read in vain
        case web.HTTPMethodNotAllowed():
            answer = ZaqarError(405, "Method not allowed", f"This path does not take {request.method}.")
            headers["Allow"] = error.headers["Allow"]
        case web.HTTPNotFound():
            answer = not_found("There is nothing at this path.")
        case LaterError() if (type := problem_type(error)) is not FAULT:
            answer = _translate(error, type)
            closes = type is CROSS_SITE or type.status in CLOSING
            if isinstance(error, Denied):
                headers |= denial_headers(error)
                closes = not request.content.is_eof()
        case _:
            description = f"{INTERNAL_ERROR} (incident {log_fault(request, error)})"
            answer = ZaqarError(500, "Internal server error", description)
    if answer.status == 503:
        headers.setdefault("Retry-After", RETRY_AFTER_S)
    body = _encode({"title": answer.title, "description": answer.description})
    response = ProblemResponse(
        body=body, status=answer.status, headers=headers, content_type="application/json"
    )
    if closes:
        response.force_close()
    return response


def _translate(error: LaterError, type: ProblemType) -> ZaqarError:
    """Return an error of later's own, which has this type, as an error of Zaqar's API."""
    detail = error.detail if isinstance(error, Refused) else str(error)
    match type.status:
        case 401:
            return ZaqarError(401, "Unauthorized", detail)
        case 403:
            return ZaqarError(403, "Not authorized", detail)
        case 404:
            return not_found(detail)
        case 408 | 413 | 415:
            return invalid_body(detail)
        case 409:
            return conflict(detail)
        case 429 | 503:
            return unavailable(f"{detail}.")
        case _:
            return invalid_request(detail)
