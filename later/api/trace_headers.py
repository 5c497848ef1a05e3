"""The trace context of requests: the header `traceparent`, by which a caller says which span a call belongs to."""

from __future__ import annotations

from aiohttp import web
from multidict import istr

from later.core.trace_context import TRACEPARENT, parse_traceparent, sampled_only

_HEADER = istr(TRACEPARENT)
_NO_HEADER: list[str] = []


def context_of(request: web.BaseRequest) -> bytes:
    """Return the trace context of a request; b"" if it has none, or more than one, of which none can be trusted."""
    if not request.headers:  # aiohttp's request for malformed HTTP has a plain mapping
        return b""
    headers = request.headers.getall(_HEADER, _NO_HEADER)
    return parse_traceparent(headers[0]) if len(headers) == 1 else b""


def context_to_keep(request: web.BaseRequest) -> bytes:
    """Return the trace context of a request if its trace is recorded; b"" otherwise."""
    return sampled_only(context_of(request))
