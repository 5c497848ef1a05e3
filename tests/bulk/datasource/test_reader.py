"""The reader without Spark: the partitions that it plans, and the rows that it reads."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from later.bulk.datasource import arrow_schema, reader
from later.bulk.datasource.reader import LaterReader
from later.bulk.datasource.source import LaterDataSource
from later.core.errors import LaterError, Refused, StoreDown
from later.core.task import Task
from later.store.codec import MAX_BODIES
from later.store.url import PASSWORD
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.store.inspection import ask, claim_due, died
from tests.store_fixture import StoreFixture

SPARK_SCHEMA = from_arrow_schema(arrow_schema.SCHEMA)


class ReaderRun:
    """Runs a reader of a store as Spark does: the reader and its partitions are pickled."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def partitions(self, **options: str) -> tuple[LaterReader, list[InputPartition]]:
        store_reader = LaterReader({"url": self._url, **options}, SPARK_SCHEMA)
        partitions = await asyncio.to_thread(store_reader.partitions)
        copied: tuple[LaterReader, list[InputPartition]] = pickle.loads(pickle.dumps((store_reader, partitions)))
        return copied

    async def batches(self, **options: str) -> list[pa.RecordBatch]:
        store_reader, partitions = await self.partitions(**options)
        return [
            batch for partition in partitions for batch in await asyncio.to_thread(list, store_reader.read(partition))
        ]

    async def rows(self, **options: str) -> list[dict[str, Any]]:
        return [row for batch in await self.batches(**options) for row in batch.to_pylist()]


@pytest.fixture
async def reader_run(store: StoreFixture, server_url: str) -> ReaderRun:
    await store.client.open()
    return ReaderRun(server_url)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_ROWS", 10)


async def create(store: StoreFixture, tasks: Sequence[Task]) -> list[str]:
    await store.tasks.create(tasks)
    return sorted(task.id for task in tasks)


async def test_every_task_is_a_row(store: StoreFixture, reader_run: ReaderRun) -> None:
    ids = await create(store, [a_task(topic=f"topic-{n % 7}", delay=n) for n in range(100)])
    rows = await reader_run.rows()
    assert sorted(row["id"] for row in rows) == ids
    assert {row["topic"] for row in rows} == {f"topic-{n}" for n in range(7)}


async def test_options_limit_topic_state_and_times(store: StoreFixture, reader_run: ReaderRun) -> None:
    await create(store, [a_task(id=f"d{n}") for n in range(4)])
    await store.tasks.settle([died(claim, NOW + n) for n, claim in enumerate(await claim_due(store))])
    await create(store, [a_task(id=f"w{n}", delay=n + 1) for n in range(4)])
    await create(store, [a_task(id="other", topic="mail")])
    seconds = NOW // 1000

    async def ids(**options: str) -> list[str]:
        return sorted(row["id"] for row in await reader_run.rows(**options))

    assert await ids(state="dead") == ["d0", "d1", "d2", "d3"]
    assert await ids(topic="mail") == ["other"]
    assert await ids(topic="order", state="delay,error") == ["w0", "w1", "w2", "w3"]
    assert await ids(state="delay", dueAfter=f"{seconds + 2}", dueBefore=f"{seconds + 4}") == ["w1", "w2"]


async def test_an_empty_store_is_one_empty_partition(reader_run: ReaderRun) -> None:
    store_reader, partitions = await reader_run.partitions()
    assert len(partitions) == 1  # without any, Spark makes one whose value is None
    assert list(await asyncio.to_thread(list, store_reader.read(partitions[0]))) == []


async def test_a_partition_whose_tasks_have_moved_is_empty(store: StoreFixture, reader_run: ReaderRun) -> None:
    await create(store, [a_task() for _ in range(50)])
    store_reader, partitions = await reader_run.partitions(state="delay")
    await claim_due(store)
    assert [row for part in partitions for row in await asyncio.to_thread(list, store_reader.read(part))] == []


async def test_small_buckets_share_a_partition_and_large_ones_are_split(
    store: StoreFixture, reader_run: ReaderRun
) -> None:
    await create(store, [a_task(topic=f"topic-{n}") for n in range(300)])
    _, partitions = await reader_run.partitions(partitionRows="1000")
    assert len(partitions) == 1
    await create(store, [a_task(delay=60) for _ in range(4000)])
    _, partitions = await reader_run.partitions(partitionRows="1000")
    assert 4 <= len(partitions) <= 9


@pytest.mark.usefixtures("small_batches")
async def test_batches_have_few_rows_and_sparks_columns(store: StoreFixture, reader_run: ReaderRun) -> None:
    ids = await create(store, [a_task() for _ in range(800)])
    batches = await reader_run.batches()
    assert sorted(id for batch in batches for id in batch.column("id").to_pylist()) == ids
    assert {batch.schema for batch in batches} == {arrow_schema.SCHEMA}
    assert max(batch.num_rows for batch in batches) <= 510


async def test_batches_of_large_contents_have_fewer_rows(
    store: StoreFixture, reader_run: ReaderRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 300_000)
    await create(store, [a_task(content="x" * 100_000, id=f"t{n}") for n in range(250)])
    assert max(batch.num_rows for batch in await reader_run.batches()) <= MAX_BODIES


@pytest.mark.usefixtures("small_batches")
async def test_an_abandoned_read_closes_its_connection(store: StoreFixture, reader_run: ReaderRun) -> None:
    await create(store, [a_task() for _ in range(2000)])
    store_reader, partitions = await reader_run.partitions()

    def read_one() -> None:
        batches: Iterator[pa.RecordBatch] = store_reader.read(partitions[0])
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # a generator, which Spark closes when it needs no more

    await asyncio.to_thread(read_one)
    clients = [client for client in await store.redis.client_list() if client["cmd"] != "client|list"]
    names = [client["name"] for client in clients]
    assert names.count("later") <= 2  # the store's own


async def test_a_store_that_is_not_laters_is_refused(store: StoreFixture, reader_run: ReaderRun) -> None:
    with pytest.raises(LaterError, match=r'nothing of later.s in the store \(its keys would begin with "latr"'):
        await reader_run.rows(prefix="latr")
    await ask(store, [("HSET", store.keys.meta, "schema", 9)])
    with pytest.raises(LaterError, match="schema version 9"):
        await reader_run.rows()


async def test_an_unavailable_store_is_an_error(store: StoreFixture) -> None:
    with pytest.raises(StoreDown, match="cannot be reached"):
        await ReaderRun("unix:///nowhere.sock").partitions()


@each_case(
    ("column", "kind", "why"),
    [
        ("key", pa.string(), "key: no such column; there are id, topic, "),
        ("id", pa.int64(), "schema: expected the reader's own types: id string"),
    ],
)
async def test_other_columns_are_refused(column: str, kind: pa.DataType, why: str) -> None:
    with pytest.raises(Refused, match=why):
        LaterReader({"url": "redis://h"}, from_arrow_schema(pa.schema({column: kind})))


async def test_only_the_columns_of_the_schema_are_read(store: StoreFixture, server_url: str) -> None:
    await store.client.open()
    [task_id] = await create(store, [a_task(id="a", content="x" * 9999)])
    options = {"url": server_url, "columns": "state, id"}
    source = LaterDataSource(CaseInsensitiveDict(options))
    store_reader = LaterReader(options, source.schema())

    [batch] = [
        batch
        for partition in await asyncio.to_thread(store_reader.partitions)
        for batch in await asyncio.to_thread(list, store_reader.read(partition))
    ]

    assert batch.to_pylist() == [{"state": "delay", "id": task_id}]


async def test_only_the_tasks_of_a_job_are_read(store: StoreFixture, reader_run: ReaderRun) -> None:
    await create(store, [a_task(id=id) for id in ("j:1", "j:2", "j2:1", "j", "other", "team/j:1")])
    assert {row["id"] for row in await reader_run.rows(job="j")} == {"j:1", "j:2"}
    assert {row["id"] for row in await reader_run.rows(job="team/j")} == {"team/j:1"}


def test_a_table_of_the_catalog_is_refused_when_it_is_created() -> None:
    """Spark drops its options. It gives CREATE TABLE the name of the provider, too."""
    given = {"provider": "later", "url": "redis://h"}
    with pytest.raises(LaterError, match=r"^later cannot be a table of the catalog.*use CREATE TEMPORARY VIEW"):
        LaterDataSource(CaseInsensitiveDict(given)).schema()


def test_a_store_cannot_be_read_as_a_stream() -> None:
    source = LaterDataSource(CaseInsensitiveDict({"url": "redis://h"}))
    with pytest.raises(LaterError, match="later cannot be read as a stream"):
        source.streamReader(source.schema()).initialOffset()


async def test_no_password_is_pickled(reader_run: ReaderRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "hush")
    store_reader = LaterReader({"url": "redis://h"}, SPARK_SCHEMA)
    assert b"hush" not in pickle.dumps(store_reader)
