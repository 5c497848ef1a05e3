"""The fields of a task as callers write them: what each takes, and how a wrong value is refused."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache

import msgspec

from later.core.errors import Refused

DAY_MS = 86_400_000
MAX_AHEAD_MS = 3653 * DAY_MS
"""Ten years, with as many leap days as ten years can have."""
MAX_TTL_MS = 100 * MAX_AHEAD_MS
"""A longer ttl or memory is cut to this value, which still fits the store's integers."""
MAX_TOPIC_BYTES = 255
MAX_CALLBACK_CHARS = 2048
MAX_RETRY = 1000
MAX_HEADERS = 20
MAX_HEADER_BYTES = 4096
MAX_CONTEXT_BYTES = 4096
DEFAULT_NAMESPACE = "default"
RESERVED_NAMESPACE = "later"
"""The namespace of tasks that the daemon itself makes: callers may set its policies, but create nothing in it."""

EXPECTED = {
    "topic": f"a string of 1 to {MAX_TOPIC_BYTES} bytes without control characters or empty parts",
    "callback": f"an absolute http or https URL of at most {MAX_CALLBACK_CHARS} characters",
    "delay": "a number of seconds ≥ 0",
    "execute_time": "a number of Unix seconds or an RFC 3339 time",
    "retry": f"an integer from 0 to {MAX_RETRY}",
    "content": "a string",
    "headers": f"an object of up to {MAX_HEADERS} strings",
    "context": f"an object of strings, of at most {MAX_CONTEXT_BYTES} bytes as JSON",
    "ttl": "a number of seconds > 0",
    "id": "1 to 128 characters of A-Za-z0-9._~:-",
    "remember": "a number of seconds ≥ 0",
    "if_exists": '"keep", "update" or "error"',
    "durability": '"primary", "disk", "replica" or "replica-disk"',
    "namespace": f"a string of 1 to {MAX_TOPIC_BYTES} bytes without control characters or a /",
}
"""The values that each field of a task takes, as a refusal states them."""
EXPECTED_TIME = EXPECTED["execute_time"]

ID_PATTERN = r"[A-Za-z0-9._~:-]{1,128}"
_ID = re.compile(ID_PATTERN)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RESERVED_HEADERS = re.compile(
    r"host|content-.*|connection|close|keep-alive|proxy|proxy-.*|te|trailers?|transfer-encoding|upgrade|http2-settings"
    r"|expect|webhook-.*|later-.*"
)
"""Headers that belong to the connection (RFC 9110, section 7.6.1, and "Hop-by-hop" in IANA's registry), that later sets
itself, or that a CGI program takes for its own configuration (`Proxy`).

A name is compared in lower case and with "-" for "_": behind CGI or WSGI, `Webhook_Id` is `Webhook-Id`."""


# Refusals


def refusal(field: str, got: object, expected: str | None = None) -> Refused:
    """Return the refusal of a value: `delay: expected a number of seconds ≥ 0, got -5`."""
    return Refused(f"{field}: expected {expected or EXPECTED[field]}, got {format_value(got)}", field)


def format_value(value: object) -> str:
    """Return a value much as its sender wrote it, in at most 80 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    # `repr` escapes what cannot be printed, so that a refusal stays one line
    text = f'"{repr(value[:80])[1:-1]}"' if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}…"


def escape_name(name: str) -> str:
    """Return the first 80 characters of an unknown field's name, escaped so that a refusal stays one line."""
    return repr(name[:80])[1:-1]


# Times


MAX_EXACT = 2**53
"""Up to this limit, a whole float is exactly the number that was written."""


def to_milliseconds(seconds: float) -> int:
    """Convert seconds to the smallest whole number of ms that is not less, by decimal arithmetic.

    Floats are not exact enough: 0.035 · 1000 is slightly above 35, and 1e308 · 1000 is infinite.
    """
    if seconds == (whole := int(seconds)) and abs(whole) <= MAX_EXACT:
        return whole * 1000
    return math.ceil(Decimal(str(seconds)) * 1000)


def parse_time(field: str, value: float | str) -> int:
    """Convert a time to ms since the Unix epoch, rounded up and cut to ±2^53, up to which floats are exact.

    Raises:
        Refused: it is neither a number of seconds nor an RFC 3339 time with a zone, or probably a number of ms.
    """
    if isinstance(value, str):
        return _parse_rfc3339(field, value)
    if not math.isfinite(value):
        raise refusal(field, value, EXPECTED_TIME)
    if 1e12 <= value < 1e13:  # thirteen digits: the years 2001 to 2286 in ms
        raise Refused(f"{refusal(field, value, EXPECTED_TIME)}: are these milliseconds?", field)
    return max(-MAX_EXACT, min(to_milliseconds(value), MAX_EXACT))


_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,18}))?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
"""RFC 3339, section 5.6, without its zone if that is missing. (`datetime` alone reads many other forms, too.)"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _parse_rfc3339(field: str, text: str) -> int:
    """Return a time in ms since the Unix epoch, rounded up. Raises Refused."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise refusal(field, text, EXPECTED_TIME)
    date, time, fraction, zone = match.groups("")
    if not zone:
        raise refusal(field, text, "a time with its zone, as in 2027-01-15T08:00:00Z or 2027-01-15T09:00:00+01:00")
    try:
        second = datetime.fromisoformat(f"{date}T{time}{zone.upper()}")
    except ValueError:  # there is no such day, hour or zone
        raise refusal(field, text, EXPECTED_TIME) from None
    return (second - _EPOCH) // timedelta(milliseconds=1) + math.ceil(Decimal(f"0.{fraction}0") * 1000)


# Fields


def utf8_size(field: str, text: str) -> int:
    """Return the text's length in bytes.

    Raises:
        Refused: it contains a lone surrogate, which cannot be stored or sent.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Refused(f"{field}: expected Unicode text, got a lone surrogate in it", field) from None


def check_id(text: str, field: str = "id") -> str:
    """Check an id that a caller chose, and return it. `field` is where it was given.

    Raises:
        Refused: it is not 1 to 128 characters of A-Za-z0-9._~:-
    """
    if not _ID.fullmatch(text):
        raise refusal(field, text, EXPECTED["id"])
    return text


@lru_cache(maxsize=4096)
def parse_topic(text: str | None) -> str:
    """Return the topic's canonical name: `default/x` is the same topic as `x`.

    (`default/x/y` stays: without its first part it would be a topic of the namespace `x`.)

    Raises:
        Refused: it is empty, too long or not Unicode, or has an empty part or a control character.
    """
    if text is None or not 1 <= utf8_size("topic", text) <= MAX_TOPIC_BYTES:
        raise refusal("topic", text)
    if not all(text.split("/")) or _CONTROL.search(text):
        raise refusal("topic", text)
    namespace, _, rest = text.partition("/")
    return rest if namespace == DEFAULT_NAMESPACE and rest and "/" not in rest else text


def check_namespace(text: str) -> str:
    """Check a namespace's name, and return it.

    Raises:
        Refused: it is empty, too long or not Unicode, or has a `/` or a control character.
    """
    if not 1 <= utf8_size("namespace", text) <= MAX_TOPIC_BYTES or "/" in text or _CONTROL.search(text):
        raise refusal("namespace", text)
    return text


def check_content(text: str | None) -> str:
    """Check the content, and return it; without content, return an empty string.

    Raises:
        Refused: it is not Unicode.
    """
    if not text:
        return ""
    if not text.isascii():
        utf8_size("content", text)
    return text


def check_headers(headers: dict[str, str] | None) -> dict[str, str]:
    """Check the task's own headers, and return them. Their values are secrets: no refusal shows one.

    Raises:
        Refused: there are too many, they are too large, or one has a bad or reserved name or a control character.
    """
    if not headers:
        return {}
    if len(headers) > MAX_HEADERS:
        raise Refused(f"headers: expected {EXPECTED['headers']}, got {len(headers)}", "headers")
    size = sum(utf8_size("headers", name) + utf8_size("headers", value) for name, value in headers.items())
    if size > MAX_HEADER_BYTES:
        raise Refused(f"headers: expected at most {MAX_HEADER_BYTES} bytes in all, got {size}", "headers")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise Refused(f"headers: expected the name of a header, got {format_value(name)}", "headers")
        if _RESERVED_HEADERS.fullmatch(name.lower().replace("_", "-")):
            raise Refused(
                f"headers: expected a header of your own, got {format_value(name)}, which later sets", "headers"
            )
        if _CONTROL.search(value):
            raise Refused(f"headers: expected no control characters, got one in {format_value(name)}", "headers")
    if len({name.lower() for name in headers}) < len(headers):
        raise Refused("headers: expected each name once, whatever its case, got one twice", "headers")
    return headers


def check_context(context: dict[str, str]) -> dict[str, str] | None:
    """Check a task's context, and return it; an empty one is none. Its values may be secrets: no refusal shows one.

    Raises:
        Refused: it is not Unicode, or too large.
    """
    if not context:
        return None
    for name, value in context.items():
        utf8_size("context", name + value)
    size = len(msgspec.json.encode(context))
    if size > MAX_CONTEXT_BYTES:
        raise Refused(f"context: expected {EXPECTED['context']}, got {size}", "context")
    return context


def check_retry(retry: int) -> int:
    """Check the number of retries, and return it.

    Raises:
        Refused: it is not from 0 to 1000.
    """
    if not 0 <= retry <= MAX_RETRY:
        raise refusal("retry", retry)
    return retry
