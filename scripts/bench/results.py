"""What runs come to: samples, their medians and spreads, and whether a target is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scripts.bench.environment import Setting

Sample = Mapping[str, float]
"""What one run came to: a figure's name → its value."""


class BenchError(Exception):
    """Something cannot be measured; the text says why."""


class Figure(NamedTuple):
    """Something that is measured: how it is called and written."""

    label: str
    unit: str
    decimals: int = 0

    def text(self, value: float) -> str:
        return f"{value:,.{self.decimals}f}{self.unit}"


FIGURES = {
    "rate": Figure("rate", "/s"),
    "server_cpu": Figure("process", " ms CPU per 1,000", 1),
    "store_cpu": Figure("store", " ms", 1),
    "spark_cpu": Figure("Spark", " ms", 1),
    "receiver_cpu": Figure("receiver", " % of a core"),
    "asked": Figure("tasks a second", "/s"),
    "p50": Figure("p50", " ms", 1),
    "p99": Figure("p99", " ms", 1),
    "most": Figure("max", " ms", 1),
    "earliest": Figure("earliest", " ms", 1),
    "early": Figure("delivered early", ""),
    "twice": Figure("delivered twice", ""),
    "resident": Figure("resident", " MB"),
    "others_most": Figure("another topic late by", " ms"),
    "bytes": Figure("a task", " bytes", 1),
    "cpu": Figure("a process", " % of a core", 2),
    "store_busy": Figure("store", " % of a core", 2),
    "commands": Figure("commands", "/s", 1),
    "round_trips": Figure("round trips", "/s", 1),
}


class Spread(NamedTuple):
    """Some values: the one in the middle, the least and the greatest."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least of the values that `percent` of them do not exceed (nearest rank)."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


class AtLeast(NamedTuple):
    """A target: a figure's median is not below this."""

    figure: str
    bound: float

    @property
    def text(self) -> str:
        return f"{_named(self.figure)}≥ {_written(self.figure, self.bound)}"

    def met(self, line: Line, beside: Line | None) -> bool | None:
        return line.median(self.figure) >= self.bound


class AtMost(NamedTuple):
    """A target: a figure's median is not above this."""

    figure: str
    bound: float

    @property
    def text(self) -> str:
        return f"{_named(self.figure)}≤ {_written(self.figure, self.bound)}"

    def met(self, line: Line, beside: Line | None) -> bool | None:
        return line.median(self.figure) <= self.bound


class NeverEarly(NamedTuple):
    """A target: in no run did anything come before its time."""

    text: str = "never early"

    def met(self, line: Line, beside: Line | None) -> bool | None:
        return line.spread("earliest").least >= 0


class NoneOf(NamedTuple):
    """A target: in every run, a figure is 0."""

    figure: str

    @property
    def text(self) -> str:
        return f"none {FIGURES[self.figure].label}"

    def met(self, line: Line, beside: Line | None) -> bool | None:
        return line.spread(self.figure).most == 0


class ShareOf(NamedTuple):
    """A target: the first figure is at least this share of the reference's."""

    bound: float

    @property
    def text(self) -> str:
        return f"≥ {self.bound:g} of the reference"

    def met(self, line: Line, beside: Line | None) -> bool | None:
        ratio = line.ratio(beside)
        return None if ratio is None else ratio >= self.bound


Goal = AtLeast | AtMost | NeverEarly | NoneOf | ShareOf


def _written(figure: str, value: float) -> str:
    return f"{value:,g}{FIGURES[figure].unit}"


def _named(figure: str) -> str:
    return "" if figure in ("rate", "bytes") else f"{FIGURES[figure].label} "


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something that is measured in a row, `beside` another of it. `store` is how durable its store is."""

    name: str
    measure: Callable[[], Sample]
    store: str = ""
    beside: str = ""
    goals: Sequence[Goal] = ()
    skip: str = ""
    """Why it cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table. The first of its `figures` is the one that ratios are of; those `besides` explain them."""

    name: str
    title: str
    target: str
    figures: Sequence[str]
    contenders: Callable[[Setting], AbstractContextManager[list[Contender]]]
    besides: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    """What others came to on the same machine, measured elsewhere."""
    runs: int = 3
    """How often each is measured, where nobody asks for another number: what takes long, once."""


@dataclass(slots=True, kw_only=True)
class Line:
    """What a contender came to, run by run."""

    contender: Contender
    main: str
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""

    def spread(self, figure: str) -> Spread:
        return spread([sample[figure] for sample in self.samples])

    def median(self, figure: str) -> float:
        return self.spread(figure).median

    def ratio(self, beside: Line | None) -> float | None:
        """The main figure, as a share of the reference's; None where one of them is not there."""
        if beside is None or not beside.samples or not self.samples:
            return None
        return self.median(self.main) / beside.median(self.main)


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a row came to."""

    row: Row
    lines: list[Line] = field(default_factory=list)
    failure: str = ""
    runs: int = 0
    seconds: float = 0.0
    others: float | None = None
    """The share of the machine that other processes took meanwhile; None where nobody knows."""

    @property
    def failed(self) -> bool:
        return bool(self.failure) or any(line.failure for line in self.lines)

    def beside(self, line: Line) -> Line | None:
        """The line that this one is compared with."""
        return next((other for other in self.lines if other.contender.name == line.contender.beside), None)
