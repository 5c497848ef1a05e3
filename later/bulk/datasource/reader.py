"""`spark.read.format("later")`: the tasks of a store as rows."""

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

from later.bulk.datasource import arrow_schema
from later.bulk.datasource.arrow_schema import batch_of
from later.bulk.datasource.read_options import Wanted, wanted
from later.core.clock import Clock
from later.core.errors import Refused
from later.store.open import open_existing_store
from later.store.scan import Scanner, ScanSplit, batch_splits
from later.store.url import settings_from_url

SCHEMA = (
    "id string, topic string, execute_time bigint, max_retry int, has_retry int, callback string, content string, "
    "creat_time bigint, state string, due_at timestamp, died_at timestamp, attempts bigint, "
    "last_error struct<reason string, status int, message string, at timestamp>, headers array<string>, "
    "expires_at timestamp"
)
"""That of `columns`, in Spark's words."""
BATCH_ROWS = 4000
BATCH_BYTES = 4 * 1024 * 1024
"""A batch is handed on once it is as large as either."""


class LaterReader(DataSourceReader):
    """Reads what `options` ask for (see `wanted`), with the columns of SCHEMA.

    Each row was true when it was read: state, times, attempts and last error come with the body from one step of the
    store. The rows together are no snapshot. A task that stays where it is during the reading comes exactly once; one
    that moves meanwhile (is claimed, released, edited, brought back) comes once as a rule, but may come twice, each
    time as it was, or not at all. `dropDuplicates(["id"])` leaves one of each. Of a task that is created, ends or is
    deleted meanwhile nobody can say whether it comes.

    Raises:
        Refused: an option is unknown or wrong; columns are asked for that it does not have.
        ConfigError: the URL is none of a store, or holds a password.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._wanted = wanted(options)
        if to_arrow_schema(schema, timezone="UTC") != arrow_schema.SCHEMA:
            raise Refused("schema: the columns are the reader's own: select those that you need")

    def partitions(self) -> list[InputPartition]:
        """The parts that are read apart, in the order of topics, states and times; on the driver."""
        pieces = asyncio.run(_cut(self._wanted))
        return [InputPartition(pack) for pack in batch_splits(pieces, self._wanted.rows)] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One part, a few thousand rows at a time, and the next of them while Spark takes these; on an executor."""
        batches = _batches(self._wanted, partition.value)
        with asyncio.Runner() as runner, ThreadPoolExecutor(1) as beside:
            ahead = beside.submit(runner.run, _next(batches))
            try:
                while (batch := ahead.result()) is not None:
                    ahead = beside.submit(runner.run, _next(batches))
                    yield batch
            finally:
                beside.submit(runner.run, batches.aclose()).result()


async def _cut(wanted: Wanted) -> list[ScanSplit]:
    async with _opened(wanted) as pieces:
        return await pieces.split(wanted.part, wanted.rows)


async def _batches(wanted: Wanted, pieces: Sequence[ScanSplit]) -> AsyncGenerator[pa.RecordBatch]:
    read: list[pa.RecordBatch] = []
    async with _opened(wanted) as store:
        async for found in store.read(pieces):
            if found:
                read.append(batch_of(found))
            if sum(map(len, read)) >= BATCH_ROWS or sum(batch.nbytes for batch in read) >= BATCH_BYTES:
                yield _joined(read)
                read = []
    if read:
        yield _joined(read)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


@asynccontextmanager
async def _opened(wanted: Wanted) -> AsyncIterator[Scanner]:
    settings = settings_from_url(wanted.url, wanted.prefix, wanted.timeout_s, os.environ)
    store = await open_existing_store(settings, Clock(time.monotonic, time.time))
    try:
        yield store.scanner
    finally:
        await store.aclose()
