"""Consumers that claim tasks: one at a time, a hundred at a time, and one that waits for each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.request import Request, urlopen

from scripts.bench.environment import Environment
from scripts.bench.processes import module_command, run_process, tree_cpu_s
from scripts.bench.programs import Program, run_api
from scripts.bench.results import AtLeast, AtMost, Contender, Row, Sample, ShareOfReference, Target, percentile
from scripts.bench.rows.create import measure_bare
from scripts.bench.rows.requests import CONNECTIONS
from scripts.bench.stores import run_store

TWO_CALLS = "two calls of a bare handler"
WITHIN_S = 120.0
PROPAGATION_S = 2.5


@contextmanager
def single_contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(name=TWO_CALLS, measure=lambda: {"rate": measure_bare(environment)["rate"] / 2}),
        *_later_contenders(environment, CONNECTIONS, 1, [ShareOfReference(0.7)], [TWO_CALLS]),
    ]


@contextmanager
def hundred_contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield _later_contenders(environment, 4, 100, [AtLeast("rate", 40_000)], [])


def _later_contenders(
    environment: Environment, connections: int, at_a_time: int, targets: Sequence[Target], references: Sequence[str]
) -> list[Contender]:
    return [
        Contender(
            name="later serve",
            store=durability,
            references=references,
            targets=targets if durability == "none" else (),
            measure=partial(measure_consumers, environment, durability, connections, at_a_time),
        )
        for durability in environment.durabilities
    ]


def measure_consumers(environment: Environment, durability: str, connections: int, at_a_time: int) -> Sample:
    """Return the tasks per second, and the CPU time (ms) of 1,000 of them."""
    tasks = environment.sizes.queried if at_a_time > 1 else environment.sizes.queried // 4
    with run_store(environment, durability) as store, run_api(environment, "serve", store) as server:
        _pull(server)
        _run_consumers(environment, "create", {"url": server.url, "tasks": tasks})
        server_before, store_before = server.cpu_s(), tree_cpu_s(store.pid)
        settings = {"url": server.url, "connections": connections, "at_a_time": at_a_time}
        result = _run_consumers(environment, "rate", settings)
        per_1000 = 1_000_000 / tasks  # of seconds, in ms
        return {
            "rate": result["tasks"] / result["seconds"],
            "server_cpu": (server.cpu_s() - server_before) * per_1000,
            "store_cpu": (tree_cpu_s(store.pid) - store_before) * per_1000,
        }


@contextmanager
def wait_contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name="later serve" if processes == 1 else f"later serve --processes {processes}",
            store="none",
            targets=[AtMost("p99", 5 if processes == 1 else 20)],
            measure=partial(measure_waits, environment, processes),
        )
        for processes in (1, 2)
    ]


def measure_waits(environment: Environment, processes: int) -> Sample:
    """Return the times from a create's answer to that of the claim that waited for its task."""
    with run_store(environment, "none") as store, run_api(environment, "serve", store, processes) as server:
        _pull(server)
        settings = {"url": server.url, "tasks": environment.sizes.waits}
        waits = sorted(_run_consumers(environment, "waits", settings)["waits"])
        return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "most": waits[-1]}


def _pull(server: Program) -> None:
    """Let the topic's tasks be claimed, and wait until every process knows it."""
    request = Request(f"{server.url}/topics/jobs/policy", json.dumps({"deliver": "pull"}).encode(), method="PATCH")
    with urlopen(request, timeout=WITHIN_S):
        time.sleep(PROPAGATION_S)


def _run_consumers(environment: Environment, what: str, settings: Mapping[str, object]) -> dict[str, Any]:
    command = module_command("consumer_load", what, json.dumps(settings))
    with environment.temporary_folder() as folder, run_process(command, folder, "consumers") as process:
        process.wait_for_end(WITHIN_S)
        return dict(json.loads(process.log.read_text().splitlines()[-1]))


PULL = Row(
    name="pull",
    title="`POST /claim` and `/ack` of one task, 64 connections",
    target="≥ 0.7 of two calls of the bare handler",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    contenders=single_contenders,
)
PULL_100 = Row(
    name="pull-100",
    title="`POST /claim` of 100 tasks, with the 100 before as `done`, 4 connections",
    target="≥ 40,000/s",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    contenders=hundred_contenders,
)
PULL_WAIT = Row(
    name="pull-wait",
    title="from a create's answer to that of the claim that waited for its task",
    target="p99 ≤ 5 ms in one process, ≤ 20 ms in two",
    figures=("p50", "p99", "most"),
    contenders=wait_contenders,
)
