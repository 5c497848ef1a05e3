"""JSON objects into tasks: a column of texts, one object each, with fields named as `/create`'s, or mapped to them.

The values go out as they stand, so that a number is what JSON says it is. What is no object goes out as it is, too, to
be refused in the words of `/create`; so does a field that no task has: a typo must not become a default. Executors have
not got what makes these words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from later.bulk.input.columns import FIELDS, Values, delay_by, parse_time, source_columns, spread_offsets
from later.bulk.input.payload import EMPTY_KEY, MISSING_KEY, Parsed, Payloads, Reject, decode_readable, redact_row
from later.bulk.input.row_keys import KEY, is_empty
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.json_array import split_array
from later.core.task import new_id

TEXT_COLUMN = "value"
NO_ID = ""
"""Of a line that has none, for it is no object."""
MAX_SHOWN_BYTES = 1000
"""Bytes of a document that is told of: it may be of gigabytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DUE_FIELDS = ("delay", "execute_time")
ID_NOT_ALLOWED = "id: expected none, for the ids of a job's tasks are made of their keys: name it as the key"

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_value = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_OPENING = frozenset(map(ord, "[{"))

Fields = dict[str, Any]


class JsonLinesReader:
    """Reads batches of texts into lines of one job.

    `sources` says what field of the objects is which of a task's, where that is not the one of the same name;
    `constants` are values (JSON) that fields have in all tasks, whatever the objects say. Without `strangers`, fields
    that no task has are left out. Each task is due up to `spread_s` seconds later than it says.
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
        now: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._mapped = [field for field in DUE_FIELDS if sources.get(field, field) != field]
        self._now = now
        self._sources = source_columns(sources)
        used = self._sources.values()
        self._known = frozenset((*FIELDS, KEY, *used, *(source.partition(".")[0] for source in used)))
        self._constants = {name: msgspec.Raw(value) for name, value in constants.items()}
        self._keyless = allow_duplicates
        self._strangers = send_unknown_fields
        self._spread_s = spread_s

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Lines of the rows that can be sent, the others told of. Blank texts are no rows."""
        return self.read_texts(nonblank_texts(batch))

    def read_texts(self, texts: Iterable[bytes]) -> Parsed:
        """The same of texts."""
        read = Parsed(Payloads([], [], None if self._keyless else []), [])
        for text in texts:
            self._read(text, read)
        return read

    def _read(self, text: bytes, read: Parsed) -> None:
        given = parse_object(text)
        if given is None:
            _add(read.payloads, text.replace(b"\n", b"\r"), NO_ID, None)  # as wrong as it was, and one line
            return
        fields, key = self._fields(given), None
        try:
            key = self._key(fields)
            self._check_id(given)
            self._check_times(given)
        except Refused as error:
            row = redact_row(text, self._sources)
            read.rejected.append(Reject(None if key is None else decode_readable(key), row, error.field, error.detail))
            return
        id = new_id() if key is None else task_ids(self._job, [key])[0]
        if self._spread_s:
            _put_off(fields, spread_offsets([id], self._spread_s)[0], self._now())
        _add(read.payloads, _one_line(_encode({"id": id, **fields, **self._others(given)})), id, key)

    def _fields(self, given: Fields) -> Fields:
        """Those that say something; null says nothing."""
        fields = {name: _at(given, source) for name, source in self._sources.items()}
        said = {name: value for name, value in fields.items() if value is not None and not _is_null(value)}
        if "execute_time" in said:
            said["execute_time"] = _time(said["execute_time"])
        return said | self._constants

    def _key(self, fields: Fields) -> bytes | None:
        """Raises Refused: there is none, though there must be one."""
        raw = fields.pop(KEY, None)
        key = None if raw is None else parse_key(raw)
        if not key and not self._keyless:
            raise Refused(MISSING_KEY if key is None else EMPTY_KEY, KEY)
        return key or None

    def _check_id(self, given: Fields) -> None:
        """Raises Refused: there is one."""
        if "id" in self._others(given):
            raise Refused(ID_NOT_ALLOWED, "id")

    def _check_times(self, given: Fields) -> None:
        """Raises Refused: a time that was said to be somewhere is not there. By a typo, all would be due now."""
        for field in self._mapped:
            if _at(given, self._sources[field]) is None:
                raise Refused(f"{field}: expected a field {self._sources[field]}, or null in it, got none", field)

    def _others(self, given: Fields) -> Fields:
        """What no task has: to be refused, or left out."""
        if not self._strangers or given.keys() <= self._known:
            return {}
        return {name: value for name, value in given.items() if name not in self._known and not _is_null(value)}


def _add(lines: Payloads, body: bytes, id: str, key: bytes | None) -> None:
    lines.bodies.append(body)
    lines.ids.append(id)
    if lines.keys is not None:
        lines.keys.append(key)


class JsonDocumentReader:
    """Reads batches of whole documents as `Objects` reads objects: each is one, or an array of them, or a line each."""

    def __init__(self, objects: JsonLinesReader) -> None:
        self._objects = objects

    def read(self, batch: pa.RecordBatch) -> Parsed:
        """Lines of the objects that can be sent, the others told of."""
        elements, unfit = list[bytes](), list[Reject]()
        for text in nonblank_texts(batch):
            try:
                elements += split_document(text)
            except (ValueError, RecursionError) as error:
                unfit.append(Reject(None, decode_readable(text[:MAX_SHOWN_BYTES]), None, f"expected JSON: {error}"))
        read = self._objects.read_texts(elements)
        return Parsed(read.payloads, [*unfit, *read.rejected])


def nonblank_texts(batch: pa.RecordBatch) -> list[bytes]:
    """The texts that are not blank, as bytes: Spark reads lines that are no UTF-8, too."""
    texts = batch.column(TEXT_COLUMN).cast(pa.large_binary()).to_pylist()
    bare = (text.removeprefix(_BYTE_ORDER_MARK) for text in texts if text is not None)
    return [text for text in bare if text and not text.isspace()]


def parse_object(text: bytes) -> Fields | None:
    """The object that stands there; None: there is none, nor will `/create` find one."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return _loosely(text)


def _loosely(text: bytes) -> Fields | None:
    """What `/create` reads in the end: NaN and lone surrogates too, to refuse them by the field that has them."""
    try:
        given = json.loads(text.decode())
        if not isinstance(given, dict):
            return None
        return {json.dumps(name)[1:-1]: msgspec.Raw(json.dumps(value).encode()) for name, value in given.items()}
    except (ValueError, RecursionError):
        return None


def split_document(document: bytes) -> list[bytes]:
    """An array's elements; or the one object; or those of a file of lines, which Spark calls JSON.

    Raises:
        ValueError, RecursionError: it is none of these.
    """
    return split_array(document) if document.lstrip().startswith(b"[") else _objects(document)


def _objects(document: bytes) -> list[bytes]:
    first, _, rest = document.partition(b"\n")
    if parse_object(first) is not None:
        return [line for line in (first, *rest.split(b"\n")) if line and not line.isspace()]
    if parse_object(document) is None:
        raise ValueError(f"{_fault(document)} (of lines of objects, the format is ndjson)")
    return [document]


def _fault(document: bytes) -> str:
    try:
        _value(document)
    except (ValueError, RecursionError) as error:
        return str(error)
    return "expected an object, or an array of them"


def parse_key(raw: msgspec.Raw) -> bytes:
    """A key's text: a string's own, of anything else the JSON: 5 and "5" are the same key, as they are in columns.

    Raises:
        Refused: it is no value that could be told from others.
    """
    text = bytes(raw)
    try:
        if text[0] in _OPENING and is_empty(_value(text)):
            return b""
        return _text(text).encode() if text.startswith(b'"') else msgspec.json.format(text, indent=-1)
    except (ValueError, RecursionError):
        raise Refused("key: expected Unicode text or a finite number", KEY) from None


def _time(raw: msgspec.Raw) -> Any:
    """Of an RFC 3339 time its Unix seconds: JSON has no timestamps, and Spark's to_json writes them so."""
    try:
        found = parse_time(_text(bytes(raw)))
    except (ValueError, RecursionError):
        return raw
    return found if isinstance(found, float) else raw


def _is_null(value: msgspec.Raw) -> bool:
    return bytes(value) == b"null"


def _at(given: Fields, source: str) -> msgspec.Raw | None:
    """The field of that name; else, with dots, one of an object in it, as of a column's struct."""
    if source in given:
        found: msgspec.Raw = given[source]
        return found
    first, dot, rest = source.partition(".")
    inner = parse_object(bytes(given[first])) if dot and first in given else None
    return None if inner is None else _at(inner, rest)


def _put_off(fields: Fields, offset: float, now: float) -> None:
    columns: dict[str, Values] = {name: [fields[name]] for name in ("delay", "execute_time") if name in fields}
    delay_by(columns, [offset], now)
    fields |= {name: values[0] for name, values in columns.items() if values[0] is not None}


def _one_line(body: bytes) -> bytes:
    """JSON without the line ends that may stand between its parts: lines are what is sent."""
    return body.replace(b"\n", b" ")
