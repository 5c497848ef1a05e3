"""Every field of every request: a wrong value is refused by its name, whatever it is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from later.api import requests
from later.api.requests import EXPECTED
from later.core.edit import TaskChanges
from later.core.errors import Refused
from later.core.json_body import body_parser, parse_draft
from later.core.task import Draft
from tests.cases import each_case

SCHEMAS: list[type[msgspec.Struct]] = [
    Draft,
    TaskChanges,
    *(
        member
        for _, member in inspect.getmembers(requests, inspect.isclass)
        if issubclass(member, msgspec.Struct) and member.__module__ == requests.__name__
    ),
]
"""The schemas of all requests."""
FIELDS = [(schema, field) for schema in SCHEMAS for field in schema.__struct_fields__]
VALUES = [
    "true", '"x"', '"\\ud800"', "5", "-5", "5.0", "5.5", "1e400", "-1e400", "NaN", "1" * 400, "[]", "[1]", '["x"]',
    '[["x"]]', '["\\ud800"]', "[null]", "{}", '{"a": 1}', '{"a": "b"}', '{"a": null}', '{"a": {}}', '{"\\ud800": "b"}',
]  # fmt: skip
"""JSON of every type, and of values that are hard to read."""


@each_case(("schema", "field"), FIELDS)
def test_a_wrong_value_of_any_field_is_refused_by_its_name(schema: type[msgspec.Struct], field: str) -> None:
    parse: Callable[[bytes], Any] = body_parser(schema, EXPECTED)
    refused_fields = set()
    for value in VALUES:
        try:
            parse(f'{{"{field}": {value}}}'.encode())
        except Refused as error:
            if "too many digits" not in error.detail:  # then the body is no JSON to us
                refused_fields.add(error.field)
    assert refused_fields == {field}


@each_case("schema", SCHEMAS)
def test_every_field_of_a_request_is_listed(schema: type[msgspec.Struct]) -> None:
    assert set(schema.__struct_fields__) <= EXPECTED.keys()


def test_a_parser_of_an_unlisted_field_cannot_be_made() -> None:
    class Request(msgspec.Struct):
        colour: int | None = None

    with pytest.raises(TypeError, match="Request: it is not listed what colour takes"):
        body_parser(Request)


def test_the_last_of_two_values_of_a_field_counts() -> None:
    assert parse_draft(b'{"delay": "x", "delay": 5}').delay == 5


def test_a_valid_value_of_each_kind_is_read() -> None:
    values = {"topic": "x", "delay": 1.5, "retry": 3, "headers": {"a": "b"}}
    assert msgspec.to_builtins(parse_draft(json.dumps(values).encode())).items() >= values.items()
