"""Keys of rows: a column into texts, of which ids are made. What a row's key comes to never changes: not with the
format that the row is read from, the session's time zone, or a version of Arrow's. So it is spelt out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from later.bulk.input.arrow_text import decode_strings, is_string_type, python_values
from later.core.errors import Refused

KEY = "key"

Keys = Sequence[bytes | None]
KeyDecoder = Callable[[pa.Array], Keys]

_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)

_encode = msgspec.json.Encoder().encode


def key_decoder(kind: pa.DataType) -> KeyDecoder:
    """What reads keys: 5 and "5" are the same one, so that the same rows from another format have the same ids.

    Raises:
        Refused: a column of that type says nothing exactly.
    """
    if is_string_type(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda column: python_values(column.cast(pa.large_binary()))
    if pa.types.is_integer(kind):
        return lambda column: python_values(column.cast(pa.large_string()).cast(pa.large_binary()))
    if _is_exact(kind):
        return lambda column: [None if is_empty(part) else _text(part) for part in _parts(column)]
    raise Refused(f"key: expected strings, integers, decimals, dates, timestamps or structs of these, got a column of "
                  f"{kind}", KEY)  # fmt: skip


def is_empty(part: Any) -> bool:
    """None, and a list or an object of nothing: or all rows that lack every part would be the same row."""
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else None
    return part is None if parts is None else all(inner == "" or is_empty(inner) for inner in parts)


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_exact(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_timestamp(kind):
        return kind.unit in _MICROS
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return bool(is_number or is_string_type(kind) or pa.types.is_date(kind))


def _text(part: Any) -> bytes:
    """A text is its own, anything else its JSON."""
    return part.encode() if isinstance(part, str) else _encode(part)


def _parts(column: pa.Array) -> Sequence[Any]:
    """What JSON can be made of: a struct's parts without their names, decimals as they stand, times as ISO 8601."""
    kind = column.type
    if pa.types.is_struct(kind):
        rows = zip(*map(_parts, column.flatten()), strict=True)
        return [row if there else None for row, there in zip(rows, python_values(column.is_valid()), strict=True)]
    if pa.types.is_decimal(kind):
        return [_decimal(value) for value in python_values(column)]
    if pa.types.is_timestamp(kind):
        epoch, micros = _EPOCH if kind.tz is None else _EPOCH_UTC, _MICROS[kind.unit]
        return [
            None if value is None else _moment(epoch, value * micros)
            for value in python_values(column.cast(pa.int64()))
        ]
    if pa.types.is_date(kind):
        return [_day(value) for value in python_values(column.cast(pa.date32()).cast(pa.int32()))]
    return decode_strings(column) if is_string_type(kind) else python_values(column)


def _decimal(value: Decimal | None) -> msgspec.Raw | None:
    return None if value is None else msgspec.Raw(format(value, "f").encode())


def _moment(epoch: datetime, micros: int) -> str:
    """In UTC, whatever the column's zone. Beyond what Python has years for: the microseconds since 1970."""
    try:
        return (epoch + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return str(micros)


def _day(days: int | None) -> str | None:
    if days is None:
        return None
    try:
        return (_EPOCH_DAY + timedelta(days)).isoformat()
    except OverflowError:
        return str(days)
