"""Errors as Zaqar's API answers them: a status, and a title and a description, which its clients show.

Its clients take 405, 413, 415, 422, 429, 502 and 504 for success. So too large is 400 here, and too often is 503.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from later.api.json_response import DATA_HEADERS
from later.api.problem_types import FAULT, ProblemType, problem_type
from later.api.problems import (
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
INVALID_REQUEST, INVALID_BODY = "Invalid API request", "Invalid request body"
NOT_FOUND, CONFLICT = "Not found", "Resource conflict"

_TRANSLATED = {
    401: (401, "Unauthorized"),
    403: (403, "Not authorized"),
    404: (404, NOT_FOUND),
    408: (400, INVALID_BODY),
    409: (409, CONFLICT),
    413: (400, INVALID_BODY),
    415: (400, INVALID_BODY),
}
"""The status and the title for statuses of later's own errors; those of all others are of a request that is refused."""

_encode = msgspec.json.Encoder().encode


class ZaqarError(LaterError):
    """The answer to a request of Zaqar's API that is refused or fails."""

    def __init__(self, status: int, title: str, description: str) -> None:
        super().__init__(f"{title}: {description}")
        self.status = status
        self.title = title
        self.description = description


def invalid_request(description: str) -> ZaqarError:
    return ZaqarError(400, INVALID_REQUEST, description)


def invalid_body(description: str) -> ZaqarError:
    return ZaqarError(400, INVALID_BODY, description)


def invalid_parameter(description: str) -> ZaqarError:
    """Return the refusal of a parameter of the query."""
    return ZaqarError(400, "Invalid parameter", description)


def not_found(description: str) -> ZaqarError:
    return ZaqarError(404, NOT_FOUND, description)


def conflict(description: str) -> ZaqarError:
    return ZaqarError(409, CONFLICT, description)


def unavailable(description: str) -> ZaqarError:
    """Return the error of a call that cannot be carried out now: `description` is a sentence that says which."""
    return ZaqarError(503, "Service temporarily unavailable", f"{description} {TRY_AGAIN}")


def answer_error(request: web.BaseRequest, error: Exception) -> web.Response:
    """Return the answer to an error of a request: in Zaqar's form below its root, otherwise a problem document.

    Call it in the error's `except` block.
    """
    path = request.path
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        return error_response(request, error)
    headers = dict(DATA_HEADERS)
    match error:
        case ZaqarError():
            answer = error
        case web.HTTPMethodNotAllowed():
            answer = ZaqarError(405, "Method not allowed", f"This path does not take {request.method}.")
            headers["Allow"] = error.headers["Allow"]
        case web.HTTPNotFound():
            answer = not_found("There is nothing at this path.")
        case LaterError() if (type := problem_type(error)) is not FAULT:
            answer = _translate(error, type)
            if isinstance(error, Denied):
                headers |= denial_headers(error)
        case _:
            description = f"{INTERNAL_ERROR} (incident {log_fault(request)})"
            answer = ZaqarError(500, "Internal server error", description)
    if answer.status == 503:
        headers.setdefault("Retry-After", RETRY_AFTER_S)
    body = _encode({"title": answer.title, "description": answer.description})
    response = ProblemResponse(body=body, status=answer.status, headers=headers, content_type="application/json")
    if not request.content.is_eof():  # a body that is to come would be read in vain
        response.force_close()
    return response


def _translate(error: LaterError, type: ProblemType) -> ZaqarError:
    """Return an error of later's own, which has this type, as an error of Zaqar's API."""
    detail = error.detail if isinstance(error, Refused) else str(error)
    if type.status in (429, 503):
        return unavailable(f"{detail}.")
    status, title = _TRANSLATED.get(type.status, (400, INVALID_REQUEST))
    return ZaqarError(status, title, detail)
