"""What the tests of Spark's jobs stand on: a daemon with a store of its own, rows, and what has become of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
import redis
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.cli.main import run
from later.core.task import unpack_id
from later.store.keys import Keys
from tests.system.api_client import get
from tests.system.daemons import Daemon, environment, run_daemon
from tests.system.stores import StoreServer, run_store
from tests.system.waiting import POLL_INTERVAL_S

UNUSED_CALLBACK = "http://127.0.0.1:9/"
"""A callback that is not to be called while a test runs."""
DAY_S = 86_400
"""A delay that no test outlasts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterServer:
    """A daemon and its store."""

    daemon: Daemon
    store: str
    """The store's URL, redis://."""
    redis: redis.Redis
    server: StoreServer

    @property
    def url(self) -> str:
        return self.daemon.url

    def topic_ids(self, topic: str) -> list[str]:
        """Every task of the topic, in whatever bucket, sorted: one that is there twice stands there twice."""
        (shard,) = Keys("later", 1).shards
        buckets = shard.buckets(topic.encode())
        packed = (cast("list[bytes]", self.redis.zrange(bucket, 0, -1)) for bucket in buckets)
        return sorted(unpack_id(id) for ids in packed for id in ids)

    def job_counts(self, job: str) -> tuple[int, int, int]:
        """What the store has counted of the job: created, existing, refused."""
        return job_counts(self.url, job)


def job_counts(url: str, job: str) -> tuple[int, int, int]:
    """What `Ground.counted` answers, for who has no ground."""
    answer = get(url, f"/jobs/{job}")
    if answer.status == 404:
        return 0, 0, 0
    return answer.body["created"], answer.body["existing"], answer.body["refused"]


@contextmanager
def run_server(folder: Path, *options: str) -> Iterator[LaterServer]:
    """A `later up` on an empty Valkey, each as a user runs it."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    always = ("--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always")
    with (
        run_store("valkey", folder, *always) as server,
        run_daemon("up", folder, "--redis", url, *options) as later,
        redis.Redis.from_url(url) as client,
    ):
        yield LaterServer(daemon=later, store=url, redis=client, server=server)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def task_ids(job: str, keys: Iterable[object]) -> list[str]:
    """The tasks of the rows that have these keys, sorted: as docs/spark.md says, and in other words than the code."""
    return sorted(f"{job}:{urlsafe_b64encode(sha256(str(key).encode()).digest()[:15]).decode()}" for key in keys)


# Rows


def rows(spark: SparkSession, topic: str, count: int, partitions: int = 2) -> DataFrame:
    """Rows with the keys 0, 1, …, each a right task that is due tomorrow."""
    return spark.range(0, count, 1, partitions).select(
        F.col("id").alias("key"),
        F.lit(topic).alias("topic"),
        F.lit(UNUSED_CALLBACK).alias("callback"),
        (F.lit(DAY_S) + F.col("id") % 100).alias("delay"),
    )


def later_writer(frame: DataFrame, url: str, job: str, **options: object) -> DataFrameWriter:
    """What writes a frame; options as they are named."""
    writer = frame.write.format("later").mode("append").option("url", url).option("jobId", job)
    return writer.options(**{name: str(value) for name, value in options.items()})


def write_parquet(path: Path, files: int, **columns: Sequence[Any] | pa.Array) -> Path:
    """A directory of so many files with these columns, cut evenly."""
    path.mkdir()
    table = pa.table(columns)
    size = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), path / f"{number:03d}.parquet")
    return path


# The command line


class CommandResult(NamedTuple):
    """A command's exit status, what it printed, and what it said on standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What `--json` printed."""
        told: dict[str, Any] = json.loads(self.out)
        return told


def run_bulk(spark: SparkSession, *arguments: object) -> CommandResult:
    """`later bulk …` in this process, which has a session: no second one is started."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = run(["bulk", *map(str, arguments)]).code
    return CommandResult(status, out.getvalue(), err.getvalue())


@contextmanager
def run_process(*command: object, log: Path, env: Mapping[str, str] | None = None) -> Iterator[Popen[bytes]]:
    """A process of its own, with all that it starts; they end with this. What it says goes to `log`."""
    with log.open("wb") as said:
        process = Popen(
            [str(word) for word in command],
            stdin=DEVNULL,
            stdout=said,
            stderr=said,
            env={**environment(), **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: Popen[bytes]) -> None:
    """`kill -9`: it, its Java, and Spark's workers, which are in groups of their own, but in one session with it."""
    while members := session_pids(process.pid):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(POLL_INTERVAL_S)
    process.wait()


def session_pids(leader: int) -> list[int]:
    """Processes of a session that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found
