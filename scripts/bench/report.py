"""What was measured, told: a table for the terminal, Markdown for the README, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.bench.results import FIGURES, Line, Measured

MARKDOWN_HEADINGS = ("what", "store", "median [least to most]", "ratio", "target", "measured elsewhere")
HEADINGS = ("what", "store", "median [least to most]", "besides", "ratio", "target")

DISTURBING = 0.05
"""A larger share of the machine for other processes spoils the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a run of the bench has to tell."""

    at: datetime
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    quick: bool
    missing: Sequence[str]
    rows: Sequence[Measured]


def cells(row: Measured, line: Line) -> list[str]:
    """A line of the table, as its headings say."""
    what = line.contender
    return [what.name, what.store, figures(row, line), besides(row, line), ratio(row, line), goals(row, line)]


def figures(row: Measured, line: Line) -> str:
    """The figures' medians and, of several runs, the least and the most; or why there are none."""
    if not line.samples:
        return f"skipped: {line.contender.skip}" if line.contender.skip else line.failure or "not measured"
    told = [_figure(line, name) for name in row.row.figures if name in line.samples[0]]
    return ", ".join([*told, *([line.failure] if line.failure else [])])


def _figure(line: Line, name: str) -> str:
    spread = line.spread(name)
    if len(line.samples) == 1:
        return _labelled(name, spread.median)
    least, most = (f"{value:,.{FIGURES[name].decimals}f}" for value in (spread.least, spread.most))
    return f"{_labelled(name, spread.median)} [{least} to {most}]"


def besides(row: Measured, line: Line) -> str:
    """The medians of what explains them."""
    names = [name for name in row.row.besides if line.samples and name in line.samples[0]]
    return ", ".join(_labelled(name, line.median(name)) for name in names)


def _labelled(name: str, value: float) -> str:
    """A rate says itself that it is one."""
    figure = FIGURES[name]
    return figure.text(value) if name in ("rate", "bytes") else f"{figure.label} {figure.text(value)}"


def ratio(row: Measured, line: Line) -> str:
    value = line.ratio(row.beside(line))
    return "" if value is None else f"{value:.2f}"


def goals(row: Measured, line: Line) -> str:
    """Each target and whether it is met."""
    return ", ".join(f"{text}: {_met(met)}" for text, met in judged(row, line))


def _met(met: bool | None) -> str:
    return {True: "met", False: "missed", None: "not measured"}[met]


def judged(row: Measured, line: Line) -> Iterator[tuple[str, bool | None]]:
    """Each target's text, and whether it is met; None where that is not known."""
    for goal in line.contender.goals:
        yield goal.text, goal.met(line, row.beside(line)) if line.samples else None


def show(report: Report, console: Console) -> None:
    """Print the tables."""
    for row in report.rows:
        console.print(Text(f"\n{row.row.name}: {row.row.title.replace('`', '')}", style="bold"))
        if row.row.elsewhere:
            console.print(f"measured elsewhere: {'; '.join(row.row.elsewhere)}", highlight=False)
        console.print(f"target: {row.row.target}; {_runs(row)} in {row.seconds:.0f} s{_others(row)}", highlight=False)
        if row.failure:
            console.print(row.failure, style="red", markup=False)
        table = Table(*HEADINGS, box=None, pad_edge=False)
        for line in row.lines:
            table.add_row(*map(Text, cells(row, line)))
        console.print(table)
    console.print()
    for fact in facts(report):
        console.print(fact, highlight=False, markup=False)


def _runs(row: Measured) -> str:
    return f"medians of {row.runs} runs" if row.runs > 1 else "one run"


def _others(row: Measured) -> str:
    return "" if row.others is None else f"; other processes took {row.others:.0%} of the machine"


def facts(report: Report) -> list[str]:
    """What it was measured on, and what was missing there."""
    quick = ", too short and too few to rely on (--quick)" if report.quick else ""
    return [
        f"{report.at:%Y-%m-%d}{quick}. Store, daemon, load and receiver all on this one machine.",
        ", ".join(f"{name}: {value}" for name, value in report.machine.items()),
        ", ".join(f"{name} {value}" for name, value in report.versions.items()),
        *report.missing,
        *_disturbances(report),
    ]


def _disturbances(report: Report) -> Iterator[str]:
    for row in report.rows:
        if row.others is not None and row.others > DISTURBING:
            yield f"Not to be relied on: {row.row.name}{_others(row)}."


def markdown(report: Report) -> str:
    """One table for the README, without what explains the figures."""
    lines = [_table_line(MARKDOWN_HEADINGS), _table_line(["---"] * len(MARKDOWN_HEADINGS))]
    for row in report.rows:
        failure = f" {row.failure}" if row.failure else ""
        what, elsewhere = f"**{row.row.title}**", "; ".join(row.row.elsewhere)
        lines.append(_table_line([what, "", f"{_runs(row)}{failure}", "", "", elsewhere]))
        for line in row.lines:
            name, store, measured, _, share, targets = cells(row, line)
            lines.append(_table_line([name, store, measured, share, targets, ""]))
    return "\n".join([*lines, "", *facts(report)]) + "\n"


def _table_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def as_json(report: Report) -> str:
    """The same, with every run's figures."""
    told = {
        "at": report.at.astimezone(UTC).isoformat(timespec="seconds"),
        "machine": report.machine,
        "versions": report.versions,
        "quick": report.quick,
        "missing": report.missing,
        "rows": [_row_as_json(row) for row in report.rows],
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _row_as_json(row: Measured) -> dict[str, Any]:
    return {
        "name": row.row.name,
        "title": row.row.title,
        "target": row.row.target,
        "elsewhere": row.row.elsewhere,
        "runs": row.runs,
        "seconds": round(row.seconds, 1),
        "others": row.others,
        "failure": row.failure or None,
        "lines": [_line_as_json(row, line) for line in row.lines],
    }


def _line_as_json(row: Measured, line: Line) -> dict[str, Any]:
    names = line.samples[0] if line.samples else ()
    return {
        "name": line.contender.name,
        "store": line.contender.store or None,
        "skipped": line.contender.skip or None,
        "failure": line.failure or None,
        "figures": {name: line.spread(name)._asdict() for name in names},
        "beside": line.contender.beside or None,
        "ratio": line.ratio(row.beside(line)),
        "targets": [{"text": text, "met": met} for text, met in judged(row, line)],
        "runs": line.samples,
    }
