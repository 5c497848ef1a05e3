"""The price of what is seen: the same work with and without the access log, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.pairs import Turn, measure_pairs, pair_row
from scripts.bench.results import AtLeast, Contender
from scripts.bench.rows.safety import CREATE, run_calls

LOGGED_RATIO = 0.9


@contextmanager
def access_log_contenders(environment: Environment) -> Iterator[list[Contender]]:
    durability = environment.durabilities[0]

    def run(access_log: str, variables: Mapping[str, str]) -> AbstractContextManager[Turn]:
        logged = {**variables, "LATER_ACCESS_LOG": access_log, "LATER_LOG_FORMAT": "json"}
        return run_calls(environment, durability, CREATE, False, logged)

    yield [
        Contender(
            name="create, each logged",
            store=durability,
            targets=[AtLeast("ratio", LOGGED_RATIO)],
            measure=partial(measure_pairs, partial(run, "errors"), partial(run, "all"), environment.sizes.pairs),
        )
    ]


ACCESS_LOG = pair_row(
    name="access-log",
    title="single `POST /create`, 64 connections, in turns of 1 s: with `--access-log all` beside `errors`",
    target="all ≥ 0.9 of errors",
    contenders=access_log_contenders,
)
