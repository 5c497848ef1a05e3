"""What goes wrong in reading CSV without an error of the reader's: it shows only in the values.

Java puts U+FFFD where bytes are no characters of an encoding, so that different keys may become the same; and a quote
that is never closed takes the rows behind it into its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from later.bulk.input.arrow_text import decode_strings, is_string_type

REPLACEMENT_CHARACTER = "\ufffd"
NOT_UTF_8 = (
    "expected UTF-8, got bytes that are none (U+FFFD stands for them): --option encoding=ISO-8859-1, or what it is"
)
UNCLOSED_QUOTE = "expected a value of one row, got other rows in it: a quote is not closed"


class CsvLayout(NamedTuple):
    """How a file's rows look: what is between columns, how many there are, which of them the callback is, if any."""

    separator: str
    columns: int
    callback: int | None

    def is_row(self, line: str) -> bool:
        """May it be a row of its own? Only where a URL stands in its place: what people write has commas, too."""
        values = line.split(self.separator)
        if self.callback is None or len(values) < self.columns:
            return False
        return values[self.callback].strip(' "').startswith(("http://", "https://"))


def find_misread_rows(csv: CsvLayout, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
    """Positions of rows that were not read right: in which column, and why."""
    return {
        position: (name, f"{name}: {why}")
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if is_string_type(column.type)
        for position, why in _faults(csv, column)
    }


def _faults(csv: CsvLayout, column: pa.Array) -> Iterator[tuple[int, str]]:
    for position in _having("\n", column):
        text = decode_strings(column.slice(position, 1))[0]
        if isinstance(text, str) and any(map(csv.is_row, text.split("\n")[1:])):
            yield position, UNCLOSED_QUOTE
    for position in _having(REPLACEMENT_CHARACTER, column):
        yield position, NOT_UTF_8


def _having(part: str, column: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.match_substring(column, part)).to_pylist()
    return found
