"""Builders of JSON Schemas (draft 2020-12, the dialect of OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
"""A JSON Schema, or a part of one."""


def string(min_chars: int = 0, max_chars: int | None = None, **keywords: Any) -> Schema:
    """Return the schema of a string of so many characters."""
    bounds = {"minLength": min_chars or None, "maxLength": max_chars}
    return {"type": "string", **_given(bounds), **keywords}


def number(least: float | None = None, most: float | None = None, **keywords: Any) -> Schema:
    """Return the schema of a number between two bounds, which are included."""
    return {"type": "number", **_given({"minimum": least, "maximum": most}), **keywords}


def integer(least: int | None = None, most: int | None = None) -> Schema:
    """Return the schema of an integer between two bounds, which are included."""
    return {"type": "integer", **_given({"minimum": least, "maximum": most})}


def choice(values: Sequence[str]) -> Schema:
    """Return the schema of one of these strings."""
    return {"type": "string", "enum": list(values)}


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    """Return the schema of an array of so many items."""
    return {"type": "array", "items": items, **_given({"minItems": least or None, "maxItems": most})}


def mapping(values: Schema, most: int | None = None) -> Schema:
    """Return the schema of an object of any names, up to `most` of them."""
    return {"type": "object", "additionalProperties": values, **_given({"maxProperties": most})}


def structure(properties: Mapping[str, Schema], required: Sequence[str] = (), **keywords: Any) -> Schema:
    """Return the schema of an object of these properties."""
    return {"type": "object", "properties": dict(properties), **_given({"required": [*required] or None}), **keywords}


def answer_structure(**properties: Schema) -> Schema:
    """Return the schema of an object of an answer that has all of these properties, and perhaps others one day."""
    return structure(properties, [*properties])


def nullable(schema: Schema) -> Schema:
    """Return the schema of what this one takes, and of null."""
    if "type" in schema and "enum" not in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*types, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def either(*names: str) -> list[Schema]:
    """Return the schemas of objects that have one of these properties, and it is not null: one for each."""
    return [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]


def reference(name: str) -> Schema:
    """Return the schema that refers to a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}


def _given(keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if value is not None}
