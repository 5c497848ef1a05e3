"""Origins of rows: the file, and the position in it."""

from __future__ import annotations

import pyarrow as pa

from later.bulk.input.row_origins import ORIGIN_COLUMN, ORIGIN_TYPE, UNKNOWN_ORIGIN, RowCounter, RowOrigin

Part = tuple[str | None, int | None, int | None]


def batch(*origins: Part) -> pa.RecordBatch:
    rows = [dict(zip(("file", "block", "position"), origin, strict=True)) for origin in origins]
    return pa.record_batch({ORIGIN_COLUMN: pa.array(rows, ORIGIN_TYPE)})


def find_all(counter: RowCounter, *origins: Part) -> list[RowOrigin]:
    find = counter.count(batch(*origins))
    return [find(index) for index in range(len(origins))]


def test_rows_of_a_file_are_counted_over_batches() -> None:
    counter, a, b = RowCounter(), ("a", 0, None), ("b", 0, None)
    assert find_all(counter, a, a) == [RowOrigin("a", 1), RowOrigin("a", 2)]
    assert find_all(counter, a, b) == [RowOrigin("a", 3), RowOrigin("b", 1)]
    assert find_all(counter, b) == [RowOrigin("b", 2)]


def test_a_position_that_spark_knows_is_taken() -> None:
    assert find_all(RowCounter(), ("a", None, 7), ("a", None, 3)) == [RowOrigin("a", 7), RowOrigin("a", 3)]


def test_a_part_from_the_middle_of_a_file_has_no_positions() -> None:
    counter = RowCounter()
    assert find_all(counter, ("a", 0, None), ("a", 4096, None)) == [RowOrigin("a", 1), RowOrigin("a", None)]
    assert find_all(counter, ("a", 4096, None)) == [RowOrigin("a", None)]


def test_rows_without_an_origin_are_counted_by_nobody() -> None:
    assert RowCounter().count(pa.record_batch({"key": ["a"]}))(0) == UNKNOWN_ORIGIN
    assert find_all(RowCounter(), (None, None, None)) == [UNKNOWN_ORIGIN]
    assert find_all(RowCounter()) == []
