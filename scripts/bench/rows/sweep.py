"""Lateness by load, for a plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Setting
from scripts.bench.results import Contender, NeverEarly, Row, Sample
from scripts.bench.rows.lateness import BESIDES, FIGURES, spread_evenly


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    """Without a disk and with the safest one, as far as both were asked for."""
    durabilities = dict.fromkeys([setting.durabilities[0], setting.durabilities[-1]])
    yield [
        Contender(
            name=f"later up, {rate:,} tasks/s",
            store=durability,
            goals=[NeverEarly()],
            measure=partial(_late_at, setting, durability, rate),
        )
        for rate in setting.scale.sweep
        for durability in durabilities
    ]


def _late_at(setting: Setting, durability: str, rate: int) -> Sample:
    return {**spread_evenly(setting, durability, rate, setting.scale.sweep_s), "asked": rate}


SWEEP = Row(
    name="sweep",
    title="lateness by load: tasks spread evenly",
    target="never early",
    figures=FIGURES,
    besides=BESIDES,
    contenders=contenders,
    runs=1,
)
