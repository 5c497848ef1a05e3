"""A million tasks due in the same second: delivered once each, in little memory, without delaying other topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from later.core.task import Task
from scripts.bench.environment import Environment
from scripts.bench.processes import peak_resident_bytes, process_tree
from scripts.bench.programs import run_worker
from scripts.bench.receivers import Arrival, Receiver, run_receiver
from scripts.bench.results import AlwaysZero, AtMost, Contender, Row, Sample
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import run_store

OTHERS_PER_S = 5
"""Tasks per second of the other topic."""
MIN_RATE = 2_000
"""Deliveries per second; at a lower rate the row times out."""
DISK_DIVISOR = 5
"""A store that writes to disk gets a million divided by this; otherwise the row would take 15 minutes."""


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [_later_contender(environment, durability) for durability in environment.durabilities]


def _later_contender(environment: Environment, durability: str) -> Contender:
    tasks = environment.sizes.million // (1 if durability == "none" else DISK_DIVISOR)
    return Contender(
        name=f"later worker, {tasks:,} tasks",
        store=durability,
        targets=[AlwaysZero("early"), AlwaysZero("twice"), AtMost("resident", 100), AtMost("others_most", 1000)],
        measure=partial(measure_later, environment, durability, tasks),
    )


def measure_later(environment: Environment, durability: str, tasks: int) -> Sample:
    with (
        run_store(environment, durability) as store,
        run_receiver(environment) as receiver,
        run_worker(environment, store) as worker,
    ):
        due_at = int((time.time() + environment.sizes.lead_s + tasks / SEEDED_PER_S) * 1000)
        many = (build_task(due_at + number % 1000, callback=receiver.url, topic="many") for number in range(tasks))
        others = _build_other_topic(due_at, tasks, receiver)
        seed_store(store.url, chain(others, many))
        arrivals = _wait_for_arrivals(receiver, tasks, others, due_at)
        resident = max(peak_resident_bytes(pid) for parent in worker.pids for pid in process_tree(parent))
        worker.check()
    return _figures(arrivals, others, due_at) | {"resident": resident / 2**20}


def _build_other_topic(due_at: int, tasks: int, receiver: Receiver) -> list[Task]:
    """Return tasks of another topic, due from a second before the million tasks until long after them."""
    count = int((tasks / MIN_RATE + 2) * OTHERS_PER_S)
    dues = (due_at - 1000 + number * 1000 // OTHERS_PER_S for number in range(count))
    return [build_task(due, callback=receiver.url, topic="few") for due in dues]


def _wait_for_arrivals(receiver: Receiver, tasks: int, others: Sequence[Task], due_at: int) -> list[Arrival]:
    """Wait until the million tasks have arrived and return all arrivals.

    How many tasks of the other topic arrive until then is not known beforehand.
    """
    few = {task.id.encode() for task in others}
    arrivals = receiver.wait_for_arrivals(tasks, due_at / 1000 - time.time() + tasks / MIN_RATE)
    while (missing := tasks - len({arrival.id for arrival in arrivals} - few)) > 0:
        arrivals = receiver.wait_for_arrivals(len({arrival.id for arrival in arrivals}) + missing, tasks / MIN_RATE)
    return arrivals


def _figures(arrivals: Sequence[Arrival], others: Sequence[Task], due_at: int) -> dict[str, float]:
    due = {task.id.encode(): task.execute_at for task in others}
    many = [arrival for arrival in arrivals if arrival.id not in due]
    few = {arrival.id: arrival for arrival in arrivals if arrival.id in due}
    last_ms = max(arrival.at_ms for arrival in many)
    arrived_ms = {id: few[id].at_ms if id in few else last_ms for id, at in due.items() if at < last_ms}
    return {
        "rate": len({arrival.id for arrival in many}) / (last_ms - due_at) * 1000,
        "twice": len(many) - len({arrival.id for arrival in many}),
        "early": sum(arrival.late_ms < 0 for arrival in arrivals),
        "others_most": max(at - due[id] for id, at in arrived_ms.items()),
    }


MILLION = Row(
    name="million",
    title="a million tasks due in the same second, and 5 tasks/s of another topic meanwhile",
    target="all delivered once, the worker's memory under 100 MB throughout, the other topic at most 1 s late",
    figures=("rate", "resident", "others_most"),
    details=("early", "twice"),
    contenders=contenders,
    runs=1,
)
