"""Creating tasks from a table by Spark, compared with raw calls of the same script for the same tasks."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from later.bulk.spark.preflight import check_java, check_packages
from later.core.errors import LaterError
from later.core.task import Task, encode_task, pack_id
from later.store.tasks import Tasks
from later.store.types import JobBatch
from scripts.bench.environment import Environment
from scripts.bench.processes import peak_resident_bytes, process_tree, tree_cpu_s
from scripts.bench.programs import run_api
from scripts.bench.raw_script import RawConnection, pack_commands, record_commands
from scripts.bench.results import AtLeast, BenchError, Contender, Row, Sample, ShareOfReference
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

TASKS_PER_BATCH = 1_000
CONCURRENCY = 4
JOB = "bench"
SEED = 1
DELAY_S = 3_600
DAY_S = 86_400
PLAIN_REDIS = "raw SET and ZADD"
RAW = "raw calls of the script"
SORTED = "raw calls of the script, by due time"
MASTER = "local[*,4]"
WARM_ROWS = 10_000


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    with environment.temporary_folder() as folder, open_spark() as (session, skip_reason):
        rows = environment.sizes.bulk_rows
        file = folder / "rows.parquet"
        if not skip_reason:
            write_rows(file, rows)
            write_rows(folder / "warm.parquet", WARM_ROWS)
        by_api = partial(measure_later, environment, session, file)
        by_store = partial(measure_later, environment, session, file, by_api=False)
        yield [
            Contender(
                name=PLAIN_REDIS,
                store="none",
                measure=lambda: measure_raw(environment, plain_messages(rows), 2 * TASKS_PER_BATCH),
            ),
            Contender(
                name=RAW, store="none", measure=lambda: measure_raw(environment, *script_messages(build_tasks(rows)))
            ),
            Contender(
                name=SORTED,
                store="none",
                measure=lambda: measure_raw(environment, *script_messages(sorted_tasks(rows))),
            ),
            *(
                Contender(
                    name="later bulk create, by the API",
                    store=durability,
                    references=[RAW],
                    targets=[ShareOfReference(0.5), AtLeast("rate", 60_000)] if durability == "none" else (),
                    skip_reason=skip_reason,
                    measure=partial(by_api, durability),
                )
                for durability in environment.durabilities
            ),
            Contender(
                name="later bulk create, to the store",
                store="none",
                references=[RAW],
                skip_reason=skip_reason,
                measure=partial(by_store, "none"),
            ),
        ]


@contextmanager
def open_spark() -> Iterator[tuple[Any, str]]:
    """Open a Spark session; yield it and an empty reason, or None and the reason why it cannot be opened."""
    try:
        check_packages()
        check_java(os.environ)
    except LaterError as error:
        yield None, str(error)
        return
    from later.bulk.spark.session import open_session  # noqa: PLC0415  # only where Spark is

    with open_session(MASTER, {}, "bench") as session:
        yield session, ""


# The tasks that are created


def due_times(rows: int) -> list[int]:
    """Return random due times (ms) within a day, the same in each run."""
    generator, start = random.Random(SEED), int(time.time()) + DELAY_S
    return [(start + generator.randrange(DAY_S)) * 1000 for _ in range(rows)]


def write_rows(file: Path, rows: int) -> None:
    """Write a table of tasks as Parquet."""
    import pyarrow as pa  # noqa: PLC0415  # only where Spark is
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = {
        "key": [row_key(number) for number in range(rows)],
        "topic": ["order"] * rows,
        "callback": [build_task(0).callback] * rows,
        "execute_time": [due // 1000 for due in due_times(rows)],
        "content": [build_task(0).content] * rows,
    }
    pq.write_table(pa.table(table), file, row_group_size=max(rows // 8, 1))


def row_key(number: int) -> str:
    return f"order-{number:09d}"


def build_tasks(rows: int) -> list[Task]:
    """Return the tasks that the table describes, in its order."""
    from later.bulk.input.task_ids import task_ids  # noqa: PLC0415

    ids = task_ids(JOB, [row_key(number).encode() for number in range(rows)])
    return [build_task(due, own_id=id) for id, due in zip(ids, due_times(rows), strict=True)]


def sorted_tasks(rows: int) -> list[Task]:
    return sorted(build_tasks(rows), key=lambda task: task.execute_at)


def script_messages(tasks: Sequence[Task]) -> tuple[list[bytes], int]:
    """Return the create calls of a job's batches as bytes, and the number of answers of each."""
    messages, answers_each = [], 0
    for start in range(0, len(tasks), TASKS_PER_BATCH):
        chunk = tasks[start : start + TASKS_PER_BATCH]
        batch = JobBatch(JOB, b"%012d" % start, 0, chunk[0].execute_at)
        commands = record_commands(partial(_create, chunk, batch))
        messages.append(pack_commands(commands))
        answers_each = len(commands)
    return messages, answers_each


async def _create(tasks: Sequence[Task], batch: JobBatch, store: Tasks) -> None:
    await store.create(tasks, batch)


def plain_messages(rows: int) -> list[bytes]:
    """Return plain commands as for `redis-cli --pipe`: each task's body in a key, its due time in one sorted set."""
    pairs = [
        [("SET", b"task:" + pack_id(task.id), encode_task(task)), ("ZADD", "delay", task.execute_at, pack_id(task.id))]
        for task in build_tasks(rows)
    ]
    commands = [command for pair in pairs for command in pair]
    size = 2 * TASKS_PER_BATCH
    return [pack_commands(commands[start : start + size]) for start in range(0, len(commands), size)]


# Measurements


def measure_raw(environment: Environment, messages: Sequence[bytes], answers_each: int) -> Sample:
    with run_store(environment, "none") as store, RawConnection(store.socket) as connection:
        connection.load_scripts()
        seconds = connection.time_messages(messages, answers_each, concurrency=CONCURRENCY)
        return {"rate": len(messages) * TASKS_PER_BATCH / seconds}


def measure_later(
    environment: Environment, session: Any, file: Path, durability: str, *, by_api: bool = True
) -> Sample:
    """Measure a job like that of `later bulk create`, in a warm session."""
    with run_store(environment, durability) as store, run_api(environment, "serve", store) as server:
        url = server.url if by_api else store.url
        run_create_job(session, file.with_name("warm.parquet"), url, WARM_ROWS)
        pids = {"server_cpu": server.pids, "store_cpu": [store.pid], "spark_cpu": [java_pid(session)]}
        before = {name: total_cpu_s(group) for name, group in pids.items()}
        seconds = run_create_job(session, file, url, environment.sizes.bulk_rows)
        per_1000 = 1_000_000 / environment.sizes.bulk_rows
        used = {name: (total_cpu_s(group) - before[name]) * per_1000 for name, group in pids.items()}
        figures = {
            "rate": environment.sizes.bulk_rows / seconds,
            "bytes": _bytes_per_task(store, environment.sizes.bulk_rows),
        }
        return {**figures, **used, "resident": _peak_resident_bytes(java_pid(session)) / 2**20}


def _peak_resident_bytes(java: int) -> float:
    """Return the peak memory of Spark's running Python workers; those that have ended are not counted."""
    peaks = []
    for pid in process_tree(java):
        if pid != java:
            with suppress(BenchError, OSError):
                peaks.append(peak_resident_bytes(pid))
    if not peaks:
        raise BenchError("Spark has no running Python worker")
    return max(peaks)


def total_cpu_s(pids: Sequence[int]) -> float:
    return sum(map(tree_cpu_s, pids))


def java_pid(session: Any) -> int:
    """Return the id of the JVM, the parent of the Python workers."""
    pid: int = session.sparkContext._gateway.proc.pid
    return pid


def run_create_job(session: Any, file: Path, url: str, rows: int) -> float:
    """Create tasks from a file and return the seconds. Raises BenchError if any row was not created."""
    from later.bulk.input import spark_input  # noqa: PLC0415  # only where Spark is
    from later.bulk.jobs import run  # noqa: PLC0415  # only where Spark is
    from later.bulk.transport.target import Target  # noqa: PLC0415

    job_input = spark_input.JobInput(path=str(file), format="parquet", options={}, columns={}, constants={})
    result = run.create(
        spark_input.read_input(session, job_input, f"{JOB}-{rows}"), Target(url=url), "a-run", None, _NoProgress()
    )
    if result.created != rows:
        raise BenchError(f"{result.created} of {rows} rows became tasks")
    return result.seconds


class _NoProgress:
    """Progress that shows nothing."""

    def update_counts(self, counts: object) -> None: ...

    def update_partitions(self, finished: int, total: int) -> None: ...

    def report_problem(self, reason: str) -> None: ...


def _bytes_per_task(store: BenchStore, rows: int) -> float:
    return float(store.info("memory")["used_memory"]) / rows


BULK = Row(
    name="bulk",
    title="a million tasks created from Parquet by Spark, in a warm session, an empty store",
    target="≥ 60,000 tasks/s by the API, ≥ 0.5 of the raw calls with the same tasks",
    figures=("rate",),
    details=("bytes", "server_cpu", "store_cpu", "spark_cpu", "resident"),
    contenders=contenders,
)


# Export


@contextmanager
def export_contenders(environment: Environment) -> Iterator[list[Contender]]:
    with open_spark() as (session, skip_reason):
        yield [
            Contender(
                name="later bulk export",
                store="none",
                targets=[AtLeast("rate", 150_000)],
                skip_reason=skip_reason,
                measure=partial(measure_export, environment, session),
            )
        ]


def measure_export(environment: Environment, session: Any) -> Sample:
    """Measure a job like that of `later bulk export`, in a warm session."""
    with (
        run_store(environment, "none") as store,
        run_api(environment, "serve", store),
        environment.temporary_folder() as folder,
    ):
        run_export_job(session, store, folder / "warm", 0)
        seed_store(store.url, build_tasks(environment.sizes.bulk_rows))
        seconds = run_export_job(session, store, folder / "tasks", environment.sizes.bulk_rows)
        return {"rate": environment.sizes.bulk_rows / seconds}


def run_export_job(session: Any, store: BenchStore, to: Path, rows: int) -> float:
    """Export the tasks and return the seconds. Raises BenchError if any task was not exported."""
    from later.bulk.jobs import export  # noqa: PLC0415  # only where Spark is
    from later.bulk.jobs.output import Output  # noqa: PLC0415

    result = export.export(session, {"url": store.url}, Output(str(to)), lambda finished, total: None)
    if result.rows != rows:
        raise BenchError(f"{rows} tasks became {result.rows} rows")
    return result.seconds


EXPORT = Row(
    name="export",
    title="a million tasks exported to Parquet by Spark, in a warm session",
    target="≥ 150,000 rows/s",
    figures=("rate",),
    contenders=export_contenders,
)
