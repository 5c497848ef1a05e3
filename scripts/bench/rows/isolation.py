"""Receivers isolated from each other: how late a well one is called while others of its topic hang or fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.programs import run_worker
from scripts.bench.receivers import run_faulty_receiver, run_light_receiver
from scripts.bench.results import AtMost, Contender, Row, Sample
from scripts.bench.rows.lateness import DETAILS, FIGURES, TIMEOUT_S, lateness_figures
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import run_store

RATE = 200
"""Tasks per second of the well receiver."""
HEAD_START_MS = 1000
"""How long the faulty receivers are called before the well one is."""
MAX_P99_MS = 500
CASES: dict[str, tuple[int, str]] = {
    "no other host": (0, ""),
    "a host that hangs": (1, "hang"),
    "40 hosts that hang": (40, "hang"),
    "1,000 hosts that hang": (1000, "hang"),
    "a host that answers 503, Retry-After: 3600": (1, "busy"),
}
"""The number of faulty hosts and the path at which they are called, by name."""


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name=f"later worker, {name}",
            store=environment.durabilities[0],
            targets=[AtMost("p99", MAX_P99_MS)],
            measure=partial(measure_isolation, environment, hosts, path),
        )
        for name, (hosts, path) in CASES.items()
    ]


def measure_isolation(environment: Environment, faulty_hosts: int, path: str) -> Sample:
    """Measure the lateness of one receiver's tasks, of a topic of which many others are due at the faulty hosts."""
    seconds, faulty = environment.sizes.lateness_s, environment.sizes.faulty if faulty_hosts else 0
    count = int(RATE * seconds)
    with (
        run_store(environment, environment.durabilities[0]) as store,
        run_light_receiver(environment) as receiver,
        run_faulty_receiver(environment) as port,
        run_worker(environment, store) as worker,
    ):
        preparation_s = environment.sizes.lead_s + (count + faulty) / SEEDED_PER_S
        first = int((time.time() + preparation_s) * 1000) + HEAD_START_MS
        urls = [f"http://127.2.{n // 250}.{n % 250 + 1}:{port}/{path}" for n in range(faulty_hosts)]
        others = (build_task(first - HEAD_START_MS, callback=urls[n % len(urls)]) for n in range(faulty))
        seed_store(store.url, others)
        seed_store(store.url, (build_task(first + n * 1000 // RATE, callback=receiver.url) for n in range(count)))
        arrivals = receiver.wait_for_arrivals(count, first / 1000 - time.time() + seconds + TIMEOUT_S)
        worker.check()
    return lateness_figures(arrivals)


ISOLATION = Row(
    name="isolation",
    title="lateness of 200 tasks/s to a well host, in a topic with 10,000 due to hosts that are not",
    target="p99 < 500 ms",
    figures=FIGURES,
    details=DETAILS,
    contenders=contenders,
)
