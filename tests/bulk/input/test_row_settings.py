"""Batches of rows that Spark has not sorted, gathered to be sorted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from later.bulk.input import row_settings
from later.bulk.input.row_settings import gather_batches

BATCH = pa.record_batch({"value": ["a", "b"]})


def sizes(*batches: pa.RecordBatch) -> list[int]:
    return [batch.num_rows for batch in gather_batches(iter(batches))]


def test_batches_are_gathered_until_they_have_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_settings, "GATHERED_ROWS", 5)
    assert sizes(*[BATCH] * 5) == [6, 4]
    assert sizes(BATCH) == [2]
    assert sizes() == []
    [merged] = gather_batches(iter([BATCH, BATCH]))
    assert merged.column("value").to_pylist() == ["a", "b", "a", "b"]


def test_large_rows_are_gathered_in_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_settings, "GATHERED_BYTES", 2 * BATCH.nbytes)
    assert sizes(*[BATCH] * 5) == [4, 4, 2]


def test_empty_batches_are_no_batch_of_their_own() -> None:
    assert sizes(BATCH.slice(0, 0), BATCH) == [2]
