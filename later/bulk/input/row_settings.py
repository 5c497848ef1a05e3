"""The settings by which workers read a job's rows, as columns or as JSON, and the reader that is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import pyarrow as pa

from later.bulk.input.column_names import TIME_REQUIRED, TimeRules
from later.bulk.input.columns import ColumnReader
from later.bulk.input.csv_checks import CsvLayout
from later.bulk.input.json import JsonDocumentReader, JsonLinesReader
from later.bulk.input.payload import Parsed

GATHERED_ROWS, GATHERED_BYTES = 50_000, 8 * 1024 * 1024
"""The rows, and their bytes in Arrow, of a batch that is sorted by due time where Spark has not sorted a partition."""


class RowShape(Enum):
    """The form of a row: a value in each column, the JSON of one object, or a JSON document of many objects."""

    COLUMNS = auto()
    OBJECTS = auto()
    DOCUMENTS = auto()


class RowReader(Protocol):
    """A reader of batches of rows."""

    def read(self, batch: pa.RecordBatch) -> Parsed: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """The settings by which a job's rows are read: as columns by name, or as JSON from one column of texts.

    `constants` are JSON. `csv` applies to columns only (see `ColumnReader`); `sources` and `send_unknown_fields` apply
    to JSON only (see `JsonLinesReader`).
    """

    job: str
    allow_duplicates: bool = False
    spread_s: float = 0
    time_rules: TimeRules = TIME_REQUIRED
    shape: RowShape = RowShape.COLUMNS
    constants: Mapping[str, bytes] | None = None
    csv: CsvLayout | None = None
    sources: Mapping[str, str] | None = None
    send_unknown_fields: bool = True

    def build_reader(self, schema: pa.Schema) -> RowReader:
        """Return a reader of batches of this schema. Raises Refused: the schema lacks what a task needs."""
        if self.shape is RowShape.COLUMNS:
            return ColumnReader(
                schema,
                self.job,
                allow_duplicates=self.allow_duplicates,
                spread_s=self.spread_s,
                constants=self.constants,
                csv=self.csv,
                time_rules=self.time_rules,
            )
        objects = JsonLinesReader(
            self.job,
            sources=self.sources or {},
            constants=self.constants or {},
            allow_duplicates=self.allow_duplicates,
            send_unknown_fields=self.send_unknown_fields,
            spread_s=self.spread_s,
            time_rules=self.time_rules,
        )
        return JsonDocumentReader(objects) if self.shape is RowShape.DOCUMENTS else objects

    def read_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Parsed]:
        """Read all batches. Raises Refused: as `build_reader` does."""
        is_sorted = self.shape is RowShape.COLUMNS and self.csv is None
        reader: RowReader | None = None
        for batch in batches if is_sorted else gather_batches(batches):
            if reader is None:
                reader = self.build_reader(batch.schema)
            yield reader.read(batch)


def gather_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about GATHERED_ROWS, or of fewer rows if they are large."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        rows, size = sum(each.num_rows for each in gathered), sum(each.nbytes for each in gathered)
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield from _concat(gathered)
            gathered = []
    if gathered:
        yield from _concat(gathered)


def _concat(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches as one; a single one as it is, whatever its size."""
    if len(batches) == 1:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged
