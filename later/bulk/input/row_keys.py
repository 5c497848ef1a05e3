"""Keys of rows: the bytes from which task ids are computed.

A row's key never changes: not with the format that the row is read from, not with the session's time zone, and not
with Arrow's version. So every conversion is spelt out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from later.bulk.input.arrow_text import decode_strings, is_string_type, python_values
from later.core.errors import Refused

KEY = "key"

Keys = Sequence[bytes | None]
KeyDecoder = Callable[[pa.Array], Keys]

_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MICROSECOND, _DAY = timedelta(microseconds=1), timedelta(days=1)

_encode = msgspec.json.Encoder().encode


def key_decoder(kind: pa.DataType) -> KeyDecoder:
    """Return the decoder of a column of keys: strings as they are, other values as JSON, None for an empty value.

    5 and "5" are the same key, so that the same rows in another format have the same ids.

    Raises:
        Refused: Values of that type are not exact.
    """
    if is_string_type(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda column: python_values(column.cast(pa.large_binary()))
    if pa.types.is_integer(kind):
        return lambda column: python_values(column.cast(pa.large_string()).cast(pa.large_binary()))
    if _is_exact(kind):
        return lambda column: [
            None if is_empty(value) else value.encode() if isinstance(value, str) else _encode(value)
            for value in _json_values(column)
        ]
    raise Refused(f"key: expected strings, integers, decimals, dates, timestamps or structs of these, got a column of "
                  f"{kind}", KEY)  # fmt: skip


def is_empty(value: Any) -> bool:
    """Return True for None and for a list or an object of empty values.

    Such a key identifies no row: all rows without any of its parts would be the same row.
    """
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return value is None if parts is None else all(part == "" or is_empty(part) for part in parts)


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_exact(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_timestamp(kind):
        return kind.unit in _MICROSECONDS
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    return bool(is_number or is_string_type(kind) or pa.types.is_date(kind))


def _json_values(column: pa.Array) -> Sequence[Any]:
    """Return values for a JSON encoder: structs without names of fields, decimals as written, times as ISO 8601."""
    kind = column.type
    if pa.types.is_struct(kind):
        rows = zip(*map(_json_values, column.flatten()), strict=True)
        is_valid = python_values(column.is_valid())
        return [row if valid else None for row, valid in zip(rows, is_valid, strict=True)]
    if pa.types.is_decimal(kind):
        decimals = python_values(column)
        return [None if value is None else msgspec.Raw(format(value, "f").encode()) for value in decimals]
    if pa.types.is_timestamp(kind):
        epoch, factor = _EPOCH if kind.tz is None else _EPOCH_UTC, _MICROSECONDS[kind.unit]
        times = python_values(column.cast(pa.int64()))
        return [None if value is None else _iso_format(epoch, value * factor, _MICROSECOND) for value in times]
    if pa.types.is_date(kind):
        days = python_values(column.cast(pa.date32()).cast(pa.int32()))
        return [None if value is None else _iso_format(_EPOCH_DAY, value, _DAY) for value in days]
    return decode_strings(column) if is_string_type(kind) else python_values(column)


def _iso_format(epoch: date, count: int, unit: timedelta) -> str:
    """Return `count` units after the epoch, in UTC for timestamps; the count itself if it is beyond Python's years."""
    try:
        return (epoch + count * unit).isoformat()
    except OverflowError:
        return str(count)
