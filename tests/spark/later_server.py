"""A daemon with its own store for tests of Spark's jobs, rows for it, and commands as processes."""

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
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from later.cli.program import run
from later.core.task import unpack_id
from later.store.keys import Keys
from tests.system.api_client import get
from tests.system.daemons import Daemon, environment, run_daemon
from tests.system.stores import StoreServer, run_store
from tests.system.waiting import POLL_INTERVAL_S

UNUSED_CALLBACK = "http://127.0.0.1:9/"
"""A callback for tasks that do not become due during a test."""
DAY_S = 86_400
"""A delay that is longer than any test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterServer:
    """A daemon and its store."""

    daemon: Daemon
    store_url: str
    store_server: StoreServer
    redis: redis.Redis

    @property
    def url(self) -> str:
        return self.daemon.url

    def topic_ids(self, topic: str) -> list[str]:
        """Return the ids of the topic's tasks in all buckets, sorted; a task in two buckets is there twice."""
        (shard,) = Keys("later", 1).shards
        buckets = shard.buckets(topic.encode())
        packed = (cast("list[bytes]", self.redis.zrange(bucket, 0, -1)) for bucket in buckets)
        return sorted(unpack_id(id) for ids in packed for id in ids)

    def job_counts(self, job: str) -> tuple[int, int, int]:
        """Return the store's counts of a job: created, existing, refused."""
        return job_counts(self.url, job)


def job_counts(url: str, job: str) -> tuple[int, int, int]:
    """Return the store's counts of a job, from the API at a URL."""
    answer = get(url, f"/jobs/{job}")
    if answer.status == 404:
        return 0, 0, 0
    return answer.body["created"], answer.body["existing"], answer.body["refused"]


@contextmanager
def run_server(folder: Path, *options: str) -> Iterator[LaterServer]:
    """Run `later up` on an empty Valkey, both as a user runs them."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    options_of_store = ("--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always")
    with (
        run_store("valkey", folder, *options_of_store) as store_server,
        run_daemon("up", folder, "--redis", url, *options) as daemon,
        redis.Redis.from_url(url) as client,
    ):
        yield LaterServer(daemon=daemon, store_url=url, store_server=store_server, redis=client)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def task_ids(job: str, keys: Iterable[object]) -> list[str]:
    """Return the task ids of keys, sorted: computed as docs/spark.md says, independently of the code."""
    return sorted(f"{job}:{urlsafe_b64encode(sha256(str(key).encode()).digest()[:15]).decode()}" for key in keys)


# Rows


def rows(spark: SparkSession, topic: str, count: int, partitions: int = 2) -> DataFrame:
    """Return valid rows with the keys 0, 1, …, whose tasks are due tomorrow."""
    return spark.range(0, count, 1, partitions).select(
        F.col("id").alias("key"),
        F.lit(topic).alias("topic"),
        F.lit(UNUSED_CALLBACK).alias("callback"),
        (F.lit(DAY_S) + F.col("id") % 100).alias("delay"),
    )


def later_writer(frame: DataFrame, url: str, job: str, **options: object) -> DataFrameWriter:
    """Return the writer of a frame, with options of the data source."""
    writer = frame.write.format("later").mode("append").option("url", url).option("jobId", job)
    return writer.options(**{name: str(value) for name, value in options.items()})


def write_parquet(path: Path, files: int, **columns: Sequence[Any] | pa.Array) -> Path:
    """Write columns as a directory of `files` files of the same size."""
    path.mkdir()
    table = pa.table(columns)
    size = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), path / f"{number:03d}.parquet")
    return path


# The command line


class CommandResult(NamedTuple):
    """A command's exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object that `--json` printed."""
        result: dict[str, Any] = json.loads(self.out)
        return result

    @property
    def counts(self) -> dict[str, int]:
        """The counts in that object."""
        counts: dict[str, int] = self.json["counts"]
        return counts


def run_bulk(spark: SparkSession, *arguments: object) -> CommandResult:
    """Run `later bulk …` in this process, with its active session."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = run(["bulk", *map(str, arguments)]).code
    return CommandResult(status, out.getvalue(), err.getvalue())


@contextmanager
def run_process(*command: object, log: Path, env: Mapping[str, str] | None = None) -> Iterator[Popen[bytes]]:
    """Run a process in its own session, with its output in `log`; kill all processes of the session at the end."""
    with log.open("wb") as output:
        process = Popen(
            [str(word) for word in command],
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment(), **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: Popen[bytes]) -> None:
    """Kill the process, its Java and Spark's workers, which have own process groups but share the session."""
    while members := session_pids(process.pid):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(POLL_INTERVAL_S)
    process.wait()


def session_pids(leader: int) -> list[int]:
    """Return the live processes of a session."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                pids.append(int(stat.parent.name))
    return pids
