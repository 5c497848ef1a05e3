"""The rules of every request of Zaqar's API, in their order, and the form of its answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from multidict import istr

from later.api.authorization import CALLER
from later.api.json_response import DATA_HEADERS, json_response
from later.api.problem_types import problem_type
from later.api.requests import read_body
from later.api.zaqar.error_answers import ZaqarError, invalid_body, unavailable
from later.core.caller import Caller
from later.core.errors import LaterError, NotDurable, Refused
from later.core.queue_metadata import is_queue_name
from later.core.validation import DEFAULT_NAMESPACE, RESERVED_NAMESPACE, check_namespace

CLIENT_ID = istr("Client-ID")
PROJECT_ID = istr("X-Project-Id")
MAX_PROJECT_CHARS = 256
MAX_NAME_BYTES = 254
"""The most bytes of a project and a queue, whose topic has a `/` in between."""
FORM_TYPE = "application/x-www-form-urlencoded"
INVALID_IDENTIFICATION = "The format of the submitted queue name or project id is not valid."
TOO_LARGE_INTEGER = "JSON contains integer that is too large."
MALFORMED_JSON = "Request body could not be parsed."

_DIGITS_AS_ZEROS = bytes(ord("0" if chr(byte).isascii() and chr(byte).isdigit() else " ") for byte in range(256))
_LONG_DIGITS = b"0" * 19
"""An integer of fewer digits fits into 64 bits. To translate a body first takes a twelfth of a search by a pattern."""
_MEDIA_RANGES = {"*/*": 0, "application/*": 1, "application/json": 2}
"""Media ranges that JSON is in; the most specific one in a header decides (RFC 9110, section 12.5.1)."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ZaqarCall(NamedTuple):
    """The caller of a request of Zaqar's API, and the queue that it names.

    `client_id` has 16 bytes; `queue` is empty if the path names none.
    """

    project: str
    client_id: bytes
    queue: str
    caller: Caller

    @property
    def topic(self) -> str:
        """The topic of the queue."""
        return topic_of(self.project, self.queue)


ZaqarHandler = Callable[[web.Request, ZaqarCall], Awaitable[web.StreamResponse]]
"""A handler of requests that keep the rules."""


def topic_of(project: str, queue: str) -> str:
    """Return the topic of a project's queue: the project is its namespace."""
    return queue if project == DEFAULT_NAMESPACE else f"{project}/{queue}"


def check_calls(handler: ZaqarHandler, failure: str, **failures: str) -> Handler:
    """Return a handler of all requests: those that break a rule are refused, the others are given to `handler`.

    `failure` is the sentence that answers a call while the store does not take it; `failures` has other ones, for calls
    with that parameter in their query.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        call = parse_call(request)
        try:
            return await handler(request, call)
        except LaterError as error:
            if problem_type(error).status == 503 and not isinstance(error, NotDurable):
                by_parameter = [failures[name] for name in request.query if name in failures]
                raise unavailable(by_parameter[0] if by_parameter else failure) from error
            raise

    return answer


def parse_call(request: web.Request) -> ZaqarCall:
    """Return what a request says in its head.

    Raises:
        ZaqarError: it breaks a rule.
        NotAllowed: the caller's key is for another project.
    """
    headers = request.headers
    if request.body_exists and request.content_type == FORM_TYPE:
        raise ZaqarError(
            400,
            "Invalid Content-Type",
            f"Endpoint does not accept `{FORM_TYPE}` content; currently supported media type is `application/json`; "
            'specify proper client-side media type with the "Content-Type" header.',
        )
    if not accepts_json(headers.get(hdrs.ACCEPT, "*/*")):
        raise ZaqarError(
            406,
            "406 Not Acceptable",
            'Endpoint only serves `application/json`; specify client-side media type support with the "Accept" header.',
        )
    client_id = _parse_client_id(headers.get(CLIENT_ID))
    project = _parse_project(headers.getall(PROJECT_ID, ()))
    queue = request.match_info.get("queue")
    check_names(project, queue)
    caller = request[CALLER]
    caller.own_namespace(project)
    return ZaqarCall(project, client_id, queue or "", caller)


def accepts_json(accept: str) -> bool:
    """Return True if a header Accept allows an answer in JSON."""
    best_specificity, quality = -1, 0.0
    for media_range in (accept.strip() or "*/*").split(","):
        media_type, *parameters = (part.strip().lower() for part in media_range.split(";"))
        specificity = _MEDIA_RANGES.get(media_type, -1)
        if specificity > best_specificity:
            best_specificity = specificity
            weights = [parameter[2:] for parameter in parameters if parameter.startswith("q=")]
            try:
                quality = float(weights[0]) if weights else 1.0
            except ValueError:
                quality = 0.0
    return quality > 0


def _parse_client_id(text: str | None) -> bytes:
    """Return the 16 bytes of a client's id. Raises ZaqarError."""
    if text is None:
        raise ZaqarError(400, "Missing header value", 'The "Client-Id" header is required.')
    try:
        return UUID(text).bytes
    except ValueError:
        raise ZaqarError(400, "Wrong UUID value", "Malformed hexadecimal UUID.") from None


def _parse_project(values: list[str] | tuple[()]) -> str:
    """Return the project of the header. Raises ZaqarError: there is none, or more than one."""
    if not values:
        raise ZaqarError(400, "Project-Id Missing", "The header X-PROJECT-ID was missing")
    if not values[0]:
        raise ZaqarError(
            400,
            "Empty project header not allowed",
            "X-PROJECT-ID cannot be an empty string. Specify the right header X-PROJECT-ID and retry.",
        )
    if len(values) > 1:
        raise _invalid_identification()
    return values[0]


@lru_cache(maxsize=4096)
def check_names(project: str, queue: str | None) -> None:
    """Check a project, and the queue in it if a request names one. Raises ZaqarError."""
    if len(project) > MAX_PROJECT_CHARS or (queue is not None and not is_queue_name(queue)):
        raise _invalid_identification()
    try:
        check_namespace(project)
    except Refused:
        raise _invalid_identification() from None
    if len(project.encode()) + len(queue or "") > MAX_NAME_BYTES:
        raise _invalid_identification()
    if project == RESERVED_NAMESPACE:
        raise _invalid_identification(f"The project id {project} is reserved for tasks of the server's own.")


def _invalid_identification(description: str = INVALID_IDENTIFICATION) -> ZaqarError:
    return ZaqarError(400, "Invalid queue identification", description)


# Bodies


async def read_json(request: web.Request, max_bytes: int) -> object:
    """Return the JSON object or array that is a request's body, or None if there is no body.

    Raises:
        ZaqarError: it is neither, or has an integer that does not fit into 64 bits.
        Refused: the body cannot be read; a `TooLarge` if it has more than `max_bytes`.
    """
    body = await read_body(request, max_bytes)
    return parse_json(body) if body else None


def parse_json(body: bytes) -> object:
    """Return the JSON object or array that a body holds. Raises ZaqarError."""
    try:
        if _LONG_DIGITS in body.translate(_DIGITS_AS_ZEROS):
            json.loads(body, parse_int=_check_integer)
        document = _decode(body)
    except OverflowError:
        raise invalid_body(TOO_LARGE_INTEGER) from None
    except (ValueError, RecursionError):
        raise invalid_body(MALFORMED_JSON) from None
    if not isinstance(document, dict | list):
        raise invalid_body(MALFORMED_JSON)
    return document


def _check_integer(digits: str) -> int:
    """Return an integer. Raises OverflowError unless it fits into 64 bits."""
    if len(digits) > 20 or not -(2**63) <= (integer := int(digits)) < 2**63:
        raise OverflowError
    return integer


# Answers


def no_content() -> web.Response:
    """Return an answer of status 204."""
    return web.Response(status=204, headers=DATA_HEADERS)


def document_response(document: object, status: int = 200, *, location: str | None = None) -> web.StreamResponse:
    """Return an answer with a document as JSON; `location` is the path of what was made."""
    if status == 200 and location is None:
        return json_response(document)
    headers = DATA_HEADERS if location is None else {**DATA_HEADERS, "Location": location}
    return web.Response(body=_encode(document), status=status, headers=headers, content_type="application/json")
