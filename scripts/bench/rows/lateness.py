"""Lateness: from a task's due time to the moment its callback arrives, for tasks spread evenly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from scripts.bench.daemons import an_api
from scripts.bench.environment import Setting
from scripts.bench.receivers import Arrival, a_light_receiver
from scripts.bench.results import AtMost, Contender, Goal, NeverEarly, NoneOf, Row, Sample, percentile
from scripts.bench.seed import FILLED_PER_S, a_task, fill
from scripts.bench.stores import a_store

PATIENCE_S = 30.0
FIGURES = ("p50", "p99")
BESIDES = ("most", "earliest", "twice")


def contenders(rate: int, p50: float, p99: float, setting: Setting) -> AbstractContextManager[list[Contender]]:
    return _contenders(setting, rate, [AtMost("p50", p50), AtMost("p99", p99)])


@contextmanager
def _contenders(setting: Setting, rate: int, goals: Sequence[Goal]) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name="later up",
            store=durability,
            goals=[*(goals if durability == "none" else ()), NeverEarly(), NoneOf("twice")],
            measure=partial(spread_evenly, setting, durability, rate, setting.scale.lateness_s),
        )
        for durability in setting.durabilities
    ]


def spread_evenly(setting: Setting, durability: str, rate: int, seconds: float) -> Sample:
    """So many tasks a second for some seconds."""
    count = int(rate * seconds)
    with (
        a_store(setting, durability) as store,
        a_light_receiver(setting) as receiver,
        an_api(setting, "up", store) as daemon,
    ):
        first = int((time.time() + setting.scale.lead_s + count / FILLED_PER_S) * 1000)
        dues = (first + index * 1000 // rate for index in range(count))
        fill(store.url, (a_task(due_at, callback=receiver.url, topic="lateness") for due_at in dues))
        arrivals = receiver.all_arrived(count, first / 1000 - time.time() + seconds + PATIENCE_S)
        daemon.check()
    return lateness(arrivals)


def lateness(arrivals: Sequence[Arrival]) -> Sample:
    """Percentiles over all tasks, by the first arrival of each."""
    first: dict[bytes, float] = {}
    for arrival in arrivals:
        first.setdefault(arrival.id, arrival.late_ms)
    late = sorted(first.values())
    return {
        "p50": percentile(late, 50),
        "p99": percentile(late, 99),
        "most": late[-1],
        "earliest": late[0],
        "twice": len(arrivals) - len(first),
    }


LATENESS_200 = Row(
    name="lateness-200",
    title="lateness, 200 tasks/s spread evenly",
    target="p50 ≤ 2 ms, p99 ≤ 8 ms, never early",
    figures=FIGURES,
    besides=BESIDES,
    elsewhere=(
        "APScheduler and Celery: p50 1 to 2, p99 7 to 9 ms",
        "BullMQ: 22 and 92 ms",
        "arq, tuned: 30 and 51 ms",
        "Later (Go): 3,030 and 3,880 ms",
    ),
    contenders=partial(contenders, 200, 2, 8),
)
LATENESS_1000 = Row(
    name="lateness-1000",
    title="lateness, 1,000 tasks/s spread evenly",
    target="p50 ≤ 3 ms, p99 ≤ 15 ms, never early",
    figures=FIGURES,
    besides=BESIDES,
    elsewhere=("Later (Go): unbounded above 200/s",),
    contenders=partial(contenders, 1000, 3, 15),
)
