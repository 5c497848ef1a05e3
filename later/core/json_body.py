"""JSON bodies of requests.

A compiled decoder parses them. Only a body that it rejects is read again, slowly, to say which field is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from later.core.errors import Refused
from later.core.field_names import suggest_field
from later.core.task import Draft
from later.core.validation import EXPECTED, MAX_EXACT, escape_name, format_value, refusal, utf8_size

RESERVED_FIELDS = frozenset(["method", "raw", "tags", "timeout", "cron", "backoff", "group"])
"""Names of fields that a later version may take."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}

Body = TypeVar("Body", bound=msgspec.Struct)


def body_parser(schema: type[Body], expected: Mapping[str, str] = EXPECTED) -> Callable[[bytes], Body]:
    """Return a parser of JSON bodies of this schema; `expected` says what each field takes, for the refusals.

    The parser raises Refused if a body is not a JSON object, or with the name of the first field that is unknown or of
    a wrong type.

    Raises:
        TypeError: `expected` lacks a field. Otherwise the first wrong value of it would be answered as our own fault.
    """
    decode = msgspec.json.Decoder(schema).decode
    check_fields = _fields_checker(schema, expected)

    def parse(body: bytes) -> Body:
        try:
            return decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            fields = check_fields(parse_object(body))
        return msgspec.convert(fields, schema)  # no field is wrong: a key came twice, and its last value is valid

    return parse


def _fields_checker(
    schema: type[msgspec.Struct], expected: Mapping[str, str]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that checks the fields of an object of this schema, and raises Refused for the first wrong one.

    An object in an array of the field `failed` is checked in the same way; `expected` has its fields as `failed.lease`.
    """
    types = _field_types(schema)
    if unlisted := types.keys() - expected.keys():
        raise TypeError(f"{schema.__name__}: it is not listed what {', '.join(sorted(unlisted))} takes")
    checkers = {
        name: _fields_checker(struct.cls, _expected_in(name, expected))
        for name, members in types.items()
        if isinstance(struct := _items_of(members).get(inspect.StructType), inspect.StructType)
    }

    def check_fields(fields: dict[str, Any]) -> dict[str, Any]:
        for field, value in fields.items():
            if field not in types:
                raise unknown_field(field, types)
            if value is None:
                continue
            if field in checkers:
                fields[field] = _check_objects(field, value, checkers[field], expected[field])
            else:
                fields[field] = _check_type(field, value, types[field], expected[field])
        return fields

    return check_fields


def _expected_in(field: str, expected: Mapping[str, str]) -> dict[str, str]:
    """Return what the fields of an object in an array of this field take."""
    start = f"{field}."
    return {name.removeprefix(start): text for name, text in expected.items() if name.startswith(start)}


def _check_objects(
    field: str, value: object, check_fields: Callable[[dict[str, Any]], dict[str, Any]], expected: str
) -> list[dict[str, Any]]:
    """Check an array of objects. A refusal names the array, and in its text also the field of the object."""
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise refusal(field, value, expected)
    try:
        return [check_fields(element) for element in value]
    except Refused as error:
        raise Refused(f"{field}: {error.detail}", field) from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object of any fields with Python's own decoder. If a key comes twice, its last value counts.

    Raises:
        Refused: it is not a JSON object; the text says why.
    """
    if not body.strip():
        raise Refused("expected a JSON object, got nothing")
    if body.startswith(_BYTE_ORDER_MARK):
        raise Refused("expected JSON without a byte order mark")
    try:
        fields = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refused(f"expected UTF-8, got the byte 0x{body[error.start]:02x} at position {error.start}") from None
    except json.JSONDecodeError as error:
        raise Refused(f"expected JSON: {error}") from None
    except RecursionError:
        raise Refused("expected JSON, got it nested too deeply") from None
    except ValueError:  # Python's refusal to read very long integers
        raise Refused("expected JSON, got an integer of too many digits in it") from None
    if not isinstance(fields, dict):
        raise Refused(f"expected a JSON object, got {_json_type(fields)}")
    return fields


def unknown_field(name: str, known: Collection[str] = ()) -> Refused:
    """Return the refusal of a field that a body must not have: its fields are the `known` ones."""
    shown = escape_name(name)
    if name in RESERVED_FIELDS:
        return Refused(f"{shown}: not a field of this version", shown)
    meant = suggest_field(name, known)
    question = f"; did you mean {meant}?" if meant else ""
    return Refused(f"{shown}: unknown field{question}", shown)


def _check_type(field: str, value: object, types: _Types, expected: str) -> object:
    """Return the value if the field takes values like this one, an integral float as an integer. Raises Refused."""
    match value:
        case str() if inspect.StrType in types:
            utf8_size(field, value)
        case list() if inspect.ListType in types:
            return [_check_type(field, element, _items_of(types), expected) for element in value]
        case dict() if inspect.IntType in (items := _values_of(types)):
            return {name: _check_type(field, number, items, expected) for name, number in value.items()}
        case _ if inspect.StrType in _values_of(types):
            _check_string_map(field, value, expected)
        case float() if inspect.IntType in types:
            if not value.is_integer() or abs(value) > MAX_EXACT:
                raise Refused(f"{field}: expected {expected}, got {value}", field)
            return int(value)  # as JSON Schema has it: 5.0 is an integer
        case bool():
            raise refusal(field, value, expected)
        case int() | float() if _NUMBERS & types.keys() and abs(value) <= sys.float_info.max:
            pass  # neither NaN nor infinite
        case dict() | list() if field == "content":
            raise Refused(f"{refusal(field, value, expected)}: {_TEXT_EXAMPLE}", field)
        case _:
            raise refusal(field, value, expected)
    return value


_TEXT_EXAMPLE = r'''JSON goes in as text, as in "content": "{\"order\": 7}"'''


def _check_string_map(field: str, value: object, expected: str) -> None:
    """Raise Refused unless the value is an object of strings. Show none of them: they are secrets."""
    if not isinstance(value, dict):
        raise Refused(f"{field}: expected {expected}, got {_json_type(value)}", field)
    for name, text in value.items():
        if not isinstance(text, str):
            raise Refused(f"{field}: expected {expected}, got {_json_type(text)} in {format_value(name)}", field)
        utf8_size(field, name + text)


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "a number")


_Types = Mapping[type[inspect.Type], inspect.Type]
"""The types that a value may have, by their kinds."""
_NUMBERS = frozenset({inspect.IntType, inspect.FloatType})


def _field_types(schema: type[msgspec.Struct]) -> dict[str, _Types]:
    """Return the types that each field of the schema takes."""
    info = inspect.type_info(schema)
    assert isinstance(info, inspect.StructType)
    return {field.name: _members(field.type) for field in info.fields}


def _members(type_: inspect.Type) -> _Types:
    types = type_.types if isinstance(type_, inspect.UnionType) else (type_,)
    return {type(member): member for member in types}


def _items_of(types: _Types) -> _Types:
    """Return the types of an array's items; none if the types have no array."""
    array = types.get(inspect.ListType)
    return _members(array.item_type) if isinstance(array, inspect.ListType) else {}


def _values_of(types: _Types) -> _Types:
    """Return the types of an object's values; none if the types have no object with names of any kind."""
    mapping = types.get(inspect.DictType)
    return _members(mapping.value_type) if isinstance(mapping, inspect.DictType) else {}


parse_draft = body_parser(Draft)
"""Parse the body of a create."""
