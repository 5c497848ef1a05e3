"""Payloads: the JSON bodies of tasks that are sent, and the rows that are rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

MISSING_KEY = "key: expected a value, got nothing"
EMPTY_KEY = 'key: expected a value, got ""'
"""Without this check all rows without a key would be the same row: one task."""
REDACTED = "***"
"""Replaces what may be a secret."""

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

    def slice(self, start: int, end: int) -> Payloads:
        """Return those from position `start` up to, not including, `end`."""
        return Payloads(
            self.bodies[start:end], self.ids[start:end], None if self.keys is None else self.keys[start:end]
        )

    def select(self, positions: Sequence[int]) -> Payloads:
        """Return those at these positions."""
        return Payloads(
            [self.bodies[i] for i in positions],
            [self.ids[i] for i in positions],
            None if self.keys is None else [self.keys[i] for i in positions],
        )

    def reject(self, position: int, field: str | None, reason: str) -> Reject:
        """Return the rejected row at a position; its row is the body without the id, which is generated, not read."""
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
    """Return a row without secrets: of its headers only the names, and no user and password in its callback.

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
        return _redact_lenient(row, names)


def _redact_lenient(row: bytes, names: Mapping[str, str]) -> str:
    try:
        fields = json.loads(row.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return decode_readable(row)
    if not isinstance(fields, dict):
        return decode_readable(row)
    fields |= {name: _redact(field, fields[name]) for field, name in names.items() if name in fields}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace").decode()


def _redact(field: str, value: Any) -> Any:
    if field == "callback":
        return _USERINFO.sub(rf"\1{REDACTED}@", value) if isinstance(value, str) else value
    if value is None:
        return None
    return dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED


def decode_readable(text: bytes) -> str:
    """Decode UTF-8; escape all other bytes."""
    return text.decode("utf-8", "backslashreplace")
