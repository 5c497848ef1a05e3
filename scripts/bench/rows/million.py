"""A million tasks due in the same second: each delivered once, in little memory, with no other topic held up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from later.core.task import Task
from scripts.bench.daemons import a_worker
from scripts.bench.environment import Setting
from scripts.bench.processes import family, peak_resident_bytes
from scripts.bench.receivers import Arrival, Receiver, a_receiver
from scripts.bench.results import AtMost, Contender, NoneOf, Row, Sample
from scripts.bench.seed import FILLED_PER_S, a_task, fill
from scripts.bench.stores import a_store

OTHERS_PER_S = 5
"""Tasks a second of the other topic."""
SLOWEST = 2_000
"""Deliveries a second: slower ones are not waited for."""
SMALLER = 5
"""A store that writes to the disk gets so many times fewer tasks: the row would take a quarter of an hour."""


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [_ours(setting, durability) for durability in setting.durabilities]


def _ours(setting: Setting, durability: str) -> Contender:
    tasks = setting.scale.million // (1 if durability == "none" else SMALLER)
    return Contender(
        name=f"later worker, {tasks:,} tasks",
        store=durability,
        goals=[NoneOf("early"), NoneOf("twice"), AtMost("resident", 200), AtMost("others_most", 1000)],
        measure=partial(ours, setting, durability, tasks),
    )


def ours(setting: Setting, durability: str, tasks: int) -> Sample:
    with (
        a_store(setting, durability) as store,
        a_receiver(setting) as receiver,
        a_worker(setting, store) as worker,
    ):
        due_at = int((time.time() + setting.scale.lead_s + tasks / FILLED_PER_S) * 1000)
        many = (a_task(due_at + number % 1000, callback=receiver.url, topic="many") for number in range(tasks))
        others = _others(due_at, tasks, receiver)
        fill(store.url, chain(others, many))
        arrivals = _all_arrived(receiver, tasks, others, due_at)
        resident = max(peak_resident_bytes(pid) for running in worker.pids for pid in family(running))
        worker.check()
    return _counted(arrivals, others, due_at) | {"resident": resident / 2**20}


def _others(due_at: int, tasks: int, receiver: Receiver) -> list[Task]:
    """Tasks of another topic, from before the many until long after the last of them."""
    count = int((tasks / SLOWEST + 2) * OTHERS_PER_S)
    dues = (due_at - 1000 + number * 1000 // OTHERS_PER_S for number in range(count))
    return [a_task(due, callback=receiver.url, topic="few") for due in dues]


def _all_arrived(receiver: Receiver, tasks: int, others: Sequence[Task], due_at: int) -> list[Arrival]:
    """All arrivals, once the many have come: how many of the others are due until then is not known before."""
    few = {task.id.encode() for task in others}
    arrivals = receiver.all_arrived(tasks, due_at / 1000 - time.time() + tasks / SLOWEST)
    while (missing := tasks - len({arrival.id for arrival in arrivals} - few)) > 0:
        arrivals = receiver.all_arrived(len({arrival.id for arrival in arrivals}) + missing, tasks / SLOWEST)
    return arrivals


def _counted(arrivals: Sequence[Arrival], others: Sequence[Task], due_at: int) -> dict[str, float]:
    due = {task.id.encode(): task.execute_at for task in others}
    many = [arrival for arrival in arrivals if arrival.id not in due]
    few = {arrival.id: arrival for arrival in arrivals if arrival.id in due}
    last_ms = max(arrival.at_ms for arrival in many)
    times = {id: few[id].at_ms if id in few else last_ms for id, at in due.items() if at < last_ms}
    return {
        "rate": len({arrival.id for arrival in many}) / (last_ms - due_at) * 1000,
        "twice": len(many) - len({arrival.id for arrival in many}),
        "early": sum(arrival.late_ms < 0 for arrival in arrivals),
        "others_most": max(at - due[id] for id, at in times.items()),
    }


MILLION = Row(
    name="million",
    title="a million tasks due in the same second, and 5 tasks/s of another topic meanwhile",
    target="all delivered once, the worker's memory under 200 MB throughout, the other topic at most 1 s late",
    figures=("rate", "resident", "others_most"),
    besides=("early", "twice"),
    contenders=contenders,
    runs=1,
)
