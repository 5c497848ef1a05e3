"""The reader of rows as tasks from Arrow batches whose columns have the names of `/create`'s fields, and `key`.

No single row can fail here: a value that is not a number, URL or object is sent as it is, and the daemon rejects it in
its own words.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from later.bulk.input.arrow_text import decode_mappings, decode_strings, is_string_type, python_values
from later.bulk.input.column_names import (
    CORRUPT_COLUMN,
    OBJECT_FIELDS,
    STRING_FIELDS,
    TIME_FIELDS,
    TIME_REQUIRED,
    TimeRules,
    check_columns,
    check_time,
    missing_time,
)
from later.bulk.input.csv_checks import CsvLayout, find_misread_rows
from later.bulk.input.due_times import due_times
from later.bulk.input.payload import Parsed, Payloads
from later.bulk.input.rejects import (
    EMPTY_KEY,
    MISSING_KEY,
    Reject,
    RejectCode,
    build_reject,
    is_redacted,
    redacted_values,
    row_with_key,
)
from later.bulk.input.row_keys import KEY, Keys, key_decoder
from later.bulk.input.row_origins import FindOrigin, RowCounter
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.task import new_id

WRONG_COLUMN_COUNT = "expected a row of as many columns as the header has"

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_Rfc3339 = Annotated[datetime, msgspec.Meta(tz=True)]
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

Values = Sequence[Any]
ColumnDecoder = Callable[[pa.Array], Values]


class TaskPayload(msgspec.Struct, omit_defaults=True):
    """A body of `/create`. Its values may be of any type that a table has: the daemon checks them."""

    id: str
    topic: Any = None
    callback: Any = None
    content: Any = None
    delay: Any = None
    execute_time: Any = None
    retry: Any = None
    ttl: Any = None
    remember: Any = None
    headers: Any = None
    context: Any = None


_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ColumnReader:
    """A reader of a job's batches with one schema. A task is due up to `spread_s` seconds later than its row says.

    `constants` are JSON values that a field has in all rows. With a `csv` layout, rows that were misread are rejected.

    Raises:
        Refused: The schema has a wrong column (see `check_columns`), or one of a type that its field cannot have; or
            it has no time, although `time_rules` require one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        job: str,
        *,
        allow_duplicates: bool,
        spread_s: float = 0,
        constants: Mapping[str, bytes] | None = None,
        csv: CsvLayout | None = None,
        time_rules: TimeRules = TIME_REQUIRED,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._columns = check_columns(schema, allow_duplicates=allow_duplicates)
        self._key_column = self._columns.pop(KEY, None)
        self._decoders = {
            field: column_decoder(field, schema.field(name).type) for field, name in self._columns.items()
        }
        self._decode_keys = None if self._key_column is None else key_decoder(schema.field(self._key_column).type)
        self._job = job
        self._allow_duplicates = allow_duplicates
        self._spread_s = spread_s
        self._constants = {name: msgspec.Raw(value) for name, value in (constants or {}).items() if value != b"null"}
        self._csv = csv
        self._counter = RowCounter()
        self._now = now
        self._time_columns: list[str] = []
        """The columns one of which must hold a time in each row; none if rows need no time, or all have the same."""
        if self._constants.keys().isdisjoint(TIME_FIELDS):
            if not time_rules.all_now:
                check_time(self._columns, schema.names)
            if not time_rules.null_now:
                self._time_columns = [field for field in TIME_FIELDS if field in self._columns]

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Return the rows to send, and the rejected ones with their reasons."""
        columns = {field: decode(batch.column(self._columns[field])) for field, decode in self._decoders.items()}
        keys = None if self._decode_keys is None else self._decode_keys(batch.column(self._key_column))
        find_origin = self._counter.count(batch)
        rejected = self._find_rejects(batch, keys, columns, find_origin)
        count = batch.num_rows - len(rejected)
        valid: list[int] | None = None
        if rejected:
            valid = [position for position in range(batch.num_rows) if position not in rejected]
            columns = {name: [column[i] for i in valid] for name, column in columns.items()}
            keys = None if keys is None else [keys[i] for i in valid]
        if keys is None:
            ids = [new_id() for _ in range(count)]
        else:
            valid_keys = [key for key in keys if key]
            ids = task_ids(self._job, valid_keys)
            if len(valid_keys) < count:
                ids_of_keys = iter(ids)
                ids = [next(ids_of_keys) if key else new_id() for key in keys]
        columns |= {name: [value] * count for name, value in self._constants.items()}
        if self._spread_s:
            delay_by(columns, spread_offsets(ids, self._spread_s), self._now())
        nulls = [None] * count
        field_columns = [columns.get(name, nulls) for name in TaskPayload.__struct_fields__[1:]]
        bodies = [_encode(payload) for payload in map(TaskPayload, ids, *field_columns)]
        valid_keys_or_none = None if keys is None else [key or None for key in keys]
        dues = due_times(columns.get("delay"), columns.get("execute_time"), count, self._now())
        payloads = Payloads(bodies, ids, valid_keys_or_none, valid, find_origin, dues)
        return Parsed(payloads, [rejected[i] for i in sorted(rejected)])

    def _find_rejects(
        self, batch: pa.RecordBatch, keys: Keys | None, columns: dict[str, Values], find_origin: FindOrigin
    ) -> dict[int, Reject]:
        """Return the rows that cannot be sent, by position, and the corrupt ones."""
        rejected: dict[int, Reject] = {}
        for position, (error, code) in self._find_faults(batch, keys, columns).items():
            key = None if keys is None else keys[position] or None
            fields = {name: column[position] for name, column in columns.items() if column[position] is not None}
            row = row_with_key(_encode(fields | self._constants), key)
            rejected[position] = build_reject(row, key, error, code, find_origin(position))
        if CORRUPT_COLUMN in batch.schema.names:
            texts = python_values(batch.column(CORRUPT_COLUMN).cast(pa.large_binary()))
            for position, text in enumerate(texts):
                if text is not None:
                    error = Refused(WRONG_COLUMN_COUNT)
                    rejected[position] = build_reject(text, None, error, RejectCode.MALFORMED, find_origin(position))
        return rejected

    def _find_faults(
        self, batch: pa.RecordBatch, keys: Keys | None, columns: dict[str, Values]
    ) -> dict[int, tuple[Refused, RejectCode]]:
        """Return the reason why a row cannot be sent, by position: without a time or a key, misread, or redacted."""
        faults: dict[int, tuple[Refused, RejectCode]] = {}
        times = [columns[field] for field in self._time_columns]
        if times and all(None in column for column in times):
            for position, row in enumerate(zip(*times, strict=True)):
                if all(value is None for value in row):
                    faults[position] = missing_time(self._time_columns[0]), RejectCode.MISSING
        if self._csv is not None:
            for position, (field, reason) in find_misread_rows(self._csv, batch).items():
                faults[position] = Refused(reason, field), RejectCode.MALFORMED
        for position, field in self._find_redacted(columns):
            faults[position] = redacted_values(field), RejectCode.REDACTED
        for position, key in enumerate(() if keys is None or self._allow_duplicates else keys):
            if not key:
                faults[position] = Refused(MISSING_KEY if key is None else EMPTY_KEY, KEY), RejectCode.MISSING
        return faults

    def _find_redacted(self, columns: dict[str, Values]) -> Iterator[tuple[int, str]]:
        """Yield the rows with headers or a context without their values, by position, each with its field."""
        for field in OBJECT_FIELDS:
            for position, value in enumerate(() if field in self._constants else columns.get(field, ())):
                if is_redacted(value):
                    yield position, field


def delay_by(columns: dict[str, Values], offsets: Sequence[float], now: float) -> None:
    """Make each row due `offset` seconds later: by its time if it has one, otherwise by its delay.

    For a time in the past the offset counts from `now` (Unix seconds); otherwise all such tasks would be due at once.
    """
    nulls = [None] * len(offsets)
    times, delays = columns.get("execute_time", nulls), columns.get("delay", nulls)
    columns["execute_time"] = [
        _add_seconds(due, offset, -math.inf, now) for due, offset in zip(times, offsets, strict=True)
    ]
    columns["delay"] = [
        delay if due is not None else _add_seconds(0 if delay is None else delay, offset, 0, 0)
        for due, delay, offset in zip(times, delays, offsets, strict=True)
    ]


def _add_seconds(value: Any, seconds: float, minimum: float, earliest: float) -> Any:
    """Return `seconds` after the value, or after `earliest` if that is later.

    A value that is not a number from `minimum` up stays as it is, so that the daemon rejects it: -5 must not become a
    valid delay.
    """
    if value is None or isinstance(value, str | bool):
        return value
    try:
        number = float(bytes(value) if isinstance(value, msgspec.Raw) else value)
    except (ValueError, OverflowError):
        return value
    return max(number, earliest) + seconds if math.isfinite(number) and number >= minimum else value


def spread_offsets(ids: Sequence[str], spread_s: float) -> list[float]:
    """Return each task's offset in a window of `spread_s` seconds: evenly spread, and always the same for an id."""
    return [round(crc32(id.encode()) / 2**32 * spread_s, 3) for id in ids]


# Decoders of columns


def column_decoder(field: str, kind: pa.DataType) -> ColumnDecoder:
    """Return the decoder of a field's column.

    Raises:
        Refused: The field cannot have a column of that type.
    """
    if pa.types.is_null(kind):
        return python_values
    if field in OBJECT_FIELDS:
        return _objects_decoder(field, kind)
    if field in STRING_FIELDS:
        if is_string_type(kind):
            return decode_strings
        raise _wrong_type(field, "strings (to_json makes them of others)", kind)
    if is_string_type(kind):
        parse = parse_time if field == "execute_time" else parse_number
        return lambda column: [parse(text) for text in decode_strings(column)]
    return _number_decoder(field, kind)


def _number_decoder(field: str, kind: pa.DataType) -> ColumnDecoder:
    if pa.types.is_integer(kind):
        return python_values
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        if field == "retry":
            return _decode_whole_numbers
        return _decode_floats if pa.types.is_floating(kind) else python_values
    if field == "execute_time":
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return _decode_seconds
        raise _wrong_type(field, "Unix seconds, timestamps (with a time zone: cast) or RFC 3339 text", kind)
    if field != "retry" and pa.types.is_duration(kind):
        return _decode_seconds
    raise _wrong_type(field, "numbers", kind)


def _objects_decoder(field: str, kind: pa.DataType) -> ColumnDecoder:
    if is_string_type(kind):
        return lambda column: [parse_object_text(text) for text in decode_strings(column)]
    if pa.types.is_map(kind) and is_string_type(kind.key_type) and is_string_type(kind.item_type):
        return lambda column: [dict(row) if isinstance(row, list) else row for row in decode_mappings(column)]
    if pa.types.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        has_unique_names = len({member.name for member in members}) == len(members)
        if has_unique_names and all(is_string_type(member.type) or pa.types.is_null(member.type) for member in members):
            return lambda column: [
                {name: value for name, value in row.items() if value is not None} if isinstance(row, dict) else row
                for row in decode_mappings(column)
            ]
    raise _wrong_type(field, "maps or structs of strings, or JSON objects", kind)


def _wrong_type(field: str, expected: str, kind: pa.DataType) -> Refused:
    return Refused(f"{field}: expected {expected}, got a column of {kind}", field)


def _decode_floats(column: pa.Array) -> Values:
    """Spell out numbers that JSON does not have: they would become null, which means that the field is absent."""
    numbers = python_values(column)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return numbers
    not_finite = {math.inf: msgspec.Raw(b"Infinity"), -math.inf: msgspec.Raw(b"-Infinity")}
    return [
        number if number is None or math.isfinite(number) else not_finite.get(number, msgspec.Raw(b"NaN"))
        for number in numbers
    ]


def _decode_whole_numbers(column: pa.Array) -> Values:
    """Return 1.0 as 1: tools without integers that may be null, such as pandas, write them so."""
    numbers = _decode_floats(column) if pa.types.is_floating(column.type) else python_values(column)
    return [int(n) if isinstance(n, float | Decimal) and n == int(n) else n for n in numbers]


def _decode_seconds(column: pa.Array) -> Values:
    """Return timestamps as Unix seconds and durations as seconds, both with their fractions."""
    units = column.cast(pa.int64()).cast(pa.float64(), safe=False)
    return python_values(pc.divide(units, _PER_SECOND[column.type.unit]))


def parse_number(text: Any) -> Any:
    """Return the number as it is written; any other text unchanged; None for a blank text."""
    if not isinstance(text, str):
        return text
    stripped = text.strip()
    return msgspec.Raw(stripped.encode()) if _NUMBER.fullmatch(stripped) else (text if stripped else None)


def parse_time(text: Any) -> Any:
    """Return a number as `parse_number` does, and an RFC 3339 time as Unix seconds."""
    number = parse_number(text)
    if not isinstance(number, str):
        return number
    try:
        return msgspec.convert(number.strip(), _Rfc3339).timestamp()
    except msgspec.ValidationError:
        return number


def parse_object_text(text: Any) -> Any:
    """Return a JSON object in one line, because batches are sent as lines; another text unchanged; None if blank."""
    if not isinstance(text, str):
        return text
    try:
        _decode_object(text)
        return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))
    except (ValueError, RecursionError):
        return text if text.strip() else None
