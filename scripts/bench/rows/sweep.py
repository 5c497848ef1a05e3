"""Lateness by load, for the plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.results import Contender, NeverEarly, Row, Sample
from scripts.bench.rows.lateness import DETAILS, FIGURES, measure_lateness


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield contenders with the first and the last of the requested durabilities."""
    durabilities = dict.fromkeys([environment.durabilities[0], environment.durabilities[-1]])
    yield [
        Contender(
            name=f"later up, {rate:,} tasks/s",
            store=durability,
            targets=[NeverEarly()],
            measure=partial(_measure_rate, environment, durability, rate),
        )
        for rate in environment.sizes.sweep
        for durability in durabilities
    ]


def _measure_rate(environment: Environment, durability: str, rate: int) -> Sample:
    return {**measure_lateness(environment, durability, rate, environment.sizes.sweep_s), "asked": rate}


SWEEP = Row(
    name="sweep",
    title="lateness by load: tasks spread evenly",
    target="never early",
    figures=FIGURES,
    details=DETAILS,
    contenders=contenders,
    runs=1,
)
