"""Deliveries of tasks due at the same instant: the time until the last has arrived, beside BullMQ and bare loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from scripts.bench.bullmq_worker import install_bullmq
from scripts.bench.deliveries import (
    ONCE,
    DueTogether,
    delivery_row,
    measure_bullmq,
    measure_later,
    measure_loops,
    pair_contender,
)
from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.pairs import pair_row
from scripts.bench.receivers import DEFAULT_LISTENER, Listener, run_receiver
from scripts.bench.results import Contender, Sample, ShareOfReference, Target

BARE = {1: "bare loop of aiohttp", 2: "two bare loops of aiohttp"}
BULLMQ = {1: "BullMQ, one worker", 2: "BullMQ, two workers"}
LEAN = "lean loop"
BARE_HTTPS = "bare loop of aiohttp, https"
NEW = "a connection for each call"
FEW_PAIRS = 2
FEW_STARTS = 3
"""Where a turn takes long, and where a tenth more or less is not to be seen."""
BARE_CONNECTIONS = 256
LEAN_CONNECTIONS = 192
BODY = b'{"id":"35adbde5-77c4-4d65-adac-0082d91f2554","topic":"order","content":"hello"}'


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    tasks, skip_reason = environment.sizes.due_together, install_bullmq(environment)
    bare = partial(measure_loops, environment, "bare_poster", BARE_CONNECTIONS, tasks)
    yield [
        Contender(name="the receiver alone", measure=partial(measure_receiver, environment)),
        Contender(
            name=LEAN,
            measure=partial(measure_loops, environment, "lean_poster", LEAN_CONNECTIONS, tasks, 1, DEFAULT_LISTENER),
        ),
        *(Contender(name=BARE[n], measure=partial(bare, n, DEFAULT_LISTENER)) for n in BARE),
        *(
            Contender(
                name=BULLMQ[n],
                store="none",
                measure=partial(measure_bullmq, environment, tasks, n),
                references=[BARE[n]],
                skip_reason=skip_reason,
            )
            for n in BULLMQ
        ),
        *(_later_contender(environment, 1, durability) for durability in environment.durabilities),
        *(_later_contender(environment, 2, durability) for durability in environment.durabilities),
    ]


def _later_contender(environment: Environment, processes: int, durability: str) -> Contender:
    shares: dict[int, Sequence[Target]] = {
        1: [ShareOfReference(1.7, BARE[1]), ShareOfReference(2.5, BULLMQ[1])],
        2: [ShareOfReference(2, BULLMQ[2])],
    }
    due = DueTogether(tasks=environment.sizes.due_together)
    return Contender(
        name="later worker" if processes == 1 else f"later worker --processes {processes}",
        store=durability,
        references=[BARE[processes], BULLMQ[processes], *([LEAN] if processes == 1 else [])],
        targets=[*(shares[processes] if durability == "none" else ()), *ONCE],
        measure=partial(measure_later, environment, due, processes, durability),
    )


def measure_receiver(environment: Environment) -> Sample:
    """Measure the receiver alone: it must be far faster than any delivery."""
    with run_receiver(environment) as receiver:
        load = Load(url=receiver.url, bodies=[BODY], connections=BARE_CONNECTIONS, seconds=1.0)
        before = receiver.cpu_s()
        result = run_load(environment, load)
        return {"rate": result.rate, "receiver_cpu": (receiver.cpu_s() - before) * 1_000_000 / result.requests}


@contextmanager
def https_contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield deliveries by https, in turns with http, on kept connections and on one for each call."""
    tasks, tls = environment.sizes.due_together, Listener(tls=True)
    http = DueTogether(tasks=tasks)
    new_http = replace(http, listener=Listener(keep_alive=False))
    new_https = replace(http, listener=Listener(tls=True, keep_alive=False))
    yield [
        Contender(
            name=BARE_HTTPS,
            measure=partial(measure_loops, environment, "bare_poster", BARE_CONNECTIONS, tasks, 1, tls),
            skip_reason=tls.why_missing(environment),
        ),
        pair_contender(
            environment,
            "https beside http",
            http,
            replace(http, listener=tls),
            bound=0.8,
            pairs=FEW_PAIRS,
            references=[BARE_HTTPS],
        ),
        pair_contender(environment, f"http, {NEW}, beside kept ones", http, new_http, pairs=FEW_PAIRS),
        pair_contender(environment, f"https, {NEW}, beside http", new_http, new_https, pairs=FEW_PAIRS),
    ]


@contextmanager
def topics_contenders(environment: Environment) -> Iterator[list[Contender]]:
    one, *numbers = environment.sizes.topics
    due = DueTogether(tasks=environment.sizes.due_on_topics, topics=one)
    yield [
        pair_contender(
            environment,
            f"{number:,} topics beside one",
            due,
            replace(due, topics=number),
            bound=0.6 if number == max(numbers) else None,
            pairs=FEW_PAIRS,
        )
        for number in numbers
    ]


@contextmanager
def origins_contenders(environment: Environment) -> Iterator[list[Contender]]:
    one, *numbers = environment.sizes.origins
    due = DueTogether(tasks=environment.sizes.due_together, listener=Listener(origins=one))
    yield [
        pair_contender(
            environment,
            f"{number:,} origins beside one",
            due,
            replace(due, listener=Listener(origins=number)),
            pairs=FEW_PAIRS,
        )
        for number in numbers
    ]


DELIVER = delivery_row(
    name="deliver",
    title="20,000 tasks due at the same instant T: delivered, from T to the last",
    target="one process: ≥ 1.7 of the bare loop, ≥ 2.5 of BullMQ with one worker; two: ≥ 2 of BullMQ with two",
    measured_elsewhere=("Later (Go): 200/s", "saq: 2,320/s", "arq: 1,570/s", "Celery: 975/s"),
    contenders=contenders,
)
DELIVER_HTTPS = pair_row(
    name="deliver-https",
    title="20,000 tasks due at the same instant, in turns: by https and on new connections, beside http on kept ones",
    target="https ≥ 0.8 of http on kept connections",
    figures=("rate", "ratio", "cpu_ratio"),
    contenders=https_contenders,
    runs=FEW_STARTS,
)
DELIVER_TOPICS = pair_row(
    name="deliver-topics",
    title="100,000 tasks due at the same instant, in turns: on 1,000 and 100,000 topics beside one",
    target="100,000 topics ≥ 0.6 of one",
    contenders=topics_contenders,
    runs=FEW_STARTS,
)
DELIVER_ORIGINS = pair_row(
    name="deliver-origins",
    title="20,000 tasks due at the same instant, in turns: to 10,000 origins beside one",
    target="all delivered once",
    contenders=origins_contenders,
    runs=FEW_STARTS,
)
