"""Columns of strings as Python values.

Spark takes any bytes for a string, so a row with other bytes than UTF-8 must not fail the other rows.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

INVALID_MAPPING = msgspec.Raw(json.dumps({"\udcff": ""}).encode())
"""Replaces a map or a struct with a string that is not UTF-8; `/create` refuses it."""


def is_string_type(kind: pa.DataType) -> bool:
    """Return True for Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def python_values(column: pa.Array) -> list[Any]:
    """Return the column's values as Python's. Raises UnicodeDecodeError: a string is not UTF-8."""
    values: list[Any] = column.to_pylist()
    return values


def decode_strings(column: pa.Array) -> list[Any]:
    """Return the strings; one that is not UTF-8 as JSON with lone surrogates, which `/create` refuses by field."""
    try:
        return python_values(column)
    except UnicodeDecodeError:
        strings: list[Any] = []
        for raw in python_values(column.cast(pa.large_binary())):
            try:
                strings.append(None if raw is None else raw.decode())
            except UnicodeDecodeError:
                strings.append(msgspec.Raw(json.dumps(raw.decode("utf-8", "surrogateescape")).encode()))
        return strings


def decode_mappings(column: pa.Array) -> list[Any]:
    """Return maps or structs of strings; `INVALID_MAPPING` for one with a string that is not UTF-8."""
    try:
        return python_values(column)
    except UnicodeDecodeError:
        mappings: list[Any] = []
        for scalar in column:
            try:
                mappings.append(scalar.as_py())
            except UnicodeDecodeError:
                mappings.append(INVALID_MAPPING)
        return mappings
