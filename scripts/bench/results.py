"""Results of runs: samples, their medians and spreads, and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scripts.bench.environment import Environment

Sample = Mapping[str, float]
"""The result of one run: a figure's name → its value."""


class BenchError(Exception):
    """Raised if something cannot be measured; the text says why."""


class Figure(NamedTuple):
    """A measured quantity: its label, unit and decimals."""

    label: str
    unit: str
    decimals: int = 0
    in_quartiles: bool = False
    """True if a run has many values of it: the least and the greatest then say little."""

    def text(self, value: float) -> str:
        return f"{value:,.{self.decimals}f}{self.unit}"


FIGURES = {
    "rate": Figure("rate", "/s"),
    "ratio": Figure("ratio", "", 3, in_quartiles=True),
    "cpu_ratio": Figure("of CPU time", "", 3, in_quartiles=True),
    "reference_rate": Figure("reference", "/s"),
    "server_cpu": Figure("process", " ms CPU per 1,000", 1),
    "reference_cpu": Figure("reference", " ms", 1),
    "consumer_cpu": Figure("consumers", " ms", 1),
    "store_cpu": Figure("store", " ms", 1),
    "spark_cpu": Figure("Spark", " ms", 1),
    "receiver_cpu": Figure("receiver", " ms", 1),
    "asked": Figure("tasks a second", "/s"),
    "p50": Figure("p50", " ms", 1),
    "p99": Figure("p99", " ms", 1),
    "p99_ratio": Figure("p99 of that without", "", 2, in_quartiles=True),
    "p99_alone": Figure("p99 without", " ms", 1),
    "answers_p99": Figure("answers' p99", " ms", 1),
    "most": Figure("max", " ms", 1),
    "earliest": Figure("earliest", " ms", 1),
    "early": Figure("delivered early", ""),
    "twice": Figure("delivered twice", ""),
    "resident": Figure("resident", " MB"),
    "others_most": Figure("another topic late by", " ms"),
    "bytes": Figure("a task", " bytes", 1),
    "cpu": Figure("a process", " % of a core", 2),
    "waiters_cpu": Figure("the waiters", " % of a core", 2),
    "store_busy": Figure("store", " % of a core", 2),
    "commands": Figure("commands", "/s", 1),
    "round_trips": Figure("round trips", "/s", 1),
    "endless_calls": Figure("calls without an end", "/s"),
}


class Spread(NamedTuple):
    """Median, least, greatest and quartiles of several values."""

    median: float
    least: float
    most: float
    lower_quartile: float
    upper_quartile: float


def spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    return Spread(median(ordered), ordered[0], ordered[-1], percentile(ordered, 25), percentile(ordered, 75))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the least value that `percent` % of the values do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


class AtLeast(NamedTuple):
    """A target: the median of a figure is at least the bound."""

    figure: str
    bound: float

    @property
    def text(self) -> str:
        return f"{_label_prefix(self.figure)}≥ {_format_bound(self.figure, self.bound)}"

    def is_met(self, line: ContenderResult, references: Sequence[ContenderResult]) -> bool | None:
        return line.median(self.figure) >= self.bound


class AtMost(NamedTuple):
    """A target: the median of a figure is at most the bound."""

    figure: str
    bound: float

    @property
    def text(self) -> str:
        return f"{_label_prefix(self.figure)}≤ {_format_bound(self.figure, self.bound)}"

    def is_met(self, line: ContenderResult, references: Sequence[ContenderResult]) -> bool | None:
        return line.median(self.figure) <= self.bound


class NeverEarly(NamedTuple):
    """A target: no callback of any run arrived before its due time."""

    text: str = "never early"

    def is_met(self, line: ContenderResult, references: Sequence[ContenderResult]) -> bool | None:
        return line.spread("earliest").least >= 0


class AlwaysZero(NamedTuple):
    """A target: a figure is 0 in every run."""

    figure: str

    @property
    def text(self) -> str:
        return f"none {FIGURES[self.figure].label}"

    def is_met(self, line: ContenderResult, references: Sequence[ContenderResult]) -> bool | None:
        return line.spread(self.figure).most == 0


class ShareOfReference(NamedTuple):
    """A target: the main figure is at least this share of a reference's: of the named one, otherwise of the first."""

    bound: float
    name: str = ""

    @property
    def text(self) -> str:
        return f"≥ {self.bound:g} of {self.name}" if self.name else f"≥ {self.bound:g} of the reference"

    def is_met(self, line: ContenderResult, references: Sequence[ContenderResult]) -> bool | None:
        named = (other for other in references if self.name in ("", other.contender.name))
        ratio = line.ratio(next(named, None))
        return None if ratio is None else ratio >= self.bound


Target = AtLeast | AtMost | NeverEarly | AlwaysZero | ShareOfReference


def _format_bound(figure: str, value: float) -> str:
    return f"{value:,g}{FIGURES[figure].unit}"


def _label_prefix(figure: str) -> str:
    return "" if figure in ("rate", "bytes") else f"{FIGURES[figure].label} "


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program measured in a row. `references` name the contenders it is compared with, `store` is its durability.

    `measure` returns the sample of a run, or several: one of each pair of turns.
    """

    name: str
    measure: Callable[[], Sample | Sequence[Sample]]
    store: str = ""
    references: Sequence[str] = ()
    targets: Sequence[Target] = ()
    skip_reason: str = ""
    """Why it cannot be measured on this machine; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table. Ratios compare the first of its `figures`; the `details` explain them."""

    name: str
    title: str
    target: str
    figures: Sequence[str]
    contenders: Callable[[Environment], AbstractContextManager[list[Contender]]]
    details: Sequence[str] = ()
    measured_elsewhere: Sequence[str] = ()
    """Results of other programs on another machine of the same size: a footnote, not to be compared with."""
    runs: int = 3
    """The default number of runs; 1 for rows that take long."""


@dataclass(slots=True, kw_only=True)
class ContenderResult:
    """The results of a contender: its samples, run by run."""

    contender: Contender
    main_figure: str
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""

    def spread(self, figure: str) -> Spread:
        return spread([sample[figure] for sample in self.samples])

    def median(self, figure: str) -> float:
        return self.spread(figure).median

    def ratio(self, reference: ContenderResult | None) -> float | None:
        """Return the main figure as a share of the reference's; None if one of the two was not measured."""
        if reference is None or not reference.samples or not self.samples:
            return None
        return self.median(self.main_figure) / reference.median(self.main_figure)


@dataclass(slots=True, kw_only=True)
class RowResult:
    """The results of a row."""

    row: Row
    lines: list[ContenderResult] = field(default_factory=list)
    failure: str = ""
    runs: int = 0
    seconds: float = 0.0
    other_processes_share: float | None = None
    """The share of the machine that other processes took meanwhile; None if unknown."""

    @property
    def failed(self) -> bool:
        return bool(self.failure) or any(line.failure for line in self.lines)

    def references_of(self, line: ContenderResult) -> list[ContenderResult]:
        """Return the results that this one is compared with, in the order in which it names them."""
        by_name = {other.contender.name: other for other in self.lines}
        return [by_name[name] for name in line.contender.references if name in by_name]
