"""The fields of a task as callers write them: what each takes, and how it is refused."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from later.core.errors import Refused

DAY_MS = 86_400_000
MAX_AHEAD_MS = 3653 * DAY_MS
"""Ten years, with as many leap days as ten years can have."""
MAX_TTL_MS = 100 * MAX_AHEAD_MS
"""A ttl beyond this is cut to it: nobody will know the difference, and it fits the store's integers."""
MAX_TOPIC_BYTES = 255
MAX_CALLBACK_CHARS = 2048
MAX_RETRY = 1000
MAX_HEADERS = 20
MAX_HEADER_BYTES = 4096
DEFAULT_NAMESPACE = "default"

EXPECTED = {
    "topic": f"a string of 1 to {MAX_TOPIC_BYTES} bytes without control characters or empty parts",
    "callback": f"an absolute http or https URL of at most {MAX_CALLBACK_CHARS} characters",
    "delay": "a number of seconds ≥ 0",
    "execute_time": "a number of Unix seconds",
    "retry": f"an integer from 0 to {MAX_RETRY}",
    "content": "a string",
    "headers": f"an object of up to {MAX_HEADERS} strings",
    "ttl": "a number of seconds > 0",
    "id": "1 to 128 characters of A-Za-z0-9._~:-",
    "state": '"delay", "unack", "error" or "dead"',
    "due_after": "a number of Unix seconds or an RFC 3339 time",
    "due_before": "a number of Unix seconds or an RFC 3339 time",
    "died_after": "a number of Unix seconds or an RFC 3339 time",
    "died_before": "a number of Unix seconds or an RFC 3339 time",
    "reason": "a string",
    "rate": "a number of tasks a second, 0.0001 at least",
    "states": 'an array of "delay", "error" and "dead"',
    "limit": "an integer ≥ 1",
    "cursor": "one of an earlier answer's",
    "namespace": f"a string of 1 to {MAX_TOPIC_BYTES} bytes without control characters or a /",
}
"""What each field takes, in the words of a refusal."""

_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FORBIDDEN_IN_URL = re.compile(r"[\s\\\x00-\x1f\x7f-\x9f]")
"""White space, control characters and the backslash: parsers disagree on what these mean in a URL."""
_RESERVED_HEADERS = re.compile(
    r"host|content-.*|connection|keep-alive|proxy-.*|te|trailers?|transfer-encoding|upgrade|expect|webhook-.*|later-.*"
)
"""Headers that belong to the connection (RFC 9110, section 7.6.1) or to later."""


def refusal(field: str, got: object) -> Refused:
    """The refusal of a value: `delay: expected a number of seconds ≥ 0, got -5`."""
    return Refused(f"{field}: expected {EXPECTED[field]}, got {describe(got)}", field)


def describe(value: object) -> str:
    """A value as its sender wrote it, near enough, and short."""
    if value is None:
        return "nothing"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else _quoted(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _quoted(text: str) -> str:
    """`repr` escapes what cannot be printed, so that a refusal stays one line."""
    return '"' + repr(text[:80])[1:-1] + '"'


_MAX_EXACT = 2**53
"""Up to here a float that is whole is the number that was written."""


def to_milliseconds(seconds: float) -> int:
    """The smallest whole number of ms that is not less than `seconds`, taken as the decimal it is written as.

    Floats would not do: 0.035 · 1000 is a hair above 35, a hair more than 0.035, times 1000, may be 35,
    and 1e308 · 1000 is infinite.
    """
    if seconds == (whole := int(seconds)) and abs(whole) <= _MAX_EXACT:
        return whole * 1000
    return math.ceil(Decimal(str(seconds)) * 1000)


def parse_time(field: str, given: float | str) -> int:
    """A time of the caller's as ms since the Unix epoch, rounded up; one that no clock will show is cut.

    Raises:
        Refused: it is neither a number of seconds nor an RFC 3339 time.
    """
    if isinstance(given, str):
        try:
            return -((_EPOCH - msgspec.convert(given, _Rfc3339)) // timedelta(milliseconds=1))
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise refusal(field, given) from None
    if not math.isfinite(given):
        raise refusal(field, given)
    return max(-_MAX_EXACT, min(to_milliseconds(given), _MAX_EXACT))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Rfc3339 = Annotated[datetime, msgspec.Meta(tz=True)]


def utf8_size(field: str, text: str) -> int:
    """The text's length in bytes.

    Raises:
        Refused: it has none: a lone surrogate, which nothing could store or send.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Refused(f"{field}: expected Unicode text, got a lone surrogate in it", field) from None


def check_id(text: str) -> str:
    """An id that a caller chose, checked.

    Raises:
        Refused: it is not 1 to 128 characters of A-Za-z0-9._~:-
    """
    if not _ID.fullmatch(text):
        raise refusal("id", text)
    return text


@lru_cache(maxsize=4096)
def parse_topic(text: str | None) -> str:
    """The topic's canonical name: `default/x` is the same topic as `x`.

    (`default/x/y` stays: without its first part it would be a topic of the namespace `x`.)

    Raises:
        Refused: it is empty, too long, no Unicode, has an empty part or a control character.
    """
    if text is None or not 1 <= utf8_size("topic", text) <= MAX_TOPIC_BYTES:
        raise refusal("topic", text)
    if not all(text.split("/")) or _CONTROL.search(text):
        raise refusal("topic", text)
    namespace, _, rest = text.partition("/")
    return rest if namespace == DEFAULT_NAMESPACE and rest and "/" not in rest else text


def check_namespace(text: str) -> str:
    """A namespace's name, checked.

    Raises:
        Refused: it is empty, too long, no Unicode, has a `/` or a control character.
    """
    if not 1 <= utf8_size("namespace", text) <= MAX_TOPIC_BYTES or "/" in text or _CONTROL.search(text):
        raise refusal("namespace", text)
    return text


@lru_cache(maxsize=4096)
def check_callback(text: str | None) -> str:
    """A callback's URL, checked.

    Raises:
        Refused: it is not an absolute http(s) URL with a host, or carries user:password@ or a fragment.
    """
    if text is None or len(text) > MAX_CALLBACK_CHARS or _FORBIDDEN_IN_URL.search(text):
        raise refusal("callback", text)
    utf8_size("callback", text)
    try:
        split = urlsplit(text)
        if "@" in split.netloc:
            raise Refused("callback: expected a URL without user:password@, got one with it", "callback")
        host = URL(text).host
    except ValueError as error:
        raise Refused(f"callback: expected {EXPECTED['callback']}, got {describe(text)}: {error}", "callback") from None
    if split.scheme not in ("http", "https") or not host:
        raise refusal("callback", text)
    if "#" in text:
        raise Refused(f"callback: expected a URL without a fragment, got {describe(text)}", "callback")
    return text


def check_headers(given: dict[str, str] | None) -> dict[str, str]:
    """The task's own headers, checked. Their values are secrets: no refusal shows one.

    Raises:
        Refused: too many, too large, a name that is none or belongs to later, a control character.
    """
    if not given:
        return {}
    if len(given) > MAX_HEADERS:
        raise Refused(f"headers: expected {EXPECTED['headers']}, got {len(given)}", "headers")
    size = sum(utf8_size("headers", name) + utf8_size("headers", value) for name, value in given.items())
    if size > MAX_HEADER_BYTES:
        raise Refused(f"headers: expected at most {MAX_HEADER_BYTES} bytes in all, got {size}", "headers")
    for name, value in given.items():
        _check_header(name, value)
    if len({name.lower() for name in given}) < len(given):
        raise Refused("headers: expected each name once, whatever its case, got one twice", "headers")
    return given


def _check_header(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise Refused(f"headers: expected the name of a header, got {describe(name)}", "headers")
    if _RESERVED_HEADERS.fullmatch(name.lower()):
        raise Refused(f"headers: expected a header of your own, got {describe(name)}, which later sets", "headers")
    if _CONTROL.search(value):
        raise Refused(f"headers: expected no control characters, got one in {describe(name)}", "headers")
