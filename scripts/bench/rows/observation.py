"""The price of what is seen: the same work with and without the access log, and with and without traces, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from scripts.bench.deliveries import DueTogether, pair_contender
from scripts.bench.environment import Environment
from scripts.bench.pairs import Turn, measure_pairs, pair_row
from scripts.bench.receivers import run_receiver
from scripts.bench.results import AtLeast, Contender
from scripts.bench.rows.safety import CREATE, run_calls

LOGGED_RATIO = 0.9
FEW_TRACED_RATIO = 0.95


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


@contextmanager
def traces_contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield deliveries of which few and all are traced. The collector takes every export, and reads none."""
    due = DueTogether(tasks=environment.sizes.turn_tasks)
    shares = {"0.01": ("1 % traced", FEW_TRACED_RATIO), "1": ("all traced", None)}
    with run_receiver(environment) as collector:
        yield [
            pair_contender(
                environment,
                name,
                due,
                replace(due, variables={"LATER_OTLP": collector.url, "LATER_TRACE_SAMPLE": share}),
                bound=bound,
            )
            for share, (name, bound) in shares.items()
        ]


ACCESS_LOG = pair_row(
    name="access-log",
    title="single `POST /create`, 64 connections, in turns of 1 s: with `--access-log all` beside `errors`",
    target="all ≥ 0.9 of errors",
    contenders=access_log_contenders,
)
TRACES = pair_row(
    name="traces",
    title="5,000 tasks due at the same instant, in turns: with `--otlp`, 1 % and all of them traced, beside no traces",
    target="1 % traced ≥ 0.95 of none",
    contenders=traces_contenders,
)
