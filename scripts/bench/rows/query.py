"""Queries: each request asks for another task of the store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.load import Load
from scripts.bench.programs import run_api, run_bare_handlers
from scripts.bench.results import Contender, Row, Sample, ShareOfReference
from scripts.bench.rows.requests import CONNECTIONS, measure_requests
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import run_store

DELAY_MS = 3_600_000
BARE = {1: "bare handler", 2: "two bare handlers on one port"}


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(name=BARE[1], measure=partial(measure_bare, environment, 1)),
        Contender(name=BARE[2], measure=partial(measure_bare, environment, 2)),
        *(_later_contender(environment, 1, durability) for durability in environment.durabilities),
        *(_later_contender(environment, 2, durability) for durability in environment.durabilities),
    ]


def _later_contender(environment: Environment, processes: int, durability: str) -> Contender:
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        references=[BARE[processes]],
        targets=[ShareOfReference(0.7)] if processes > 1 and durability == "none" else (),
        measure=partial(measure_later, environment, processes, durability),
    )


def measure_bare(environment: Environment, processes: int) -> Sample:
    due_at = int(time.time() * 1000) + DELAY_MS
    ids = [build_task(due_at).id for _ in range(environment.sizes.queried)]
    with run_bare_handlers(environment, "query", processes=processes) as server:
        return measure_requests(environment, query_load(environment, server.url, ids), server)


def measure_later(environment: Environment, processes: int, durability: str) -> Sample:
    due_at = int(time.time() * 1000) + DELAY_MS
    tasks = [build_task(due_at) for _ in range(environment.sizes.queried)]
    with run_store(environment, durability) as store, run_api(environment, "serve", store, processes) as server:
        seed_store(store.url, tasks)
        return measure_requests(
            environment, query_load(environment, server.url, [task.id for task in tasks]), server, store
        )


def query_load(environment: Environment, url: str, ids: list[str]) -> Load:
    bodies = [json.dumps({"id": id}).encode() for id in ids]
    return Load(url=f"{url}/query", bodies=bodies, connections=CONNECTIONS, seconds=environment.sizes.load_s)


QUERY = Row(
    name="query",
    title="`POST /query`, 64 connections, each request another id",
    target="two processes: ≥ 0.7 of two bare handlers",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    measured_elsewhere=("Later (Go): 30,950/s [25,950 to 32,040]",),
    contenders=contenders,
)
