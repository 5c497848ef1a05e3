"""Bodies that a compiled decoder refused, read once more, slowly, to say which field is wrong and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from later.core.errors import Refused
from later.core.validation import EXPECTED, describe, refusal

RESERVED_FIELDS = frozenset({"method", "raw", "context", "tags", "timeout", "cron", "backoff"})
"""Names of fields that a later version may take."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}

Body = TypeVar("Body", bound=msgspec.Struct)


def parse_leniently(body: bytes, schema: type[Body]) -> Body:
    """Say what is wrong with a body that the decoder refused.

    Where nothing is (a wrong value whose key comes again with a right one: the last counts), it is taken.
    """
    given = parse_object(body)
    for field, value in given.items():
        if field not in schema.__struct_fields__:
            raise unknown_field(field)
        if value is not None:
            _CHECKS[field](field, value)
    return msgspec.convert(given, schema)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object of whatever fields, read by Python's own decoder; of a name that comes twice, the last.

    Raises:
        Refused: it is none; the text says why.
    """
    if not body.strip():
        raise Refused("expected a JSON object, got nothing")
    if body.startswith(_BYTE_ORDER_MARK):
        raise Refused("expected JSON without a byte order mark")
    try:
        given = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refused(f"expected UTF-8, got the byte 0x{body[error.start]:02x} at position {error.start}") from None
    except json.JSONDecodeError as error:
        raise Refused(f"expected JSON: {error}") from None
    except RecursionError:
        raise Refused("expected JSON, got it nested too deeply") from None
    except ValueError:  # how Python refuses to read very long integers
        raise Refused("expected JSON, got an integer of too many digits in it") from None
    if not isinstance(given, dict):
        raise Refused(f"expected a JSON object, got {_json_type(given)}")
    return given


def unknown_field(name: str) -> Refused:
    """The refusal of a field that the body may not have."""
    printable = repr(name[:80])[1:-1]
    what = "not a field of this version" if name in RESERVED_FIELDS else "unknown field"
    return Refused(f"{printable}: {what}", printable)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise refusal(field, value)
    _check_unicode(field, value)


def _check_texts(field: str, value: object) -> None:
    if not isinstance(value, list):
        raise refusal(field, value)
    for text in value:
        _check_text(field, text)


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{field}: expected Unicode text, got a lone surrogate in it", field) from None


def _check_number(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(field, value)
    if not abs(value) <= sys.float_info.max:  # NaN neither
        raise refusal(field, value)


def _check_integer(field: str, value: object) -> None:
    if isinstance(value, float):
        raise Refused(f"{field}: expected {EXPECTED[field]}, got {value}", field)
    _check_number(field, value)


def _check_moment(field: str, value: object) -> None:
    if isinstance(value, str):
        _check_unicode(field, value)
    else:
        _check_number(field, value)


def _check_headers(field: str, value: object) -> None:
    """Without showing a value: they are secrets."""
    if not isinstance(value, dict):
        raise Refused(f"{field}: expected {EXPECTED[field]}, got {_json_type(value)}", field)
    for name, text in value.items():
        if not isinstance(text, str):
            raise Refused(f"{field}: expected {EXPECTED[field]}, got {_json_type(text)} in {describe(name)}", field)
        _check_unicode(field, name + text)


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "a number")


_CHECKS: dict[str, Callable[[str, object], None]] = {
    "topic": _check_text,
    "callback": _check_text,
    "delay": _check_number,
    "execute_time": _check_number,
    "retry": _check_integer,
    "content": _check_text,
    "headers": _check_headers,
    "ttl": _check_number,
    "id": _check_text,
    "state": _check_text,
    "due_after": _check_moment,
    "due_before": _check_moment,
    "died_after": _check_moment,
    "died_before": _check_moment,
    "reason": _check_text,
    "rate": _check_number,
    "states": _check_texts,
    "limit": _check_integer,
    "cursor": _check_text,
}
"""For each field a check of its type; the policy checks the rest."""
