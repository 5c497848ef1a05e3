"""Columns into tasks: Arrow batches with columns named as `/create`'s fields, and a `key`, into what is sent of them.

Nothing here can fail for a single row: what is no number, no URL or no object goes out as it is, and is refused by
the same words as any other.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from later.bulk.input.arrow_text import decode_mappings, decode_strings, is_string_type, python_values
from later.bulk.input.csv_checks import CsvLayout, find_misread_rows
from later.bulk.input.payload import EMPTY_KEY, MISSING_KEY, Parsed, Payloads, Reject, decode_readable, redact_row
from later.bulk.input.row_keys import KEY, Keys, key_decoder
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.task import new_id

STRING_FIELDS = ("topic", "callback", "content")
NUMBER_FIELDS = ("delay", "execute_time", "retry", "ttl")
FIELDS = (*STRING_FIELDS, *NUMBER_FIELDS, "headers")
CORRUPT_COLUMN = "_corrupt"
"""A column of the reader's: the text of a row that it could not make sense of."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_Rfc3339 = Annotated[datetime, msgspec.Meta(tz=True)]
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

WRONG_COLUMN_COUNT = "expected a row of as many columns as the header has"

Values = Sequence[Any]
ColumnDecoder = Callable[[pa.Array], Values]


def source_columns(mapped: Mapping[str, str]) -> dict[str, str]:
    """Which column each of a task's fields is, and the key: the one that is mapped to it, or that has its name.

    What is another field's is not its own any more, but where one of them is the key, which is not sent.
    """
    taken = {source for field, source in mapped.items() if field != KEY}
    return {
        name: mapped.get(name, name) for name in (*FIELDS, KEY) if name in mapped or name == KEY or name not in taken
    }


class TaskPayload(msgspec.Struct, omit_defaults=True):
    """A body of `/create`. Its values are of whatever kind the table has: who reads them says what is wrong."""

    id: str
    topic: Any = None
    callback: Any = None
    content: Any = None
    delay: Any = None
    execute_time: Any = None
    retry: Any = None
    ttl: Any = None
    headers: Any = None


_encode = msgspec.json.Encoder(decimal_format="number").encode
_is_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ColumnReader:
    """Reads batches of one schema into lines of one job. Each is due up to `spread_s` seconds later than it says.

    `constants` are values (JSON) that fields have in all rows. Of what was read from `csv` a row that shows that it was
    not read right is told of.

    Raises:
        Refused: a column is none of a task's, or of a type that its field cannot be; there is no key, and none of
            the job's tasks may exist twice (`keyless`).
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
        now: Callable[[], float] = time.time,
    ) -> None:
        for name in schema.names:
            if name not in (*FIELDS, KEY, CORRUPT_COLUMN):
                raise Refused(f"{name}: no column of a task; there are {', '.join(FIELDS)} and {KEY}", name)
            if schema.names.count(name) > 1:
                raise Refused(f"{name}: expected it once, got it more than once", name)
        if KEY not in schema.names and not allow_duplicates:
            raise Refused(
                "key: expected a column of that name, which says what row is which: without one a row that is sent "
                "twice is made twice (allowDuplicates, or --allow-duplicates, takes that)",
                KEY,
            )
        if CORRUPT_COLUMN in schema.names and not is_string_type(schema.field(CORRUPT_COLUMN).type):
            raise Refused(
                f"{CORRUPT_COLUMN}: expected strings, got a column of {schema.field(CORRUPT_COLUMN).type}",
                CORRUPT_COLUMN,
            )
        self._job = job
        self._keyless = allow_duplicates
        self._spread_s = spread_s
        self._readers = {name: column_decoder(name, schema.field(name).type) for name in schema.names if name in FIELDS}
        self._key = key_decoder(schema.field(KEY).type) if KEY in schema.names else None
        self._constants = {name: msgspec.Raw(value) for name, value in (constants or {}).items() if value != b"null"}
        self._csv = csv
        self._now = now

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Lines of the rows that can be sent, the others told of."""
        columns = {name: read(batch.column(name)) for name, read in self._readers.items()}
        keys = None if self._key is None else self._key(batch.column(KEY))
        unfit = {} if self._keyless else _without_key(keys or (), columns)
        unfit |= _corrupt(batch)
        if self._csv is not None:
            unfit = self._misread(self._csv, batch, keys, columns) | unfit
        if unfit:
            fit = [position for position in range(batch.num_rows) if position not in unfit]
            columns = {name: [column[i] for i in fit] for name, column in columns.items()}
            keys = None if keys is None else [keys[i] for i in fit]
        return Parsed(self._lines(batch.num_rows - len(unfit), columns, keys), [unfit[i] for i in sorted(unfit)])

    def _misread(
        self, csv: CsvLayout, batch: pa.RecordBatch, keys: Keys | None, columns: dict[str, Values]
    ) -> dict[int, Reject]:
        found = find_misread_rows(
            csv, batch.drop_columns(CORRUPT_COLUMN) if CORRUPT_COLUMN in batch.schema.names else batch
        )
        whose = {i: None if keys is None or keys[i] is None else decode_readable(keys[i] or b"") for i in found}
        return {i: Reject(whose[i], _row(columns, i), *wrong) for i, wrong in found.items()}

    def _lines(self, count: int, columns: dict[str, Values], keys: Keys | None) -> Payloads:
        ids = [new_id() for _ in range(count)] if keys is None else self._ids(keys)
        columns = {**columns, **{name: [value] * count for name, value in self._constants.items()}}
        if self._spread_s:
            delay_by(columns, spread_offsets(ids, self._spread_s), self._now())
        return Payloads(encode_bodies(ids, columns), ids, None if keys is None else [key or None for key in keys])

    def _ids(self, keys: Keys) -> list[str]:
        there = [key for key in keys if key]
        ids = iter(task_ids(self._job, there))
        return list(ids) if len(there) == len(keys) else [next(ids) if key else new_id() for key in keys]


def encode_bodies(ids: Sequence[str], columns: dict[str, Values]) -> list[bytes]:
    """The JSON of each row."""
    nothing = [None] * len(ids)
    values = [columns.get(name, nothing) for name in TaskPayload.__struct_fields__[1:]]
    return [_encode(item) for item in map(TaskPayload, ids, *values)]


def delay_by(columns: dict[str, Values], offsets: Sequence[float], now: float) -> None:
    """Make each row due so many seconds later: by its own time where it has one, else by its delay.

    Of times that are past the window begins `now` (Unix seconds), or all of them would fall due at once.
    """
    nothing = [None] * len(offsets)
    times, delays = columns.get("execute_time", nothing), columns.get("delay", nothing)
    columns["execute_time"] = [_plus(due, s, -math.inf, now) for due, s in zip(times, offsets, strict=True)]
    columns["delay"] = [
        delay if due is not None else _plus(0 if delay is None else delay, s, 0, 0)
        for due, delay, s in zip(times, delays, offsets, strict=True)
    ]


def _plus(value: Any, seconds: float, least: float, earliest: float) -> Any:
    """So many seconds after the value, and after the `earliest`.

    What is no number from `least` up stays as it is, to be refused as it is: -5 must not become a delay.
    """
    number = _number(value)
    return value if number is None or number < least else max(number, earliest) + seconds


def _number(value: Any) -> float | None:
    """None: it is none, or none that a sum could be made of."""
    if value is None or isinstance(value, str | bool):
        return None
    try:
        number = float(bytes(value) if isinstance(value, msgspec.Raw) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def spread_offsets(ids: Sequence[str], spread_s: float) -> list[float]:
    """Where in a window each task lies: evenly, and the same whenever the row is sent again."""
    return [round(crc32(id.encode()) / 2**32 * spread_s, 3) for id in ids]


def _without_key(keys: Keys, columns: dict[str, Values]) -> dict[int, Reject]:
    return {
        position: Reject(None, _row(columns, position), KEY, MISSING_KEY if key is None else EMPTY_KEY)
        for position, key in enumerate(keys)
        if not key
    }


def _row(columns: dict[str, Values], position: int) -> str:
    given = {name: values[position] for name, values in columns.items() if values[position] is not None}
    return redact_row(_encode(given))


def _corrupt(batch: pa.RecordBatch) -> dict[int, Reject]:
    found = (
        python_values(batch.column(CORRUPT_COLUMN).cast(pa.large_binary()))
        if CORRUPT_COLUMN in batch.schema.names
        else []
    )
    return {
        i: Reject(None, decode_readable(text), None, WRONG_COLUMN_COUNT)
        for i, text in enumerate(found)
        if text is not None
    }


# Columns


def column_decoder(field: str, kind: pa.DataType) -> ColumnDecoder:
    """What reads a field's column.

    Raises:
        Refused: no column of that type can be it.
    """
    if pa.types.is_null(kind):
        return python_values
    if field in STRING_FIELDS:
        return decode_strings if is_string_type(kind) else _wrong(field, "strings (to_json makes them of others)", kind)
    if field == "headers":
        return _headers_reader(kind)
    return _number_reader(field, kind)


def _number_reader(field: str, kind: pa.DataType) -> ColumnDecoder:
    if is_string_type(kind):
        return _times_in_text if field == "execute_time" else _numbers_in_text
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        if field == "retry" and not pa.types.is_integer(kind):
            return _whole_numbers
        return _floats if pa.types.is_floating(kind) else python_values
    if field == "execute_time":
        is_moment = pa.types.is_timestamp(kind) and kind.tz is not None
        return _seconds if is_moment else _wrong(field, "Unix seconds or timestamps (with a time zone: cast)", kind)
    return _seconds if field != "retry" and pa.types.is_duration(kind) else _wrong(field, "numbers", kind)


def _headers_reader(kind: pa.DataType) -> ColumnDecoder:
    if is_string_type(kind):
        return _objects_in_text
    if pa.types.is_map(kind) and is_string_type(kind.key_type) and is_string_type(kind.item_type):
        return lambda column: [dict(row) if isinstance(row, list) else row for row in decode_mappings(column)]
    if pa.types.is_struct(kind) and _is_of_texts(kind):
        return lambda column: [_without_nulls(row) for row in decode_mappings(column)]
    return _wrong("headers", "maps or structs of strings, or JSON objects", kind)


def _wrong(field: str, takes: str, kind: pa.DataType) -> ColumnDecoder:
    raise Refused(f"{field}: expected {takes}, got a column of {kind}", field)


def _floats(column: pa.Array) -> Values:
    """What JSON has no number for is spelt out: or it would go as null, which means that there is none."""
    numbers = python_values(column)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return numbers
    return [number if number is None or math.isfinite(number) else _spelt(number) for number in numbers]


def _whole_numbers(column: pa.Array) -> Values:
    """1.0 as 1: what has no integers that may be missing, as pandas, writes them so."""
    numbers = _floats(column) if pa.types.is_floating(column.type) else python_values(column)
    return [int(n) if isinstance(n, float | Decimal) and n == int(n) else n for n in numbers]


def _spelt(value: float) -> msgspec.Raw:
    return msgspec.Raw(b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity")


def _seconds(column: pa.Array) -> Values:
    """Timestamps as seconds since the Unix epoch, durations as seconds; both with their fractions."""
    units = column.cast(pa.int64()).cast(pa.float64(), safe=False)
    return python_values(pc.divide(units, _PER_SECOND[column.type.unit]))


def _numbers_in_text(column: pa.Array) -> Values:
    return [parse_number(text) for text in decode_strings(column)]


def _times_in_text(column: pa.Array) -> Values:
    return [parse_time(text) for text in decode_strings(column)]


def parse_number(text: Any) -> Any:
    """The number that stands there, as it stands; a text that is none as it is; nothing for nothing."""
    if not isinstance(text, str):
        return text
    stripped = text.strip()
    return msgspec.Raw(stripped.encode()) if _NUMBER.fullmatch(stripped) else (text if stripped else None)


def parse_time(text: Any) -> Any:
    """The same, and of an RFC 3339 time its Unix seconds."""
    number = parse_number(text)
    if not isinstance(number, str):
        return number
    try:
        return msgspec.convert(number.strip(), _Rfc3339).timestamp()
    except msgspec.ValidationError:
        return number


def _objects_in_text(column: pa.Array) -> Values:
    return [_object_in(text) for text in decode_strings(column)]


def _object_in(text: Any) -> Any:
    """In one line, for lines are what is sent; a text that is no object as it is; nothing for nothing."""
    if not isinstance(text, str):
        return text
    try:
        _is_object(text)
        return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))
    except (ValueError, RecursionError):
        return text if text.strip() else None


def _is_of_texts(kind: pa.StructType) -> bool:
    """Of texts, each by a name of its own."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = {field.name for field in fields}
    return len(names) == len(fields) and all(
        is_string_type(field.type) or pa.types.is_null(field.type) for field in fields
    )


def _without_nulls(row: Any) -> Any:
    return {name: value for name, value in row.items() if value is not None} if isinstance(row, dict) else row
