"""Single creates at each level of durability, on a store with a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.programs import run_api
from scripts.bench.results import Contender, Row, Sample, ShareOfReference, Target
from scripts.bench.rows.create import create_load
from scripts.bench.rows.requests import measure_requests
from scripts.bench.stores import run_replicated_store

PRIMARY = "primary"
STORES = {PRIMARY: "everysec", "replica": "everysec", "disk": "always", "replica-disk": "always"}
"""How the store and its replica sync for each level: `disk` is offered only under `always`."""
SHARES = {"replica": 0.6, "disk": 0.55, "replica-disk": 0.4}


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [_contender(environment, level) for level in STORES]


def _contender(environment: Environment, level: str) -> Contender:
    targets: Sequence[Target] = [ShareOfReference(SHARES[level])] if level in SHARES else []
    return Contender(
        name=level,
        store=STORES[level],
        references=[PRIMARY] if level in SHARES else (),
        targets=targets,
        measure=partial(measure_level, environment, level),
    )


def measure_level(environment: Environment, level: str) -> Sample:
    variables = {"LATER_DURABILITY": level}
    with (
        run_replicated_store(environment, STORES[level]) as store,
        run_api(environment, "serve", store, variables=variables) as server,
    ):
        return measure_requests(environment, create_load(environment, server.url), server, store)


DURABILITY = Row(
    name="durability",
    title="single `POST /create`, 64 connections, a store with a replica, by level of durability",
    target="`replica` ≥ 0.6, `disk` ≥ 0.55 and `replica-disk` ≥ 0.4 of `primary`",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    contenders=contenders,
)
