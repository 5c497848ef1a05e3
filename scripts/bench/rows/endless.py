"""Answers without an end: how long a query takes while receivers write on and on, one call at a time or fifty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.api_calls import read_metric, run_clients
from scripts.bench.environment import Environment
from scripts.bench.programs import run_api
from scripts.bench.receivers import run_faulty_receiver
from scripts.bench.results import AtMost, BenchError, Contender, Row, Sample, percentile
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import run_store

RECEIVERS = 50
"""As many as there are calls at a time, if there are many: all of what a process can do goes into their answers."""
TASKS_PER_S = 6_000
"""More than the daemon gives up answers of."""
HEAD_START_S = 0.5
QUERIED_DUE_MS = 3_600_000
ENDED = ('later_deliveries_total{outcome="done"}', 'later_deliveries_total{outcome="failed"}')
CASES = {
    "interim answers": "interim",
    "blank lines": "blank-lines",
    "chunks of one byte": "chunks",
}
"""The path at which the receivers are called, by name."""


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    cases = [("no receiver", "", 1)]
    for slots in (1, RECEIVERS):
        calls = "one call at a time" if slots == 1 else f"{slots} calls at a time"
        cases += [(f"{name}, {calls}", path, slots) for name, path in CASES.items()]
    yield [
        Contender(
            name=f"later up, {name}",
            store=environment.durabilities[0],
            targets=[AtMost("p99", 5)] if path and slots == 1 else (),
            measure=partial(measure_queries, environment, path, slots),
        )
        for name, path, slots in cases
    ]


def measure_queries(environment: Environment, path: str, slots: int) -> Sample:
    """Measure the queries of one client, one after another, while each of the slots has a call to this path."""
    seconds = environment.sizes.lateness_s
    tasks = int(TASKS_PER_S * (seconds + HEAD_START_S)) if path else 0
    with (
        run_store(environment, environment.durabilities[0]) as store,
        run_faulty_receiver(environment) as port,
        run_api(environment, "up", store, variables={"LATER_CONCURRENCY": str(slots)}) as up,
    ):
        due_at = int((time.time() + environment.sizes.lead_s + tasks / SEEDED_PER_S) * 1000)
        queried = build_task(due_at + QUERIED_DUE_MS)
        hosts = (f"127.3.0.{number % RECEIVERS + 1}" for number in range(tasks))
        endless = (build_task(due_at, callback=f"http://{host}:{port}/{path}", topic=f"at-{host}") for host in hosts)
        seed_store(store.url, (queried, *endless))
        time.sleep(max(due_at / 1000 + HEAD_START_S - time.time(), 0))
        before = sum(read_metric(up, series) for series in ENDED)
        settings = {"url": up.url, "id": queried.id, "seconds": seconds}
        times = sorted(run_clients(environment, "queries", settings)["times"])
        after = sum(read_metric(up, series) for series in ENDED)
        up.check()
    if path and not before < after < tasks:
        raise BenchError(f"{before:g} of {tasks} calls had ended before, and {after:g} afterwards")
    figures = {"p50": percentile(times, 50), "p99": percentile(times, 99), "most": times[-1]}
    return {**figures, "endless_calls": (after - before) / seconds}


ENDLESS = Row(
    name="endless",
    title="wall time of `POST /query` from one client, while receivers answer without an end",
    target="one call at a time: p99 ≤ 5 ms (the longest is the machine's, also without a receiver)",
    figures=("p50", "p99", "most"),
    details=("endless_calls",),
    contenders=contenders,
)
