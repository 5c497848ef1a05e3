"""Trace contexts: the trace and the span that a call belongs to, as its header `traceparent` says.

The format is that of W3C Trace Context, level 2. The store holds a context as 25 bytes: the ids of the trace and of the
span, and the flags. No context is b"".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

TRACEPARENT = "traceparent"
TRACE_HEADERS = frozenset({TRACEPARENT, "tracestate"})
"""The headers, in lower case, that say which span a call belongs to. `baggage` belongs to none."""

_BYTES = 25
_SAMPLED = 1
_KNOWN_FLAGS = 3
"""Sampled, and the random trace id of level 2. What the others will mean is not known, so they are sent as 0."""
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_from_hex = bytes.fromhex


def parse_traceparent(text: str) -> bytes:
    """Return the context in a header `traceparent`; b"" if it is none. Later versions may have more parts."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return b""
    version, trace_id, span_id, flags, more = match.groups()
    if more is not None and version == "00":
        return b""
    return _from_hex(trace_id + span_id) + bytes([int(flags, 16) & _KNOWN_FLAGS])


def stored_context(stored: bytes) -> bytes:
    """Return a context that the store holds; b"" if those bytes are none, which must make no delivery impossible."""
    return stored if len(stored) == _BYTES else b""


def format_traceparent(context: bytes) -> str:
    """Return the header `traceparent` of a context."""
    return f"00-{context[:16].hex()}-{context[16:24].hex()}-{context[24]:02x}"


def is_sampled(context: bytes) -> bool:
    """Return True if the trace is recorded, as far as its caller knows. No context is not sampled."""
    return bool(context) and bool(context[24] & _SAMPLED)


def sampled_only(context: bytes) -> bytes:
    """Return the context if it is sampled, b"" otherwise."""
    return context if is_sampled(context) else b""


def is_id_sampled(task_id: str, share: float) -> bool:
    """Return True if a task without a trace context is among the `share` (0 to 1) of tasks that are traced.

    Its id decides, so all of its attempts are traced, in whatever process, or none of them is.
    """
    return zlib.crc32(task_id.encode()) < share * 2**32


def find_traceparent(headers: Mapping[str, str]) -> str | None:
    """Return the value of the header `traceparent` in a task's own headers, whose names are of any case."""
    return next((value for name, value in headers.items() if name.lower() == TRACEPARENT), None)
