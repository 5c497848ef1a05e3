"""The reader of `spark.read.format("later")`: the tasks of a store as rows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from later.bulk.datasource.arrow_schema import batch_from_records, select_columns
from later.bulk.datasource.read_options import ReadOptions, parse_read_options
from later.core.clock import Clock
from later.core.errors import Refused
from later.store.open import open_existing_store
from later.store.scan import Scanner, ScanSplit, batch_splits
from later.store.url import settings_from_url

BATCH_ROWS = 4000
BATCH_BYTES = 4 * 1024 * 1024
"""A batch is given to Spark as soon as it has either size."""


class LaterReader(DataSourceReader):
    """A reader of the tasks that `options` select (see `parse_read_options`), with some columns of SCHEMA.

    Each row is consistent: state, times, attempts and last error are read with the body in one step of the
    store. The rows together are not a snapshot. A task that stays where it is during the scan is read exactly once. One
    that moves meanwhile (is claimed, requeued, edited, redriven) is usually read once, but may be read twice, each time
    as it was then, or not at all; `dropDuplicates(["id"])` leaves one row of each. A task that is created, ends or is
    deleted meanwhile may be read or not.

    Raises:
        Refused: An option is unknown or wrong, or the schema has other columns, or other types.
        ConfigError: The URL is not one of a store, or holds a password.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_read_options(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        if self._schema != select_columns(self._schema.names):
            types = ", ".join(f"{field.name} {field.type}" for field in select_columns(self._schema.names))
            raise Refused(f"schema: expected the reader's own types: {types}")

    def partitions(self) -> list[InputPartition]:
        """Return the partitions, in the order of topics, states and times. Runs on the driver."""
        splits = asyncio.run(_split(self._options))
        groups = batch_splits(splits, self._options.partition_rows)
        return [InputPartition(group) for group in groups] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, some thousand rows at a time. Runs on an executor.

        A second thread reads the next batch while Spark takes this one.
        """
        batches = _read_batches(self._options, self._schema, partition.value)
        with asyncio.Runner() as runner, ThreadPoolExecutor(1) as executor:
            following = executor.submit(runner.run, _next(batches))
            try:
                while (batch := following.result()) is not None:
                    following = executor.submit(runner.run, _next(batches))
                    yield batch
            finally:
                executor.submit(runner.run, batches.aclose()).result()


async def _split(options: ReadOptions) -> list[ScanSplit]:
    async with _open_scanner(options) as scanner:
        return await scanner.split(options.scan_range, options.partition_rows)


async def _read_batches(
    options: ReadOptions, schema: pa.Schema, splits: Sequence[ScanSplit]
) -> AsyncGenerator[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    prefix = "" if options.job is None else f"{options.job}:"
    async with _open_scanner(options) as scanner:
        async for records in scanner.read(splits):
            chosen = [record for record in records if record.id.startswith(prefix)]
            if chosen:
                batches.append(batch_from_records(chosen, schema))
            if sum(map(len, batches)) >= BATCH_ROWS or sum(batch.nbytes for batch in batches) >= BATCH_BYTES:
                yield _concatenate(batches)
                batches = []
    if batches:
        yield _concatenate(batches)


def _concatenate(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


@asynccontextmanager
async def _open_scanner(options: ReadOptions) -> AsyncIterator[Scanner]:
    settings = settings_from_url(options.url, options.prefix, options.timeout_s, os.environ)
    store = await open_existing_store(settings, Clock(time.monotonic, time.time))
    try:
        yield store.scanner
    finally:
        await store.aclose()
