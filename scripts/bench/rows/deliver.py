"""Deliveries of tasks due at the same instant: the time until the last has arrived, beside BullMQ and bare loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from scripts.bench.bullmq_worker import install_bullmq
from scripts.bench.deliveries import (
    ONCE,
    DueTogether,
    delivery_row,
    measure_bullmq,
    measure_later,
    measure_loops,
)
from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.receivers import DEFAULT_LISTENER, Listener, run_receiver
from scripts.bench.results import Contender, Sample, ShareOfReference, Target

BARE = {1: "bare loop of aiohttp", 2: "two bare loops of aiohttp"}
BULLMQ = {1: "BullMQ, one worker", 2: "BullMQ, two workers"}
LEAN = "lean loop"
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
    """Yield later over http and https, on kept connections and on one for each call, and aiohttp on the kept ones."""
    tasks, references = environment.sizes.due_together, dict[str, list[str]]()
    listeners = {
        "http": Listener(),
        "https": Listener(tls=True),
        "http, a connection for each call": Listener(keep_alive=False),
        "https, a connection for each call": Listener(tls=True, keep_alive=False),
    }
    bare = partial(measure_loops, environment, "bare_poster", BARE_CONNECTIONS, tasks, 1)
    loops = [
        Contender(name=f"{BARE[1]}, {name}", measure=partial(bare, each), skip_reason=each.why_missing(environment))
        for name, each in list(listeners.items())[:2]
    ]
    for name in listeners:
        references[name] = [*([f"{BARE[1]}, {name}"] if name in ("http", "https") else []), "later worker, http"]
    references["http"] = references["http"][:1]
    yield [
        *loops,
        *(
            Contender(
                name=f"later worker, {name}",
                store=environment.durabilities[0],
                references=references[name],
                targets=[*([ShareOfReference(0.8, "later worker, http")] if name == "https" else ()), *ONCE],
                measure=partial(
                    measure_later, environment, DueTogether(tasks=tasks, listener=each), 1, environment.durabilities[0]
                ),
                skip_reason=each.why_missing(environment),
            )
            for name, each in listeners.items()
        ),
    ]


def topics_contenders(environment: Environment) -> AbstractContextManager[list[Contender]]:
    tasks = environment.sizes.due_on_topics
    dues = {topics: DueTogether(tasks=tasks, topics=topics) for topics in environment.sizes.topics}
    return _by_number(environment, dues, "topic", 0.6)


def origins_contenders(environment: Environment) -> AbstractContextManager[list[Contender]]:
    tasks = environment.sizes.due_together
    dues = {
        origins: DueTogether(tasks=tasks, listener=Listener(origins=origins)) for origins in environment.sizes.origins
    }
    return _by_number(environment, dues, "origin", None)


@contextmanager
def _by_number(
    environment: Environment, dues: dict[int, DueTogether], what: str, share: float | None
) -> Iterator[list[Contender]]:
    """Yield later with different numbers of something, compared with the first, which is 1."""
    names = {number: f"later worker, {number:,} {what}{'' if number == 1 else 's'}" for number in dues}
    yield [
        Contender(
            name=names[number],
            store=environment.durabilities[0],
            references=[] if number == 1 else [names[1]],
            targets=[*([ShareOfReference(share)] if share and number == max(dues) else ()), *ONCE],
            measure=partial(measure_later, environment, due, 1, environment.durabilities[0]),
        )
        for number, due in dues.items()
    ]


DELIVER = delivery_row(
    name="deliver",
    title="20,000 tasks due at the same instant T: delivered, from T to the last",
    target="one process: ≥ 1.7 of the bare loop, ≥ 2.5 of BullMQ with one worker; two: ≥ 2 of BullMQ with two",
    measured_elsewhere=("Later (Go): 200/s", "saq: 2,320/s", "arq: 1,570/s", "Celery: 975/s"),
    contenders=contenders,
)
DELIVER_HTTPS = delivery_row(
    name="deliver-https",
    title="20,000 tasks due at the same instant, by http and https",
    target="https ≥ 0.8 of http on kept connections",
    contenders=https_contenders,
)
DELIVER_TOPICS = delivery_row(
    name="deliver-topics",
    title="100,000 tasks due at the same instant, on 1, 1,000 and 100,000 topics",
    target="100,000 topics ≥ 0.6 of one",
    contenders=topics_contenders,
)
DELIVER_ORIGINS = delivery_row(
    name="deliver-origins",
    title="20,000 tasks due at the same instant, to 1 and 10,000 origins",
    target="all delivered once",
    contenders=origins_contenders,
)
