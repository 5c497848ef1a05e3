"""Payloads, the JSON bodies by which rows are sent as tasks; and rejects, the rows that are not accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

MISSING_KEY = "key: expected a value, got nothing"
EMPTY_KEY = 'key: expected a value, got ""'
"""Without this check all rows with an empty key would be one task."""
REDACTED = "***"
"""The text that replaces a value which may be a secret."""

_SECRET_FIELDS = ("headers", "callback")
_USERINFO = re.compile(r"\A([^/?#]*//)[^/?#]*@")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Reject(NamedTuple):
    """A rejected row, as JSON or as the malformed text that it is, with the reason in the words of `/create`."""

    key: str | None
    row: str
    field: str | None
    reason: str


class Payloads(NamedTuple):
    """Rows to send: bodies of `/create`, the ids of their tasks, and the rows' keys if they have any."""

    bodies: list[bytes]
    ids: list[str]
    keys: list[bytes | None] | None

    def select(self, positions: Sequence[int]) -> Payloads:
        """Return the payloads at these positions."""
        return Payloads(
            [self.bodies[i] for i in positions],
            [self.ids[i] for i in positions],
            None if self.keys is None else [self.keys[i] for i in positions],
        )

    def reject(self, position: int, field: str | None, reason: str) -> Reject:
        """Return the rejected row at a position. Its `row` is the body without the id, which no input contains."""
        body = self.bodies[position]
        id = f'{{"id":"{self.ids[position]}"'.encode()
        row = body[:1] + body[len(id) :].removeprefix(b",") if body.startswith(id) else body
        return Reject(self.readable_key(position), redact_row(row), field, reason)

    def readable_key(self, position: int) -> str | None:
        """Return a row's key for people; None if the row has none."""
        key = None if self.keys is None else self.keys[position]
        return None if key is None else decode_readable(key)


class Parsed(NamedTuple):
    """The rows of a batch: those to send, and those that cannot be sent."""

    payloads: Payloads
    rejected: list[Reject]


def redact_row(row: bytes, sources: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a row without secrets: without the values of headers, and without user and password in the callback.

    `sources` maps a field to the row's name for it, if that is another. A row that is not a JSON object is returned as
    it is: headers cannot be found in it.
    """
    names = {field: sources.get(field, field) for field in _SECRET_FIELDS}
    if not any(json.dumps(name).encode() in row for name in names.values()):
        return decode_readable(row)
    try:  # everything else stays as written, numbers of many digits too
        fields = _decode_object(row)
        for field, name in names.items():
            if name in fields:
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
    lenient |= {name: _redact(field, lenient[name]) for field, name in names.items() if name in lenient}
    return json.dumps(lenient, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace").decode()


def _redact(field: str, value: Any) -> Any:
    if field == "callback":
        return _USERINFO.sub(rf"\1{REDACTED}@", value) if isinstance(value, str) else value
    if value is None:
        return None
    return dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED


def decode_readable(text: bytes) -> str:
    """Decode UTF-8; escape all other bytes."""
    return text.decode("utf-8", "backslashreplace")
