"""What is sent of a table: for each row the JSON of a task, or why there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

MISSING_KEY = "key: expected a value, got nothing"
EMPTY_KEY = 'key: expected a value, got ""'
"""Or all rows that lack one would be the same row: one task, and the others already there."""
REDACTED = "***"
"""In place of what may be a secret."""

_USERINFO = re.compile(r"\A([^/?#]*//)[^/?#]*@")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Reject(NamedTuple):
    """A row that became no task: as JSON, or as the corrupt text it was, and why, in the words of `/create`."""

    key: str | None
    row: str
    field: str | None
    reason: str


class Payloads(NamedTuple):
    """Rows that can be sent: bodies of `/create`, their ids, and the rows' keys where they have any."""

    bodies: list[bytes]
    ids: list[str]
    keys: list[bytes | None] | None

    def slice(self, start: int, end: int) -> Payloads:
        """Those from `start` on and before `end`."""
        return Payloads(
            self.bodies[start:end], self.ids[start:end], None if self.keys is None else self.keys[start:end]
        )

    def select(self, positions: Sequence[int]) -> Payloads:
        """Those at these positions."""
        return Payloads(
            [self.bodies[i] for i in positions],
            [self.ids[i] for i in positions],
            None if self.keys is None else [self.keys[i] for i in positions],
        )

    def reject(self, position: int, field: str | None, reason: str) -> Reject:
        """What is told of one that was refused."""
        return Reject(
            self.readable_key(position), row_from_body(self.bodies[position], self.ids[position]), field, reason
        )

    def readable_key(self, position: int) -> str | None:
        """A row's key, for a person."""
        key = None if self.keys is None else self.keys[position]
        return None if key is None else decode_readable(key)


class Parsed(NamedTuple):
    """What a batch of rows came to: lines to send, and rows that cannot be sent."""

    payloads: Payloads
    rejected: list[Reject]


def row_from_body(body: bytes, id: str) -> str:
    """The row that a body was made of: without the id that it begins with, which is of our making."""
    ours = f'{{"id":"{id}"'.encode()
    if not body.startswith(ours):
        return redact_row(body)
    return redact_row(body[:1] + body[len(ours) :].removeprefix(b","))


def redact_row(row: bytes, sources: Mapping[str, str] = MappingProxyType({})) -> str:
    """A row as it is told, without secrets: of the headers the names alone, of the callback no user and password.

    `sources` says what the row calls them, where it does not call them so. What is no JSON is told as it is: nobody
    knows what would be a header there.
    """
    names = {field: sources.get(field, field) for field in _HIDE}
    if not any(json.dumps(name).encode() in row for name in names.values()):
        return decode_readable(row)
    try:
        return _hidden_exactly(row, names)
    except (ValueError, RecursionError):
        return _hidden_loosely(row, names)


def _hidden_exactly(row: bytes, names: Mapping[str, str]) -> str:
    """All else as it stands, numbers of many digits too."""
    fields = _decode(row)
    for field, name in names.items():
        if name in fields:
            fields[name] = msgspec.Raw(msgspec.json.encode(_HIDE[field](msgspec.json.decode(fields[name]))))
    return msgspec.json.encode(fields).decode()


def _hidden_loosely(row: bytes, names: Mapping[str, str]) -> str:
    """Where there are other bytes in it than UTF-8, NaN, or lone surrogates."""
    try:
        fields = json.loads(row.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return decode_readable(row)
    if not isinstance(fields, dict):
        return decode_readable(row)
    fields |= {name: _HIDE[field](fields[name]) for field, name in names.items() if name in fields}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace").decode()


def _of_headers(value: Any) -> Any:
    if value is None:
        return None
    return dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED


def _of_callback(value: Any) -> Any:
    return _USERINFO.sub(rf"\1{REDACTED}@", value) if isinstance(value, str) else value


_HIDE: dict[str, Callable[[Any], Any]] = {"headers": _of_headers, "callback": _of_callback}


def decode_readable(text: bytes) -> str:
    """As text, whatever it is: a line may be of any bytes."""
    return text.decode("utf-8", "backslashreplace")
