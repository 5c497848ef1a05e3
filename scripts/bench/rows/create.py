"""Single creates: one task per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.load import Load
from scripts.bench.programs import run_api, run_bare_handlers
from scripts.bench.results import AtLeast, Contender, Row, Sample, ShareOfReference, Target
from scripts.bench.rows.requests import CONNECTIONS, measure_requests
from scripts.bench.stores import run_store

BODY = b'{"topic":"order","delay":3600,"retry":3,"callback":"http://127.0.0.1:8888/success","content":"hello"}'
BARE = "bare handler"


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(name=BARE, measure=lambda: measure_bare(environment)),
        *(_later_contender(environment, 1, durability) for durability in environment.durabilities),
        *(_later_contender(environment, 2, durability) for durability in environment.durabilities),
    ]


def _later_contender(environment: Environment, processes: int, durability: str) -> Contender:
    targets: dict[int, Sequence[Target]] = {
        1: [ShareOfReference(0.75)],
        2: [AtLeast("rate", 25_000)],
    }
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        references=[BARE] if processes == 1 else (),
        targets=targets[processes] if durability == "none" else (),
        measure=partial(measure_later, environment, processes, durability),
    )


def measure_bare(environment: Environment) -> Sample:
    with run_bare_handlers(environment, "create") as server:
        return measure_requests(environment, create_load(environment, server.url), server)


def measure_later(environment: Environment, processes: int, durability: str) -> Sample:
    with run_store(environment, durability) as store, run_api(environment, "serve", store, processes) as server:
        return measure_requests(environment, create_load(environment, server.url), server, store)


def create_load(environment: Environment, url: str) -> Load:
    return Load(url=f"{url}/create", bodies=[BODY], connections=CONNECTIONS, seconds=environment.sizes.load_s)


CREATE = Row(
    name="create",
    title="single `POST /create`, 64 connections",
    target="one process: ≥ 0.75 of the bare handler; two: ≥ 25,000/s, more than Later (Go)",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    measured_elsewhere=("Later (Go): 23,900/s [21,100 to 25,700], both cores full",),
    contenders=contenders,
)
