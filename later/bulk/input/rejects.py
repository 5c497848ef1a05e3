"""Rejects: rows that cannot become tasks, with all that is needed to mend them and to send them again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from later.bulk.input.column_names import OBJECT_FIELDS, canonical_name
from later.bulk.input.row_keys import KEY
from later.bulk.input.row_origins import UNKNOWN_ORIGIN, RowOrigin
from later.core.errors import Refused, TooLarge

MISSING_KEY = "key: expected a value, got nothing"
EMPTY_KEY = 'key: expected a value, got ""'
"""Without this check all rows with an empty key would be one task."""
REDACTED = "***"
"""The text that replaces a value which may be a secret."""

_USERINFO = re.compile(r"\A(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*)[^/?#]*@")
"""The user and password of a URL, also of one that is none: without its scheme or with other slashes."""
_UNQUOTED_VALUE = re.compile(r'[^"]*?(?=: | \()')
_SECRET_FIELDS = (*OBJECT_FIELDS, "callback")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RejectCode(StrEnum):
    """The kinds of reasons for which rows are rejected: a closed list, by which programs choose what to mend."""

    MISSING = "missing"
    """The field or the key has no value."""
    INVALID = "invalid"
    """The field does not take this value."""
    UNKNOWN_FIELD = "unknown_field"
    """A task has no such field."""
    NOT_ALLOWED = "not_allowed"
    """The topic's policy does not allow the value."""
    TOO_LARGE = "too_large"
    """The task is larger than the daemon accepts."""
    MALFORMED = "malformed"
    """The row itself cannot be read: it is no JSON object, has other columns than the header, or was misread."""
    REDACTED = "redacted"
    """The row has headers or a context as a table of rejects shows them: without their values."""
    REFUSED = "refused"
    """Any other reason of the daemon's."""


class Reject(NamedTuple):
    """A rejected row, as a row of a table of rejects.

    `row` is a JSON object with `key` and the fields of the task, or the malformed text as it was. `reason` is the
    sentence of `/create`; `code`, `expected` and `got` are its parts. `position` counts the rows of the file from 1.
    """

    key: str | None
    field: str | None
    code: RejectCode
    expected: str | None
    got: str | None
    file: str | None
    position: int | None
    row: str
    reason: str


def build_reject(
    row: bytes, key: bytes | None, error: Refused, code: RejectCode | None = None, origin: RowOrigin = UNKNOWN_ORIGIN
) -> Reject:
    """Return a rejected row without its secrets. `row` is a JSON object with the key, or malformed text.

    The code follows from the error, unless it is given.
    """
    field, shown = error.field, redact_row(row)
    reason, text = error.detail, error.detail.removeprefix(f"{error.field}: ")
    if field == "callback" and f"{REDACTED}@" in shown:  # the daemon quotes the value
        text = f"{text.partition(', got ')[0]}, got a URL with user:password@"
        reason = f"{field}: {text}"
    expected, got_word, got = text.partition(", got ")
    return Reject(
        key=None if key is None else decode_readable(key),
        field=field,
        code=code or (RejectCode.TOO_LARGE if isinstance(error, TooLarge) else reject_code(field, text)),
        expected=expected.removeprefix("expected ") if expected.startswith("expected ") else None,
        got=_value_of(got) if got_word else None,
        file=origin.file,
        position=origin.position,
        row=shown,
        reason=reason,
    )


def _value_of(got: str) -> str:
    """Return what came, as a refusal shows it, without the advice that may follow: `1700000000000: are these …?`."""
    if got.startswith('"'):  # a string is shown with the quotes in it as they are, and a long one is cut
        return got[: max(got.rfind('"'), got.find("…")) + 1]
    value = _UNQUOTED_VALUE.match(got)
    return got if value is None else value[0]


def reject_code(field: str | None, reason: str) -> RejectCode:
    """Return the code of a refusal of the daemon's; `reason` does not begin with the field."""
    expected, _, got = reason.partition(", got ")
    if expected.startswith(("unknown field", "not a field of this version")):
        return RejectCode.UNKNOWN_FIELD
    if any(part in expected for part in ("policy", "(deliver pull)", "Exceeds max allowed delivery delay")):
        return RejectCode.NOT_ALLOWED
    if not expected.startswith("expected "):
        return RejectCode.REFUSED
    if got.startswith("nothing") or got == '""':
        return RejectCode.MISSING
    return RejectCode.MALFORMED if field is None else RejectCode.INVALID


def row_with_key(row: bytes, key: bytes | None) -> bytes:
    """Return a JSON object with the key as its first field. A key that is not UTF-8, as JSON must be, is left out."""
    if key is None:
        return row
    try:
        field = msgspec.json.encode({KEY: key.decode()})
    except UnicodeDecodeError:
        return row
    return field if len(row) == len("{}") else field[:-1] + b"," + row[1:]


def is_redacted(values: Any) -> bool:
    """Return True if headers or a context are those that a table of rejects shows: they must not be sent.

    Otherwise a receiver would be called with *** for its password.
    """
    if isinstance(values, msgspec.Raw):
        if REDACTED.encode() not in bytes(values):
            return False
        try:
            values = msgspec.json.decode(values)
        except ValueError:
            return False
    return values == REDACTED or (isinstance(values, dict) and REDACTED in values.values())


def redacted_values(field: str) -> Refused:
    """Return the refusal of a field whose values are redacted."""
    got = f"{REDACTED} as in a table of rejects"
    return Refused(f"{field}: expected their values, got {got}: --set {field}=… gives them to all rows", field)


def redact_row(row: bytes) -> str:
    """Return a row without secrets: the values of headers and of the context, user and password in the callback.

    Names match as those of columns do. A row that is not a JSON object is returned as it is: fields cannot be found
    in it.
    """
    lower = row.lower()
    if not any(name.encode() in lower for name in _SECRET_FIELDS):
        return decode_readable(row)
    try:  # everything else stays as written, numbers of many digits too
        fields = _decode_object(row)
        for name, field in _find_secrets(fields):
            redacted = _redact(field, msgspec.json.decode(fields[name]))
            fields[name] = msgspec.Raw(msgspec.json.encode(redacted))
        return msgspec.json.encode(fields).decode()
    except (ValueError, RecursionError):  # bytes that are not UTF-8, NaN, lone surrogates, or no JSON object at all
        pass
    try:
        lenient = json.loads(row.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return decode_readable(row)
    if not isinstance(lenient, dict):
        return decode_readable(row)
    lenient |= {name: _redact(field, lenient[name]) for name, field in _find_secrets(lenient)}
    return json.dumps(lenient, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace").decode()


def _find_secrets(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that are those of fields with secrets, each with its field."""
    return [(name, field) for name in names if (field := canonical_name(name)) in _SECRET_FIELDS]


def _redact(field: str, value: Any) -> Any:
    if field == "callback":
        return _USERINFO.sub(rf"\1{REDACTED}@", value) if isinstance(value, str) else value
    if value is None:
        return None
    return dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED


def decode_readable(text: bytes) -> str:
    """Decode UTF-8; escape all other bytes."""
    return text.decode("utf-8", "backslashreplace")
