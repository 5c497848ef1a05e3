"""A table of rows made into tasks by Spark, beside the same script driven raw with the same tasks."""

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
from later.core.task import Task, encode, pack_id
from later.store.tasks import Tasks
from later.store.types import JobBatch
from scripts.bench.daemons import an_api
from scripts.bench.environment import Setting
from scripts.bench.processes import family, family_cpu_s, peak_resident_bytes
from scripts.bench.raw_script import Wire, packed, recorded
from scripts.bench.results import AtLeast, BenchError, Contender, Row, Sample, ShareOf
from scripts.bench.seed import a_task, fill
from scripts.bench.stores import OwnStore, a_store

EACH = 1_000
UNDER_WAY = 4
JOB = "bench"
SEED = 1
AHEAD_S = 3_600
DAY_S = 86_400
PLAIN = "SET and ZADD, raw"
RAW = "the script, raw"
SORTED = "the script, raw, by due time"
MASTER = "local[*,4]"
WARM_ROWS = 10_000


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    with setting.a_folder() as folder, a_session() as (session, missing):
        rows = setting.scale.bulk
        file = folder / "rows.parquet"
        if not missing:
            write_rows(file, rows)
            write_rows(folder / "warm.parquet", WARM_ROWS)
        by_api = partial(ours, setting, session, file)
        by_store = partial(ours, setting, session, file, by_api=False)
        yield [
            Contender(name=PLAIN, store="none", measure=lambda: raw(setting, plain_messages(rows), 2 * EACH)),
            Contender(name=RAW, store="none", measure=lambda: raw(setting, *script_messages(tasks(rows)))),
            Contender(name=SORTED, store="none", measure=lambda: raw(setting, *script_messages(by_due_time(rows)))),
            *(
                Contender(
                    name="later bulk create, by the API",
                    store=durability,
                    beside=RAW,
                    goals=[ShareOf(0.5), AtLeast("rate", 60_000)] if durability == "none" else (),
                    skip=missing,
                    measure=partial(by_api, durability),
                )
                for durability in setting.durabilities
            ),
            Contender(
                name="later bulk create, to the store",
                store="none",
                beside=RAW,
                skip=missing,
                measure=partial(by_store, "none"),
            ),
        ]


@contextmanager
def a_session() -> Iterator[tuple[Any, str]]:
    """A Spark session for a row; or why there can be none."""
    try:
        check_packages()
        check_java(os.environ)
    except LaterError as error:
        yield None, str(error)
        return
    from later.bulk.spark.session import open_session  # noqa: PLC0415  # only where Spark is

    with open_session(MASTER, {}, "bench") as session:
        yield session, ""


# What is sent


def dues(rows: int) -> list[int]:
    """Due times (ms) anywhere in a day, the same in each run."""
    chance, start = random.Random(SEED), int(time.time()) + AHEAD_S
    return [(start + chance.randrange(DAY_S)) * 1000 for _ in range(rows)]


def write_rows(file: Path, rows: int) -> None:
    """The tasks as a table."""
    import pyarrow as pa  # noqa: PLC0415  # only where Spark is
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = {
        "key": [key(number) for number in range(rows)],
        "topic": ["order"] * rows,
        "callback": [a_task(0).callback] * rows,
        "execute_time": [due // 1000 for due in dues(rows)],
        "content": [a_task(0).content] * rows,
    }
    pq.write_table(pa.table(table), file, row_group_size=max(rows // 8, 1))


def key(number: int) -> str:
    return f"order-{number:09d}"


def tasks(rows: int) -> list[Task]:
    """The same as tasks, in the rows' order."""
    from later.bulk.input.task_ids import task_ids  # noqa: PLC0415

    ids = task_ids(JOB, [key(number).encode() for number in range(rows)])
    return [a_task(due, own_id=id) for id, due in zip(ids, dues(rows), strict=True)]


def by_due_time(rows: int) -> list[Task]:
    return sorted(tasks(rows), key=lambda task: task.execute_at)


def script_messages(made: Sequence[Task]) -> tuple[list[bytes], int]:
    """The creates of a job's batches, as bytes, and how many answers each has."""
    messages, calls = [], 0
    for start in range(0, len(made), EACH):
        some = made[start : start + EACH]
        batch = JobBatch(JOB, b"%012d" % start, 0, some[0].execute_at)
        commands = recorded(partial(_create, some, batch))
        messages.append(packed(commands))
        calls = len(commands)
    return messages, calls


async def _create(some: Sequence[Task], batch: JobBatch, store: Tasks) -> None:
    await store.create(some, batch)


def plain_messages(rows: int) -> list[bytes]:
    """What `redis-cli --pipe` would be given: each task's body under a key, its due time in one sorted set."""
    commands = [
        [("SET", b"task:" + pack_id(task.id), encode(task)), ("ZADD", "delay", task.execute_at, pack_id(task.id))]
        for task in tasks(rows)
    ]
    flat = [command for pair in commands for command in pair]
    return [packed(flat[start : start + 2 * EACH]) for start in range(0, len(flat), 2 * EACH)]


# How fast


def raw(setting: Setting, messages: Sequence[bytes], answers_each: int) -> Sample:
    with a_store(setting, "none") as store, Wire(store.socket) as wire:
        wire.load_scripts()
        return {"rate": len(messages) * EACH / wire.timed(messages, answers_each, under_way=UNDER_WAY)}


def ours(setting: Setting, session: Any, file: Path, durability: str, *, by_api: bool = True) -> Sample:
    """A job like `later bulk create`'s, in a session that has done one before."""
    with a_store(setting, durability) as store, an_api(setting, "serve", store) as server:
        url = server.url if by_api else store.url
        create(session, file.with_name("warm.parquet"), url, WARM_ROWS)
        pids = {"server_cpu": server.pids, "store_cpu": [store.pid], "spark_cpu": [java_of(session)]}
        before = {name: cpu_s(of) for name, of in pids.items()}
        seconds = create(session, file, url, setting.scale.bulk)
        per_1000 = 1_000_000 / setting.scale.bulk
        used = {name: (cpu_s(of) - before[name]) * per_1000 for name, of in pids.items()}
        figures = {"rate": setting.scale.bulk / seconds, "bytes": _bytes_each(store, setting.scale.bulk)}
        return {**figures, **used, "resident": _most_resident(java_of(session)) / 2**20}


def _most_resident(java: int) -> float:
    """Of a worker in Python, in bytes, since it started. Of one that has ended the kernel says nothing."""
    peaks = []
    for pid in family(java):
        if pid != java:
            with suppress(BenchError, OSError):
                peaks.append(peak_resident_bytes(pid))
    if not peaks:
        raise BenchError("Spark has no worker in Python any more")
    return max(peaks)


def cpu_s(pids: Sequence[int]) -> float:
    return sum(map(family_cpu_s, pids))


def java_of(session: Any) -> int:
    """Whose children are the workers in Python."""
    pid: int = session.sparkContext._gateway.proc.pid
    return pid


def create(session: Any, file: Path, url: str, rows: int) -> float:
    """The seconds that it took. Raises BenchError: not every row became a task."""
    from later.bulk.input import reader  # noqa: PLC0415  # only where Spark is
    from later.bulk.jobs import run  # noqa: PLC0415  # only where Spark is
    from later.bulk.transport.target import Target  # noqa: PLC0415

    given = reader.JobInput(path=str(file), format="parquet", options={}, columns={}, constants={})
    came = run.create(reader.read_input(session, given, f"{JOB}-{rows}"), Target(url=url), None, _Nobody())
    if came.created != rows:
        raise BenchError(f"{came.created} of {rows} rows became tasks")
    return came.seconds


class _Nobody:
    """Listens to no job."""

    def hear(self, counts: object) -> None: ...

    def parts(self, done: int, of: int) -> None: ...

    def trouble(self, reason: str) -> None: ...


def _bytes_each(store: OwnStore, rows: int) -> float:
    return float(store.info("memory")["used_memory"]) / rows


BULK = Row(
    name="bulk",
    title="a million rows of Parquet made into tasks by Spark, in a warm session, an empty store",
    target="≥ 60,000 tasks/s by the API, ≥ 0.5 of the script driven raw with the same tasks",
    figures=("rate",),
    besides=("bytes", "server_cpu", "store_cpu", "spark_cpu", "resident"),
    contenders=contenders,
)


# Export


@contextmanager
def exports(setting: Setting) -> Iterator[list[Contender]]:
    with a_session() as (session, missing):
        yield [
            Contender(
                name="later bulk export",
                store="none",
                goals=[AtLeast("rate", 150_000)],
                skip=missing,
                measure=partial(exported, setting, session),
            )
        ]


def exported(setting: Setting, session: Any) -> Sample:
    """A job like `later bulk export`'s, in a session that has done one before."""
    with a_store(setting, "none") as store, an_api(setting, "serve", store), setting.a_folder() as folder:
        export(session, store, folder / "warm", 0)
        fill(store.url, tasks(setting.scale.bulk))
        return {"rate": setting.scale.bulk / export(session, store, folder / "tasks", setting.scale.bulk)}


def export(session: Any, store: OwnStore, to: Path, rows: int) -> float:
    """The seconds that it took. Raises BenchError: not every task became a row."""
    from later.bulk.jobs import export  # noqa: PLC0415  # only where Spark is
    from later.bulk.jobs.output import Output  # noqa: PLC0415

    came = export.export(session, {"url": store.url}, Output(str(to)), lambda parts, of: None)
    if came.rows != rows:
        raise BenchError(f"{rows} tasks became {came.rows} rows")
    return came.seconds


EXPORT = Row(
    name="export",
    title="a million tasks exported to Parquet by Spark, in a warm session",
    target="≥ 150,000 rows/s",
    figures=("rate",),
    contenders=exports,
)
