"""Lateness: the time from a task's due time to the arrival of its callback, for tasks spread evenly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.programs import run_api
from scripts.bench.receivers import Arrival, run_light_receiver
from scripts.bench.results import AlwaysZero, AtMost, Contender, NeverEarly, Row, Sample, Target, percentile
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import run_store

TIMEOUT_S = 30.0
FIGURES = ("p50", "p99")
DETAILS = ("most", "earliest", "twice")


def contenders(
    rate: int, bounds: Mapping[str, float], environment: Environment
) -> AbstractContextManager[list[Contender]]:
    return _contenders(environment, rate, [AtMost(figure, bound) for figure, bound in bounds.items()])


@contextmanager
def _contenders(environment: Environment, rate: int, percentile_targets: Sequence[Target]) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name="later up",
            store=durability,
            targets=[*(percentile_targets if durability == "none" else ()), NeverEarly(), AlwaysZero("twice")],
            measure=partial(measure_lateness, environment, durability, rate, environment.sizes.lateness_s),
        )
        for durability in environment.durabilities
    ]


def measure_lateness(environment: Environment, durability: str, rate: int, seconds: float) -> Sample:
    """Measure `rate` tasks per second for some seconds."""
    count = int(rate * seconds)
    with (
        run_store(environment, durability) as store,
        run_light_receiver(environment) as receiver,
        run_api(environment, "up", store) as daemon,
    ):
        first = int((time.time() + environment.sizes.lead_s + count / SEEDED_PER_S) * 1000)
        dues = (first + index * 1000 // rate for index in range(count))
        seed_store(store.url, (build_task(due_at, callback=receiver.url, topic="lateness") for due_at in dues))
        arrivals = receiver.wait_for_arrivals(count, first / 1000 - time.time() + seconds + TIMEOUT_S)
        daemon.check()
    return lateness_figures(arrivals)


def lateness_figures(arrivals: Sequence[Arrival]) -> Sample:
    """Return percentiles of the lateness of each task's first arrival, and the number of duplicates."""
    first: dict[bytes, float] = {}
    for arrival in arrivals:
        first.setdefault(arrival.id, arrival.late_ms)
    latenesses = sorted(first.values())
    return {
        "p50": percentile(latenesses, 50),
        "p99": percentile(latenesses, 99),
        "most": latenesses[-1],
        "earliest": latenesses[0],
        "twice": len(arrivals) - len(first),
    }


LATENESS_200 = Row(
    name="lateness-200",
    title="lateness, 200 tasks/s spread evenly",
    target="p99 ≤ 3 ms, never early",
    figures=FIGURES,
    details=DETAILS,
    measured_elsewhere=(
        "APScheduler and Celery: p50 1 to 2, p99 7 to 9 ms",
        "BullMQ: 22 and 92 ms",
        "arq, tuned: 30 and 51 ms",
        "Later (Go): 3,030 and 3,880 ms",
    ),
    contenders=partial(contenders, 200, {"p99": 3}),
)
LATENESS_1000 = Row(
    name="lateness-1000",
    title="lateness, 1,000 tasks/s spread evenly",
    target="p99 ≤ 3 ms, never early",
    figures=FIGURES,
    details=DETAILS,
    measured_elsewhere=("Later (Go): unbounded above 200/s",),
    contenders=partial(contenders, 1000, {"p99": 3}),
)
LATENESS_4000 = Row(
    name="lateness-4000",
    title="lateness, 4,000 tasks/s spread evenly",
    target="p99 ≤ 4 ms, never early",
    figures=FIGURES,
    details=DETAILS,
    contenders=partial(contenders, 4000, {"p99": 4}),
)
