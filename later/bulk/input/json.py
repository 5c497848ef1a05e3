"""The readers of JSON objects as tasks, whose fields have the names of `/create`'s or are mapped to them.

Values are sent as they are written, so that no number changes. Malformed lines and unknown fields are sent unchanged,
so that the daemon rejects them in its own words: a typo must not become a default. Executors do not carry the
validation code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from later.bulk.input.column_names import (
    FIELDS,
    OBJECT_FIELDS,
    TIME_FIELDS,
    TIME_REQUIRED,
    TimeRules,
    canonical_name,
    missing_time,
    source_columns,
)
from later.bulk.input.columns import Values, delay_by, parse_time, spread_offsets
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
from later.bulk.input.row_keys import KEY, is_empty
from later.bulk.input.row_origins import FindOrigin, RowCounter, RowOrigin
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.json_array import split_array
from later.core.task import new_id

TEXT_COLUMN = "value"
NO_ID = ""
"""The id of a line that cannot have one, because it is not a JSON object."""
MAX_SHOWN_BYTES = 1000
"""Bytes of a malformed document that are shown: it may have gigabytes."""
ID_NOT_ALLOWED = "id: expected no such field, because ids are made of the rows' keys: map it with --column key=id"

_REJECT_CODES = {
    ID_NOT_ALLOWED: RejectCode.UNKNOWN_FIELD,
    **{redacted_values(field).detail: RejectCode.REDACTED for field in OBJECT_FIELDS},
}
"""The codes of refusals that their texts do not tell."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENING_BRACKETS = frozenset(b"[{")

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_value = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

Fields = dict[str, Any]


class JsonLinesReader:
    """A reader of a job's batches with one JSON object in each row.

    `sources` maps a task's field to the object's name for it, if that is another. `constants` are JSON values that a
    field has in all tasks, whatever the objects say. Unknown fields are sent, or dropped with
    `send_unknown_fields=False`. Names match whatever their case and the spaces around them. Each task is due up to
    `spread_s` seconds later than its object says.
    """

    def __init__(
        self,
        job: str,
        *,
        sources: Mapping[str, str],
        constants: Mapping[str, bytes],
        allow_duplicates: bool,
        send_unknown_fields: bool,
        spread_s: float = 0,
        time_rules: TimeRules = TIME_REQUIRED,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._sources = source_columns(sources)
        self._own_names = frozenset(source for field, source in self._sources.items() if source == field)
        self._needs_time = not (time_rules.all_now or time_rules.null_now)
        self._mapped_due_fields = [field for field in TIME_FIELDS if sources.get(field, field) != field]
        used = self._sources.values()
        self._known = frozenset((*FIELDS, KEY, *used, *(source.partition(".")[0] for source in used)))
        self._constants = {name: msgspec.Raw(value) for name, value in constants.items()}
        self._allow_duplicates = allow_duplicates
        self._send_unknown_fields = send_unknown_fields
        self._spread_s = spread_s
        self._counter = RowCounter()
        self._now = now

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Return the rows to send, and the rejected ones with their reasons. Blank texts are skipped."""
        return self.read_texts(nonblank_texts(batch), self._counter.count(batch))

    def read_texts(self, texts: Mapping[int, bytes], find_origin: FindOrigin) -> Parsed:
        """Return the same for these texts, each the JSON of an object, by the numbers that `find_origin` takes."""
        keys: list[bytes | None] | None = None if self._allow_duplicates else []
        rows: list[int] = []
        parsed = Parsed(Payloads([], [], keys, rows, find_origin), [])
        for row, text in texts.items():
            fields = parse_object(text)
            if fields is None:  # sent in one line, malformed as it is
                body, id, key = text.replace(b"\n", b"\r"), NO_ID, None
            else:
                result = self._build_payload(fields, find_origin, row)
                if isinstance(result, Reject):
                    parsed.rejected.append(result)
                    continue
                body, id, key = result
            parsed.payloads.bodies.append(body)
            parsed.payloads.ids.append(id)
            rows.append(row)
            if keys is not None:
                keys.append(key)
        return parsed

    def _build_payload(
        self, fields: Fields, find_origin: FindOrigin, row: int
    ) -> tuple[bytes, str, bytes | None] | Reject:
        """Return the body, the id and the key of an object's task. A field that is null counts as absent."""
        twice = None if fields.keys() <= self._known else self._rename_fields(fields)
        values = ((name, _find_field(fields, source)) for name, source in self._sources.items())
        task_fields: Fields = {name: value for name, value in values if value is not None and not _is_null(value)}
        for name in TIME_FIELDS:
            if name in task_fields and (value := _convert_time(name, task_fields.pop(name))) is not None:
                task_fields[name] = value
        task_fields |= self._constants
        unknown: Fields = {}
        if self._send_unknown_fields and not fields.keys() <= self._known:
            unknown = {name: value for name, value in fields.items() if name not in self._known and not _is_null(value)}
        key, raw_key = None, task_fields.pop(KEY, None)
        try:
            key = None if raw_key is None else parse_key(raw_key) or None
            if key is None and not self._allow_duplicates:
                raise Refused(MISSING_KEY if raw_key is None else EMPTY_KEY, KEY)
            if twice is not None:
                raise twice
            self._check_fields(fields, unknown)
            if self._needs_time and not unknown and task_fields.keys().isdisjoint(TIME_FIELDS):
                others = [name for name in fields if name not in self._known]
                raise missing_time("delay" if "delay" in fields else "execute_time", others)
            self._check_redacted(task_fields)
        except Refused as error:
            shown_key = {KEY: raw_key} if key is None and raw_key is not None else {}
            shown = row_with_key(_encode({**shown_key, **task_fields, **unknown}), key)
            return build_reject(shown, key, error, _REJECT_CODES.get(error.detail), find_origin(row))
        id = new_id() if key is None else task_ids(self._job, [key])[0]
        if self._spread_s:
            due_columns: dict[str, Values] = {name: [task_fields[name]] for name in TIME_FIELDS if name in task_fields}
            delay_by(due_columns, spread_offsets([id], self._spread_s), self._now())
            task_fields |= {name: column[0] for name, column in due_columns.items() if column[0] is not None}
        body = _encode({"id": id, **task_fields, **unknown})
        return body.replace(b"\n", b" "), id, key  # line ends between values: batches are sent as lines

    def _rename_fields(self, fields: Fields) -> Refused | None:
        """Give a field of another case, or with spaces around it, its own name. Return the refusal if two have one."""
        for name in [name for name in fields if name not in self._known]:
            own_name = canonical_name(name)
            if own_name in self._own_names:
                if own_name in fields:
                    return Refused(f"{own_name}: expected one field of that name, got another: {name!r}", own_name)
                fields[own_name] = fields.pop(name)
        return None

    def _check_redacted(self, task_fields: Fields) -> None:
        """Raise Refused if headers or a context lack their values, unless all rows are given others."""
        for field in OBJECT_FIELDS:
            if field not in self._constants and is_redacted(task_fields.get(field)):
                raise redacted_values(field)

    def _check_fields(self, fields: Fields, unknown: Fields) -> None:
        """Raise Refused if the object has an id, or lacks a field that a time is mapped to.

        With a typo in such a mapping, all tasks would be due at once.
        """
        if "id" in unknown:
            raise Refused(ID_NOT_ALLOWED, "id")
        for field in self._mapped_due_fields:
            source = self._sources[field]
            if _find_field(fields, source) is None:
                raise Refused(f"{field}: expected a field {source}, or null in it, got nothing", field)


class JsonDocumentReader:
    """A reader of batches with one JSON document in each row: an object, an array of objects, or lines of objects."""

    def __init__(self, objects: JsonLinesReader) -> None:
        self._objects = objects
        self._counter = RowCounter()

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Return the objects to send, and the rejected ones with their reasons."""
        elements, origins, rejected = list[bytes](), list[tuple[int, int]](), list[Reject]()
        find_document = self._counter.count(batch)
        for row, text in nonblank_texts(batch).items():
            try:
                split = split_document(text)
            except (ValueError, RecursionError) as error:
                refused, origin = Refused(f"expected JSON: {error}"), find_document(row)._replace(position=None)
                rejected.append(build_reject(text[:MAX_SHOWN_BYTES], None, refused, RejectCode.MALFORMED, origin))
                continue
            elements += split
            origins += ((row, number) for number in range(1, len(split) + 1))

        def find_origin(element: int) -> RowOrigin:
            row, number = origins[element]
            return find_document(row)._replace(position=number)

        parsed = self._objects.read_texts(dict(enumerate(elements)), find_origin)
        return Parsed(parsed.payloads, [*rejected, *parsed.rejected])


def nonblank_texts(batch: pa.RecordBatch) -> dict[int, bytes]:
    """Return the texts that are not blank, by index, as bytes, because Spark also reads lines that are not UTF-8."""
    texts = batch.column(TEXT_COLUMN).cast(pa.large_binary()).to_pylist()
    without_mark = (b"" if text is None else text.removeprefix(_BYTE_ORDER_MARK) for text in texts)
    return {index: text for index, text in enumerate(without_mark) if text and not text.isspace()}


def parse_object(text: bytes) -> Fields | None:
    """Return the JSON object; None if `/create` could not parse one either.

    Also parses what strict JSON forbids, NaN and lone surrogates, because the daemon does: it rejects them by field.
    """
    try:
        return _decode_object(text)
    except (ValueError, RecursionError):
        pass
    try:
        fields = json.loads(text.decode())
        if not isinstance(fields, dict):
            return None
        return {json.dumps(name)[1:-1]: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    except (ValueError, RecursionError):
        return None


def split_document(document: bytes) -> list[bytes]:
    """Return the elements of an array, the one object, or the lines of a file of objects, which Spark calls JSON, too.

    Raises:
        ValueError, RecursionError: The document has none of these forms.
    """
    if document.lstrip().startswith(b"["):
        return split_array(document)
    first, _, rest = document.partition(b"\n")
    if parse_object(first) is not None:
        return [line for line in (first, *rest.split(b"\n")) if line and not line.isspace()]
    if parse_object(document) is not None:
        return [document]
    try:
        _decode_value(document)
        reason = "expected an object, or an array of them"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise ValueError(f"{reason} (of lines of objects, the format is ndjson)")


def parse_key(raw: msgspec.Raw) -> bytes:
    """Return a key's bytes: of a string its text, of any other value its JSON.

    So 5 and "5" are the same key, as in columns.

    Raises:
        Refused: The value is not exact: NaN, an infinity, or a lone surrogate.
    """
    text = bytes(raw)
    try:
        if text[0] in _OPENING_BRACKETS and is_empty(_decode_value(text)):
            return b""
        return _decode_string(text).encode() if text.startswith(b'"') else msgspec.json.format(text, indent=-1)
    except (ValueError, RecursionError):
        raise Refused("key: expected Unicode text or a finite number", KEY) from None


def _convert_time(field: str, raw: msgspec.Raw) -> Any:
    """Return Unix seconds for an RFC 3339 time, as Spark's to_json writes timestamps; None for a blank text.

    Any other value is returned unchanged.
    """
    try:
        text = _decode_string(bytes(raw))
    except (ValueError, RecursionError):
        return raw
    if not text.strip():
        return None
    seconds = parse_time(text) if field == "execute_time" else raw
    return seconds if isinstance(seconds, float) else raw


def _is_null(value: msgspec.Raw) -> bool:
    return bytes(value) == b"null"


def _find_field(fields: Fields, source: str) -> msgspec.Raw | None:
    """Return the field of that name; otherwise, for a name with dots, the field of an object in it."""
    if source in fields:
        value: msgspec.Raw = fields[source]
        return value
    first, dot, rest = source.partition(".")
    inner = parse_object(bytes(fields[first])) if dot and first in fields else None
    return None if inner is None else _find_field(inner, rest)
