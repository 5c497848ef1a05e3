"""Columns of texts. Spark takes any bytes for a text, and so one row of them must not fail the others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

INVALID_MAPPING = msgspec.Raw(json.dumps({"\udcff": ""}).encode())
"""In place of an object that has such a text in it."""


def is_string_type(kind: pa.DataType) -> bool:
    """Is it a type of texts?"""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def python_values(column: pa.Array) -> list[Any]:
    """As Python's."""
    found: list[Any] = column.to_pylist()
    return found


def decode_strings(column: pa.Array) -> list[Any]:
    """As Python's; of bytes that are no UTF-8 JSON with lone surrogates, which is refused by the name of its field."""
    try:
        return python_values(column)
    except UnicodeDecodeError:
        return [None if raw is None else _text(raw) for raw in python_values(column.cast(pa.large_binary()))]


def decode_mappings(column: pa.Array) -> list[Any]:
    """Maps or structs of texts, as Python's; `NOT_UTF_8` for one that has other bytes in it."""
    try:
        return python_values(column)
    except UnicodeDecodeError:
        return [_object(scalar) for scalar in column]


def _text(raw: bytes) -> str | msgspec.Raw:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return msgspec.Raw(json.dumps(raw.decode("utf-8", "surrogateescape")).encode())


def _object(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return INVALID_MAPPING
