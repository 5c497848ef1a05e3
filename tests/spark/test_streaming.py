"""Each row of a stream is one task: after a kill in the middle of a batch, a restart, and without the checkpoint."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark import faulty_proxy
from tests.spark.faulty_proxy import run_proxy
from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    LaterServer,
    kill_session,
    run_process,
    task_ids,
)
from tests.system.waiting import wait_until

FILES, ROWS = 3, 600
BATCH = 200
SCHEMA = "key string, topic string, callback string, delay double"
DEADLINE_S = 60

PROGRAM = """
import sys
from pathlib import Path
from later.bulk.spark.session import open_session
from tests.spark.conftest import MASTER, QUICK
from tests.spark.test_streaming import stream

with open_session(MASTER, {"spark.driver.extraJavaOptions": QUICK}, "a stream") as spark:
    stream(spark, Path(sys.argv[1]), *sys.argv[2:]).awaitTermination()
"""


def stream(spark: SparkSession, folder: Path, url: str, job: str) -> StreamingQuery:
    """Start a stream of the folder's files, one in each batch."""
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    written = read.writeStream.format("later").options(url=url, jobId=job, batchSize=BATCH)
    return written.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def test_a_killed_stream_continues_and_starts_over(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """Kill it when a third of a batch is created; restart it with its checkpoint, then without."""
    write_files(tmp_path / "in", "stream", 0, FILES)
    every = task_ids("stream", range(FILES * ROWS))

    with run_proxy(server.url, *[faulty_proxy.pass_through] * 4) as proxy:
        proxy.hold_after(4)
        program = (sys.executable, "-c", PROGRAM, tmp_path, proxy.url, "stream")
        with run_process(*program, log=tmp_path / "stream.log") as driver:
            wait_until(
                lambda: proxy.is_holding.is_set() and server.job_counts("stream")[0] == 4 * BATCH,
                "a third of a batch is created",
                DEADLINE_S,
            )
            kill_session(driver)
    assert len(server.topic_ids("stream")) == 4 * BATCH
    finish(stream(spark, tmp_path, server.url, "stream"))
    assert server.topic_ids("stream") == every
    shutil.rmtree(tmp_path / "checkpoint")
    finish(stream(spark, tmp_path, server.url, "stream"))

    assert server.topic_ids("stream") == every
    assert server.job_counts("stream") == (len(every), 0, 0)


def test_a_stream_reads_new_files(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """It creates no task of the old files again."""
    write_files(tmp_path / "in", "resumed", 0, 1)
    finish(stream(spark, tmp_path, server.url, "resumed"))
    write_files(tmp_path / "in", "resumed", 1, 2)

    with run_proxy(server.url) as proxy:
        finish(stream(spark, tmp_path, proxy.url, "resumed"))

    assert len(proxy.batches) == ROWS / BATCH
    assert server.topic_ids("resumed") == task_ids("resumed", range(2 * ROWS))


def test_a_rejected_row_stops_a_stream_and_is_named(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", "", 0, 1)

    with pytest.raises(
        StreamingQueryException, match="row with the key '0' was rejected: topic: expected a string of 1"
    ):
        finish(stream(spark, tmp_path, server.url, "refused"))


def finish(query: StreamingQuery) -> None:
    """Wait until the stream has read everything. Raises StreamingQueryException."""
    assert query.awaitTermination(DEADLINE_S), "the stream does not end"


def write_files(folder: Path, topic: str, first: int, end: int) -> None:
    """Write NDJSON files with these numbers."""
    folder.mkdir(exist_ok=True)
    for number in range(first, end):
        keys = range(number * ROWS, (number + 1) * ROWS)
        rows = ({"key": str(key), "topic": topic, "callback": UNUSED_CALLBACK, "delay": DAY_S} for key in keys)
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
