"""Checks of rows read from CSV, for faults that the reader does not report: they show only in the values.

Java replaces bytes that are not of the encoding by U+FFFD, so that different keys may become equal. A quote that is
never closed takes the following rows into its value.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from later.bulk.input.arrow_text import decode_strings, is_string_type

REPLACEMENT_CHARACTER = "\ufffd"
NOT_UTF_8 = (
    "expected UTF-8, got other bytes (shown as U+FFFD): use --option encoding=ISO-8859-1, or the file's encoding"
)
UNCLOSED_QUOTE = "expected a value of one row, got other rows in it: a quote is not closed"


class CsvLayout(NamedTuple):
    """The layout of a file's rows; `callback` is the index of that column, None if it is missing."""

    separator: str
    columns: int
    callback: int | None

    def is_row(self, line: str) -> bool:
        """Return True if the line looks like a row: enough columns, and a URL in the callback's column.

        Free text contains separators, too.
        """
        values = line.split(self.separator)
        if self.callback is None or len(values) < self.columns:
            return False
        return values[self.callback].strip(' "').startswith(("http://", "https://"))


def find_misread_rows(csv: CsvLayout, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
    """Return the column and the reason of each row that was misread, by its position."""
    faults: dict[int, tuple[str, str]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not is_string_type(column.type):
            continue
        for position in _find_text("\n", column):
            text = decode_strings(column.slice(position, 1))[0]
            if isinstance(text, str) and any(map(csv.is_row, text.split("\n")[1:])):
                faults[position] = (name, f"{name}: {UNCLOSED_QUOTE}")
        for position in _find_text(REPLACEMENT_CHARACTER, column):
            faults[position] = (name, f"{name}: {NOT_UTF_8}")
    return faults


def _find_text(text: str, column: pa.Array) -> list[int]:
    """Return the positions of the values that contain the text."""
    positions: list[int] = pc.indices_nonzero(pc.match_substring(column, text)).to_pylist()
    return positions
