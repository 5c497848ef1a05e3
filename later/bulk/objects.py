"""JSON objects into tasks: a column of texts, one object each, with fields named as `/create`'s, or mapped to them.

The values go out as they stand, so that a number is what JSON says it is. What is no object goes out as it is, too, to
be refused in the words of `/create`; so does a field that no task has: a typo must not become a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from later.bulk.ids import ids_of
from later.bulk.keys import KEY
from later.bulk.lines import KEYLESS, Lines, Read, Reject
from later.bulk.rows import FIELDS, Values, offsets_of, put_off
from later.core.task import new_id

TEXT = "value"
CORRUPT_ID = ""
"""Of a line that has none, for it is no object."""
LONGEST_SHOWN = 1000
"""Characters of a document that is told of: it may be of gigabytes."""
_BYTE_ORDER_MARK = "\ufeff"

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

Fields = dict[str, Any]


class Objects:
    """Reads batches of texts into lines of one job.

    `sources` says what field of the objects is which of a task's, where that is not the one of the same name;
    `constants` are values (JSON) of fields that the objects do not say. Without `strangers`, fields that no task has
    are left out. Each task is due up to `spread_s` seconds later than it says.
    """

    def __init__(
        self,
        job: str,
        *,
        sources: Mapping[str, str],
        constants: Mapping[str, bytes],
        keyless: bool,
        strangers: bool,
        spread_s: float = 0,
    ) -> None:
        self._job = job
        self._sources = {name: sources.get(name, name) for name in (*FIELDS, KEY)}
        self._constants = {name: msgspec.Raw(value) for name, value in constants.items()}
        self._keyless = keyless
        self._strangers = strangers
        self._spread_s = spread_s

    def read(self, batch: pa.RecordBatch) -> Read:
        """Lines of the rows that can be sent, the others told of. Blank texts are no rows."""
        return self.read_texts(text for text in batch.column(TEXT).to_pylist() if text is not None)

    def read_texts(self, texts: Iterable[str]) -> Read:
        """The same of texts."""
        read = Read(Lines([], [], None if self._keyless else []), [])
        for text in texts:
            if not text.isspace() and text not in ("", _BYTE_ORDER_MARK):
                self._read(text.removeprefix(_BYTE_ORDER_MARK), read)
        return read

    def _read(self, text: str, read: Read) -> None:
        try:
            given = _decode(text)
        except (ValueError, RecursionError):
            self._add(read.lines, text.encode(), CORRUPT_ID, b"")
            return
        reject = self._fit(given, read.lines)
        if reject is not None:
            read.unfit.append(Reject(None, text, *reject))

    def _fit(self, given: Fields, lines: Lines) -> tuple[str, str] | None:
        """Add the object's line; or the field that is wrong, and why."""
        fields: Fields = {}
        for name, source in self._sources.items():
            value = given.pop(source, None)
            if value is not None and bytes(value) != b"null":
                fields[name] = value
        fields |= self._constants
        raw_key = fields.pop(KEY, None)
        if raw_key is None and not self._keyless:
            return KEY, KEYLESS
        if "id" in given:
            return "id", "id: expected none, for the ids of a job's tasks are made of their keys: name it as the key"
        if self._strangers:
            fields |= {name: value for name, value in given.items() if bytes(value) != b"null"}
        key = b"" if raw_key is None else key_of(raw_key)
        id = new_id() if raw_key is None else ids_of(self._job, [key])[0]
        if self._spread_s:
            _put_off(fields, offsets_of([id], self._spread_s)[0])
        self._add(lines, _one_line(_encode({"id": id, **fields})), id, key)
        return None

    def _add(self, lines: Lines, body: bytes, id: str, key: bytes) -> None:
        lines.bodies.append(body)
        lines.ids.append(id)
        if lines.keys is not None:
            lines.keys.append(key)


class Documents:
    """Reads batches of whole documents, each an object or an array of them, as `Objects` reads these."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self, batch: pa.RecordBatch) -> Read:
        """Lines of the objects that can be sent, the others told of."""
        elements, unfit = list[str](), list[Reject]()
        for text in batch.column(TEXT).to_pylist():
            try:
                elements += _elements(text.removeprefix(_BYTE_ORDER_MARK))
            except (ValueError, RecursionError) as error:
                unfit.append(Reject(None, text[:LONGEST_SHOWN], None, f"expected JSON: {error}"))
        read = self._objects.read_texts(elements)
        return Read(read.lines, [*unfit, *read.unfit])


def _elements(text: str) -> list[str]:
    """An array's elements, or the one that is no array, each in one line."""
    if not text.lstrip().startswith("["):
        _value(text)
        return [_one_line(text).decode()]
    return [_one_line(bytes(element)).decode() for element in _array(text)]


def key_of(raw: msgspec.Raw) -> bytes:
    """A key's text: a string's own, of anything else the JSON: 5 and "5" are the same key, as they are in columns."""
    try:
        value = _value(raw)
    except ValueError:
        return bytes(raw)
    return value.encode() if isinstance(value, str) else _one_line(bytes(raw))


def _put_off(fields: Fields, offset: float) -> None:
    columns: dict[str, Values] = {name: [fields[name]] for name in ("delay", "execute_time") if name in fields}
    put_off(columns, [offset])
    fields |= {name: values[0] for name, values in columns.items() if values[0] is not None}


def _one_line(text: bytes | str) -> bytes:
    """JSON without the line ends that may stand between its parts: lines are what is sent."""
    raw = text.encode() if isinstance(text, str) else text
    return raw if b"\n" not in raw and b"\r" not in raw else msgspec.json.format(raw, indent=-1)
