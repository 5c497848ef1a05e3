"""The reader, without Spark around it: the plan of its partitions, and what it reads of them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from later.bulk.datasource import arrow_schema, reader
from later.bulk.datasource.reader import LaterReader
from later.core.errors import LaterError, Refused, StoreDown
from later.core.task import Task
from later.store.codec import MAX_BODIES
from later.store.url import PASSWORD
from tests.builders import NOW, a_task
from tests.store.sight import ask, died, take
from tests.store_fixture import StoreFixture

SPARK_SCHEMA = from_arrow_schema(arrow_schema.SCHEMA)


class Reading:
    """A reader of a store's store, as Spark uses one: it travels, and its partitions do."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def partitions(self, **options: str) -> tuple[LaterReader, list[InputPartition]]:
        made = LaterReader({"url": self._url, **options}, SPARK_SCHEMA)
        partitions = await asyncio.to_thread(made.partitions)
        copied: tuple[LaterReader, list[InputPartition]] = pickle.loads(pickle.dumps((made, partitions)))
        return copied

    async def batches(self, **options: str) -> list[pa.RecordBatch]:
        made, partitions = await self.partitions(**options)
        return [batch for partition in partitions for batch in await asyncio.to_thread(list, made.read(partition))]

    async def rows(self, **options: str) -> list[dict[str, Any]]:
        return [row for batch in await self.batches(**options) for row in batch.to_pylist()]


@pytest.fixture
async def reading(store: StoreFixture, server_url: str) -> Reading:
    await store.client.open()
    return Reading(server_url)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_ROWS", 10)


async def create(store: StoreFixture, tasks: Sequence[Task]) -> list[str]:
    await store.tasks.create(tasks)
    return sorted(task.id for task in tasks)


async def test_every_task_is_a_row(store: StoreFixture, reading: Reading) -> None:
    ids = await create(store, [a_task(topic=f"topic-{n % 7}", delay=n) for n in range(100)])
    rows = await reading.rows()
    assert sorted(row["id"] for row in rows) == ids
    assert {row["topic"] for row in rows} == {f"topic-{n}" for n in range(7)}


async def test_a_topic_a_state_and_a_range_of_times_are_read_alone(store: StoreFixture, reading: Reading) -> None:
    await create(store, [a_task(id=f"d{n}") for n in range(4)])
    await store.tasks.settle([died(claim, NOW + n) for n, claim in enumerate(await take(store))])
    await create(store, [a_task(id=f"w{n}", delay=n + 1) for n in range(4)])
    await create(store, [a_task(id="other", topic="mail")])
    seconds = NOW // 1000

    async def ids(**options: str) -> list[str]:
        return sorted(row["id"] for row in await reading.rows(**options))

    assert await ids(state="dead") == ["d0", "d1", "d2", "d3"]
    assert await ids(topic="mail") == ["other"]
    assert await ids(topic="order", state="delay,error") == ["w0", "w1", "w2", "w3"]
    assert await ids(state="delay", dueAfter=f"{seconds + 2}", dueBefore=f"{seconds + 4}") == ["w1", "w2"]


async def test_an_empty_store_is_one_part_of_no_rows(reading: Reading) -> None:
    made, partitions = await reading.partitions()
    assert len(partitions) == 1  # of none, Spark makes one that says nothing
    assert list(await asyncio.to_thread(list, made.read(partitions[0]))) == []


async def test_a_part_whose_tasks_have_all_left_is_one_of_no_rows(store: StoreFixture, reading: Reading) -> None:
    await create(store, [a_task() for _ in range(50)])
    made, partitions = await reading.partitions(state="delay")
    await take(store)
    assert [row for part in partitions for row in await asyncio.to_thread(list, made.read(part))] == []


async def test_small_buckets_share_a_part_and_large_ones_are_several(store: StoreFixture, reading: Reading) -> None:
    await create(store, [a_task(topic=f"topic-{n}") for n in range(300)])
    _, partitions = await reading.partitions(partitionRows="1000")
    assert len(partitions) == 1
    await create(store, [a_task(delay=60) for _ in range(4000)])
    _, partitions = await reading.partitions(partitionRows="1000")
    assert 4 <= len(partitions) <= 9


@pytest.mark.usefixtures("small_batches")
async def test_batches_are_of_a_few_rows_and_of_sparks_columns(store: StoreFixture, reading: Reading) -> None:
    ids = await create(store, [a_task() for _ in range(800)])
    batches = await reading.batches()
    assert sorted(id for batch in batches for id in batch.column("id").to_pylist()) == ids
    assert {batch.schema for batch in batches} == {arrow_schema.SCHEMA}
    assert max(batch.num_rows for batch in batches) <= 510


async def test_batches_of_large_contents_are_small(
    store: StoreFixture, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 300_000)
    await create(store, [a_task(content="x" * 100_000, id=f"t{n}") for n in range(250)])
    assert max(batch.num_rows for batch in await reading.batches()) <= MAX_BODIES


@pytest.mark.usefixtures("small_batches")
async def test_a_reading_that_is_given_up_leaves_no_connection(store: StoreFixture, reading: Reading) -> None:
    await create(store, [a_task() for _ in range(2000)])
    made, partitions = await reading.partitions()

    def read_one() -> None:
        batches: Iterator[pa.RecordBatch] = made.read(partitions[0])
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # it is a generator, which Spark closes where it needs no more

    await asyncio.to_thread(read_one)
    clients = [client for client in await store.redis.client_list() if client["cmd"] != "client|list"]
    names = [client["name"] for client in clients]
    assert names.count("later") <= 2  # the store's own


async def test_what_is_no_store_of_ours_is_told(store: StoreFixture, reading: Reading) -> None:
    with pytest.raises(LaterError, match=r'nothing of later.s in the store \(its keys would begin with "latr"'):
        await reading.rows(prefix="latr")
    await ask(store, [("HSET", store.keys.meta, "schema", 9)])
    with pytest.raises(LaterError, match="schema version 9"):
        await reading.rows()


async def test_a_store_that_is_away_is_told(store: StoreFixture) -> None:
    with pytest.raises(StoreDown, match="cannot be reached"):
        await Reading("unix:///nowhere.sock").partitions()


async def test_columns_are_the_readers_own() -> None:
    with pytest.raises(Refused, match="schema: the reader has columns of its own"):
        LaterReader({"url": "redis://h"}, from_arrow_schema(pa.schema({"id": pa.string()})))


async def test_no_secret_travels(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "hush")
    made = LaterReader({"url": "redis://h"}, SPARK_SCHEMA)
    assert b"hush" not in pickle.dumps(made)
