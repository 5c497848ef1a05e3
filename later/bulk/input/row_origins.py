"""Where rows come from: the file of each row, and its position there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

ORIGIN_COLUMN = "_origin"
"""The column with the origin of each row, as Spark knows it."""
ORIGIN_TYPE = pa.struct([("file", pa.string()), ("block", pa.int64()), ("position", pa.int64())])
"""An origin: the file's URL, the byte at which the part that Spark reads begins, and the row's position if it is known.
Without a position, the rows of a file are counted as they arrive, if Spark reads the file from byte 0."""


class RowOrigin(NamedTuple):
    """The file of a row, and the row's position in it, from 1. None: unknown."""

    file: str | None
    position: int | None


FindOrigin = Callable[[int], RowOrigin]
"""A function that returns the origin of the row at an index of a batch."""

UNKNOWN_ORIGIN = RowOrigin(None, None)


def unknown_origin(index: int) -> RowOrigin:
    """Return that a row's origin is unknown."""
    return UNKNOWN_ORIGIN


class RowCounter:
    """A counter of a partition's rows by file. Spark gives them to a partition file by file, in their order."""

    def __init__(self) -> None:
        self._last: tuple[str | None, int | None] = (None, None)
        self._rows = 0
        """The rows so far of the last part of a file."""

    def count(self, batch: pa.RecordBatch) -> FindOrigin:
        """Count a batch's rows; return the function that finds their origins."""
        if ORIGIN_COLUMN not in batch.schema.names or not batch.num_rows:
            return unknown_origin
        files, blocks, positions = batch.column(ORIGIN_COLUMN).flatten()
        starts = _run_starts(files, blocks)
        before = self._rows if self._part(files, blocks, 0) == self._last else 0
        self._last = self._part(files, blocks, starts[-1])
        self._rows = batch.num_rows - starts[-1] + (before if len(starts) == 1 else 0)

        def find(index: int) -> RowOrigin:
            run = bisect_right(starts, index) - 1
            file, block = self._part(files, blocks, index)
            position = positions[index].as_py()
            if position is None and block == 0:
                position = index - starts[run] + 1 + (before if run == 0 else 0)
            return RowOrigin(file, position)

        return find

    @staticmethod
    def _part(files: pa.Array, blocks: pa.Array, index: int) -> tuple[str | None, int | None]:
        return files[index].as_py(), blocks[index].as_py()


def _run_starts(files: pa.Array, blocks: pa.Array) -> Sequence[int]:
    """Return the indexes at which another part of a file begins, the first being 0."""
    codes = files.dictionary_encode().indices
    changes = pc.or_(pc.not_equal(codes[1:], codes[:-1]), pc.not_equal(blocks[1:], blocks[:-1]))
    return [0, *(index + 1 for index in pc.indices_nonzero(pc.fill_null(changes, False)).to_pylist())]
