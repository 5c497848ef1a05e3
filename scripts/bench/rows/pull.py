"""Consumers that claim tasks: one at a time, a hundred at a time, waiting for each, and waiting where none comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from later.api.claim_requests import MAX_TOPICS
from scripts.bench import arq_worker, bullmq_worker
from scripts.bench.api_calls import client_command, let_consumers_claim, read_metric, run_clients
from scripts.bench.environment import Environment
from scripts.bench.processes import run_process, tree_cpu_s, wait_until
from scripts.bench.programs import Program, run_api, run_bare_handlers
from scripts.bench.raw_pulls import PullCalls, time_pulls
from scripts.bench.raw_script import RawConnection
from scripts.bench.results import AtLeast, AtMost, Contender, Row, Sample, ShareOfReference, Target, percentile
from scripts.bench.rows.idle import measure_idle
from scripts.bench.rows.requests import CONNECTIONS
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

TWO_CALLS = "two calls of a bare handler"
ONE_CALL = "one call of a bare handler"
BULLMQ = "BullMQ, one worker"
ARQ = "arq, one worker"
RAW = "raw calls of the two scripts"
SeedJobs = Callable[[Environment, BenchStore, int], None]
FinishJobs = Callable[[Environment, BenchStore, int], Mapping[str, float]]
HUNDRED = 100
HUNDRED_CONNECTIONS = 4


class Consumers(NamedTuple):
    """Consumers on so many connections, which claim so many tasks, `at_a_time` in each call.

    Each claim says that the tasks before are done, or else they are acked by a call of their own.
    """

    tasks: int
    connections: int
    at_a_time: int
    is_done_by_claim: bool


@contextmanager
def single_contenders(environment: Environment) -> Iterator[list[Contender]]:
    by_two = Consumers(environment.sizes.claimed, CONNECTIONS, 1, is_done_by_claim=False)
    by_one = by_two._replace(is_done_by_claim=True)
    peers: dict[str, tuple[str, SeedJobs, FinishJobs]] = {
        BULLMQ: (bullmq_worker.install_bullmq(environment), bullmq_worker.seed_jobs, bullmq_worker.finish_jobs),
        ARQ: (arq_worker.install_arq(environment), arq_worker.seed_jobs, arq_worker.finish_jobs),
    }
    bare = {TWO_CALLS: by_two, ONE_CALL: by_one}
    others = [
        Contender(
            name=name,
            store="none",
            measure=partial(measure_peer, environment, by_two.tasks, seed, finish),
            skip_reason=skip_reason,
        )
        for name, (skip_reason, seed, finish) in peers.items()
    ]
    yield [
        *(Contender(name=name, measure=partial(measure_bare, environment, calls)) for name, calls in bare.items()),
        *others,
        *_later_contenders(
            environment, by_two, "later serve", [TWO_CALLS, *peers],
            [ShareOfReference(0.7), ShareOfReference(1, ARQ)],
        ),
        *_later_contenders(
            environment, by_one, "later serve, done by the next claim", [ONE_CALL, *peers],
            [ShareOfReference(0.7), ShareOfReference(1, BULLMQ), ShareOfReference(1, ARQ)],
        ),
    ]  # fmt: skip


@contextmanager
def hundred_contenders(environment: Environment) -> Iterator[list[Contender]]:
    consumers = Consumers(environment.sizes.queried, HUNDRED_CONNECTIONS, HUNDRED, is_done_by_claim=True)
    targets: list[Target] = [AtLeast("rate", 40_000), ShareOfReference(0.5)]
    yield [
        Contender(name=RAW, store="none", measure=partial(measure_raw, environment, consumers)),
        *_later_contenders(environment, consumers, "later serve", [RAW], targets),
    ]


def _later_contenders(
    environment: Environment,
    consumers: Consumers,
    name: str,
    references: Sequence[str],
    targets: Sequence[Target],
) -> list[Contender]:
    """Return later with each durability, beside these references."""
    return [
        Contender(
            name=name,
            store=durability,
            references=references,
            targets=targets if durability == "none" else (),
            measure=partial(measure_consumers, environment, consumers, durability),
        )
        for durability in environment.durabilities
    ]


def measure_consumers(environment: Environment, consumers: Consumers, durability: str) -> Sample:
    with run_store(environment, durability) as store, run_api(environment, "serve", store) as server:
        let_consumers_claim(server, "topics/jobs")
        run_clients(environment, "create", {"url": server.url, "tasks": consumers.tasks})
        store_before = tree_cpu_s(store.pid)
        sample = _consume(environment, consumers, server)
        return sample | {"store_cpu": (tree_cpu_s(store.pid) - store_before) * 1_000_000 / consumers.tasks}


def measure_bare(environment: Environment, consumers: Consumers) -> Sample:
    """Measure handlers that answer the same consumers with as much, and do nothing else."""
    with run_bare_handlers(environment, "claim", "ack") as server:
        return _consume(environment, consumers, server)


def _consume(environment: Environment, consumers: Consumers, server: Program) -> dict[str, float]:
    """Return the tasks per second, and the CPU time (ms) of 1,000 of them in the server and in the consumers."""
    before = server.cpu_s()
    result = run_clients(environment, "rate", {"url": server.url, **consumers._asdict()})
    per_1000 = 1_000_000 / result["tasks"]  # of seconds, in ms
    return {
        "rate": result["tasks"] / result["seconds"],
        "server_cpu": (server.cpu_s() - before) * per_1000,
        "consumer_cpu": result["cpu_s"] * per_1000,
    }


def measure_peer(environment: Environment, jobs: int, seed: SeedJobs, finish: FinishJobs) -> Sample:
    """Return the jobs per second, and the CPU time (ms) of 1,000 in the worker, which consumes them, and the store."""
    with run_store(environment, "none") as store:
        seed(environment, store, jobs)
        before = tree_cpu_s(store.pid)
        result = finish(environment, store, jobs)
        per_1000 = 1_000_000 / jobs  # of seconds, in ms
        return {
            "rate": jobs / result["seconds"],
            "server_cpu": result["cpu_s"] * per_1000,
            "store_cpu": (tree_cpu_s(store.pid) - before) * per_1000,
        }


def measure_raw(environment: Environment, consumers: Consumers) -> Sample:
    tasks, now = consumers.tasks, int(time.time() * 1000)
    with run_store(environment, "none") as store, RawConnection(store.socket) as connection:
        seed_store(store.url, (build_task(now, callback="", topic="jobs") for _ in range(tasks)))
        connection.load_scripts()
        before = tree_cpu_s(store.pid)
        seconds = time_pulls(connection, PullCalls("jobs", consumers.at_a_time), tasks, consumers.connections)
        return {"rate": tasks / seconds, "store_cpu": (tree_cpu_s(store.pid) - before) * 1_000_000 / tasks}


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
        let_consumers_claim(server, "topics/jobs")
        return _measure_waits(environment, server, ["jobs"])


def _measure_waits(environment: Environment, server: Program, topics: Sequence[str]) -> dict[str, float]:
    settings = {"url": server.url, "tasks": environment.sizes.waits, "topics": topics}
    waits = sorted(run_clients(environment, "waits", settings)["waits"])
    return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "most": waits[-1]}


@contextmanager
def waiters_contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name=f"later serve, claims of {topics_each} topic{'s' * (topics_each > 1)} each",
            store="none",
            targets=[AtMost("waiters_cpu", 2)],
            measure=partial(measure_waiters, environment, topics_each),
        )
        for topics_each in (1, MAX_TOPICS)
    ]


def measure_waiters(environment: Environment, topics_each: int) -> Sample:
    """Return the CPU time of a daemon while claims wait; that of `waiters_cpu` is without what it takes when idle.

    Besides, while they wait: the times from a create's answer to that of one more claim of as many topics, which waited
    for its task.
    """
    waiters, seconds = math.ceil(environment.sizes.waiters / topics_each), environment.sizes.waiters_s
    topics = [f"bench/wait-{topic}" for topic in range(topics_each)]
    with run_store(environment, "none") as store, run_api(environment, "serve", store) as server:
        let_consumers_claim(server, "namespaces/bench")
        idle = measure_idle(server, store, seconds)
        command = client_command("idle", {"url": server.url, "waiters": waiters, "topics_each": topics_each})
        with environment.temporary_folder() as folder, run_process(command, folder, "waiters") as process:
            wait_until(lambda: read_metric(server, "later_claim_waiters") == waiters, f"{waiters} claims wait", process)
            waiting = measure_idle(server, store, seconds)
            waits = _measure_waits(environment, server, topics)
            process.check()
    return {**waiting, "waiters_cpu": waiting["cpu"] - idle["cpu"], **waits}


rate_row = partial(Row, figures=("rate",), details=("server_cpu", "consumer_cpu", "store_cpu"))
PULL = rate_row(
    name="pull",
    title="25,000 tasks, 64 connections: `POST /claim` and `/ack` of each, or `/claim` with the one before as `done`",
    target="≥ 0.7 of as many calls of a bare handler by the same consumers; more than arq, and with one call for each "
    "more than BullMQ, 64 jobs at a time",
    contenders=single_contenders,
)
PULL_100 = rate_row(
    name="pull-100",
    title="100,000 tasks: `POST /claim` of 100, with the 100 before as `done`, 4 connections",
    target="≥ 40,000/s, ≥ 0.5 of the raw calls",
    contenders=hundred_contenders,
)
PULL_WAIT = Row(
    name="pull-wait",
    title="from a create's answer to that of the claim that waited for its task, on 8 connections each",
    target="p99 ≤ 5 ms in one process, ≤ 20 ms in two",
    figures=("p50", "p99", "most"),
    contenders=wait_contenders,
)
PULL_IDLE = Row(
    name="pull-idle",
    title="claims that wait on 1,000 topics where no task comes, each on one or on 32 of them; beside them one more as "
    "in `pull-wait`",
    target="≤ 2 % of a core more than without them",
    figures=("waiters_cpu", "cpu", "p50", "p99"),
    details=("store_busy", "commands", "round_trips"),
    contenders=waiters_contenders,
    runs=1,
)
