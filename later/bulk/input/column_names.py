"""Names of columns: which column of an input is a field of a task, whatever its case and the spaces around it.

A time whose column is not recognized would make all tasks due at once. So a table without any time is refused, with the
column that was probably meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from later.bulk.input.arrow_text import is_string_type
from later.bulk.input.row_keys import KEY
from later.bulk.input.row_origins import ORIGIN_COLUMN, ORIGIN_TYPE
from later.core.errors import Refused
from later.core.field_names import suggest_field

STRING_FIELDS = ("topic", "callback", "content")
NUMBER_FIELDS = ("delay", "execute_time", "retry", "ttl", "remember")
OBJECT_FIELDS = ("headers", "context")
"""Fields whose values are objects of strings, which may be secrets."""
FIELDS = (*STRING_FIELDS, *NUMBER_FIELDS, *OBJECT_FIELDS)
TIME_FIELDS = ("delay", "execute_time")
CORRUPT_COLUMN = "_corrupt"
"""The column with the text of a row that Spark's reader could not parse."""

MISSING_TIME = "expected a time, got nothing (nullTime=now, or --null-time now, makes such rows due at once)"


class TimeRules(NamedTuple):
    """The rules for rows without a time, whose tasks would be due at once."""

    all_now: bool = False
    """True if the input may have no time at all."""
    null_now: bool = False
    """True if a row's time may be null or empty."""


TIME_REQUIRED = TimeRules()


def canonical_name(name: str) -> str:
    """Return a column's name in lower case, without the spaces around it: names that differ in these only are equal."""
    return name.strip().lower()


def match_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the column of each field, and of the key, that is among these names.

    Raises:
        Refused: Two columns have the name of one field.
    """
    matches: dict[str, str] = {}
    for name in names:
        field = canonical_name(name)
        if field not in FIELDS and field != KEY:
            continue
        if field in matches:
            raise Refused(f"{field}: expected one column of that name, got {matches[field]!r} and {name!r}", field)
        matches[field] = name
    return matches


def source_columns(mapped: Mapping[str, str], own_names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the column of each field and of the key: the mapped one, otherwise the one of the same name.

    `own_names` are the columns that have a field's name, for each such field (see `match_columns`); without it, any
    field may have one. A column that is mapped to a field no longer counts under its own name, unless it is mapped to
    `key`, because the key itself is not sent.
    """
    names = dict.fromkeys((*FIELDS, KEY)) if own_names is None else own_names
    own = {field: names[field] or field for field in (*FIELDS, KEY) if field in names}
    used = {source for field, source in mapped.items() if field != KEY}
    return {
        field: mapped.get(field) or own[field]
        for field in (*FIELDS, KEY)
        if field in mapped or (field in own and (field == KEY or own[field] not in used))
    }


def check_columns(schema: pa.Schema, *, allow_duplicates: bool) -> dict[str, str]:
    """Return the column of each field; their types are checked by `column_decoder` and `key_decoder`.

    Raises:
        Refused: A column is not a field, or occurs twice; or the key is missing, and duplicates are not allowed.
    """
    columns = match_columns(schema.names)
    for name in schema.names:
        is_origin = name == ORIGIN_COLUMN and schema.field(name).type == ORIGIN_TYPE
        if name not in (*columns.values(), CORRUPT_COLUMN) and not is_origin:
            meant = find_time_name([name])
            advice = f"; did you mean {meant[1]}?" if meant else ""
            raise Refused(f"{name}: unknown column; expected {', '.join(FIELDS)} or {KEY}{advice}", name)
    if KEY not in columns and not allow_duplicates:
        raise Refused(
            "key: expected a column of that name, which identifies a row: without it a row that is sent twice "
            "becomes two tasks (allowDuplicates, or --allow-duplicates, permits that)",
            KEY,
        )
    if CORRUPT_COLUMN in schema.names and not is_string_type(schema.field(CORRUPT_COLUMN).type):
        kind = schema.field(CORRUPT_COLUMN).type
        raise Refused(f"{CORRUPT_COLUMN}: expected strings, got a column of {kind}", CORRUPT_COLUMN)
    return columns


def find_time_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that probably means a time, and the field that it means; None if there is none."""
    for name in names:
        field = suggest_field(name, TIME_FIELDS)
        if field is not None:
            return name, field
    return None


def check_time(fields: Collection[str], names: Iterable[str]) -> None:
    """Raise Refused if no time is among the fields. One of the input's columns, `names`, may be meant to be one."""
    if any(field in fields for field in TIME_FIELDS):
        return
    meant = find_time_name(names)
    advice = f" (did you mean {meant[0]!r}? then --column {meant[1]}={meant[0]}, or an alias)" if meant else ""
    raise Refused(
        f"execute_time: expected a column execute_time or delay, got neither{advice}; with the option now (--now) all "
        "tasks are due at once",
        "execute_time",
    )


def missing_time(field: str, names: Iterable[str] = ()) -> Refused:
    """Return the refusal of a row without a time in `field`. `names` are its unknown fields: one may be meant."""
    meant = find_time_name(names)
    advice = f" (did you mean {meant[1]} by {meant[0]!r}?)" if meant else ""
    return Refused(f"{field}: {MISSING_TIME}{advice}", field)
