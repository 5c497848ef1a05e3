"""Creating in batches of 1,000, compared with raw calls of the same script."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.processes import tree_cpu_s
from scripts.bench.programs import run_api
from scripts.bench.raw_script import CreateBatches, RawConnection
from scripts.bench.results import AtLeast, Contender, Row, Sample, ShareOfReference
from scripts.bench.stores import run_store

TASKS_PER_REQUEST = 1_000
CONNECTIONS = 4
DELAY_S = 3_600
RAW = "raw calls of the script, one connection"
TIMEOUT_S = 120.0


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    creates = CreateBatches(TASKS_PER_REQUEST)
    yield [
        Contender(name=RAW, store="none", measure=lambda: measure_raw(environment, creates)),
        *(_later_contender(environment, 1, durability) for durability in environment.durabilities),
        *(_later_contender(environment, 2, durability) for durability in environment.durabilities[:1]),
    ]


def _later_contender(environment: Environment, processes: int, durability: str) -> Contender:
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        references=[RAW],
        targets=[ShareOfReference(0.6), AtLeast("rate", 60_000)] if (processes, durability) == (1, "none") else (),
        measure=partial(measure_later, environment, processes, durability),
    )


def measure_raw(environment: Environment, creates: CreateBatches) -> Sample:
    with run_store(environment, "none") as store, RawConnection(store.socket) as connection:
        connection.load_scripts()
        before = tree_cpu_s(store.pid)
        batches = creates.batches(
            environment.sizes.batched // TASKS_PER_REQUEST, lambda: int((time.time() + DELAY_S) * 1000)
        )
        seconds = connection.time_messages(batches, creates.call_count, concurrency=CONNECTIONS)
        store_s = tree_cpu_s(store.pid) - before
    return {"rate": environment.sizes.batched / seconds, "store_cpu": store_s * 1_000_000 / environment.sizes.batched}


def measure_later(environment: Environment, processes: int, durability: str) -> Sample:
    with run_store(environment, durability) as store, run_api(environment, "serve", store, processes) as server:
        server_before, store_before = server.cpu_s(), tree_cpu_s(store.pid)
        result = run_load(environment, build_load(server.url, environment.sizes.batched))
        server_s, store_s = server.cpu_s() - server_before, tree_cpu_s(store.pid) - store_before
    tasks = result.requests * TASKS_PER_REQUEST
    per_1000 = 1_000_000 / tasks
    return {
        "rate": tasks / result.seconds,
        "server_cpu": server_s * per_1000,
        "store_cpu": store_s * per_1000,
    }


def build_load(url: str, tasks: int, delays: Sequence[float] = (DELAY_S,) * TASKS_PER_REQUEST) -> Load:
    """Return a load of `tasks` tasks; each request has one task for each of the delays (s)."""
    callback = "http://127.0.0.1:8888/success"
    body = [{"topic": "order", "delay": s, "retry": 3, "callback": callback, "content": "hello"} for s in delays]
    return Load(
        url=f"{url}/create/batch",
        bodies=[json.dumps(body).encode()],
        connections=CONNECTIONS,
        seconds=TIMEOUT_S,
        requests=tasks // len(delays),
    )


BATCH = Row(
    name="batch",
    title="`POST /create/batch`, 1,000 a request, 4 connections, an empty store filled to a million",
    target="≥ 0.6 of the raw calls, ≥ 60,000 tasks/s",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    contenders=contenders,
)
