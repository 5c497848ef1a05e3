"""The report of a benchmark: tables for the terminal, Markdown for the README, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.bench.results import FIGURES, ContenderResult, RowResult

MARKDOWN_HEADINGS = ("what", "store", "median [least to most]", "ratio", "target")
HEADINGS = ("what", "store", "median [least to most]", "besides", "ratio", "target")
ELSEWHERE = "Measured elsewhere, on another machine of the same size"

MAX_OTHERS_SHARE = 0.05
"""If other processes take a larger share of the machine, the figures are unreliable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a benchmark with the facts about its machine."""

    at: datetime
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    quick: bool
    missing: Sequence[str]
    rows: Sequence[RowResult]


def format_cells(row: RowResult, line: ContenderResult) -> list[str]:
    """Return the cells of one line of the table, in the order of HEADINGS."""
    contender = line.contender
    texts = (format_figures(row, line), format_details(row, line), format_ratios(row, line), format_targets(row, line))
    return [contender.name, contender.store, *texts]


def format_figures(row: RowResult, line: ContenderResult) -> str:
    """Return the medians, with the spread of several runs; or why they are missing."""
    if not line.samples:
        skip_reason = line.contender.skip_reason
        return f"skipped: {skip_reason}" if skip_reason else line.failure or "not measured"
    texts = [_format_spread(line, name) for name in row.row.figures if name in line.samples[0]]
    return ", ".join([*texts, *([line.failure] if line.failure else [])])


def _format_spread(line: ContenderResult, name: str) -> str:
    spread = line.spread(name)
    if len(line.samples) == 1:
        return _format_with_label(name, spread.median)
    figure = FIGURES[name]
    ends = (spread.lower_quartile, spread.upper_quartile) if figure.in_quartiles else (spread.least, spread.most)
    least, most = (f"{value:,.{figure.decimals}f}" for value in ends)
    kind = "quartiles " if figure.in_quartiles else ""
    return f"{_format_with_label(name, spread.median)} [{kind}{least} to {most}]"


def format_details(row: RowResult, line: ContenderResult) -> str:
    """Return the medians of the details: figures that explain the main ones."""
    names = [name for name in row.row.details if line.samples and name in line.samples[0]]
    return ", ".join(_format_with_label(name, line.median(name)) for name in names)


def _format_with_label(name: str, value: float) -> str:
    """Format a value with its label; the unit of a rate needs none."""
    figure = FIGURES[name]
    return figure.text(value) if name in ("rate", "bytes") else f"{figure.label} {figure.text(value)}"


def format_ratios(row: RowResult, line: ContenderResult) -> str:
    """Return the ratio to each reference, with the reference's name if there are several."""
    ratios = find_ratios(row, line)
    if len(line.contender.references) == 1:
        return "".join(f"{ratio:.2f}" for ratio in ratios.values())
    return ", ".join(f"{ratio:.2f} of {name}" for name, ratio in ratios.items())


def find_ratios(row: RowResult, line: ContenderResult) -> dict[str, float]:
    """Return the ratios to the references that were measured, by name."""
    ratios = {other.contender.name: line.ratio(other) for other in row.references_of(line)}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def format_targets(row: RowResult, line: ContenderResult) -> str:
    """Return each target and whether it is met."""
    return ", ".join(f"{text}: {_format_met(met)}" for text, met in evaluate_targets(row, line))


def _format_met(met: bool | None) -> str:
    return {True: "met", False: "missed", None: "not measured"}[met]


def evaluate_targets(row: RowResult, line: ContenderResult) -> Iterator[tuple[str, bool | None]]:
    """Yield each target's text and whether it is met, None if it was not measured."""
    for target in line.contender.targets:
        yield target.text, target.is_met(line, row.references_of(line)) if line.samples else None


def print_tables(report: Report, console: Console) -> None:
    """Print the tables."""
    for row in report.rows:
        console.print(Text(f"\n{row.row.name}: {row.row.title.replace('`', '')}", style="bold"))
        if row.row.measured_elsewhere:
            console.print(f"{ELSEWHERE}: {'; '.join(row.row.measured_elsewhere)}", highlight=False)
        console.print(
            f"target: {row.row.target}; {_format_runs(row)} in {row.seconds:.0f} s{_format_other_processes(row)}",
            highlight=False,
        )
        if row.failure:
            console.print(row.failure, style="red", markup=False)
        table = Table(*HEADINGS, box=None, pad_edge=False)
        for line in row.lines:
            table.add_row(*map(Text, format_cells(row, line)))
        console.print(table)
    console.print()
    for fact in collect_facts(report):
        console.print(fact, highlight=False, markup=False)


def _format_runs(row: RowResult) -> str:
    return f"medians of {row.runs} runs" if row.runs > 1 else "one run"


def _format_other_processes(row: RowResult) -> str:
    return (
        ""
        if row.other_processes_share is None
        else f"; other processes took {row.other_processes_share:.0%} of the machine"
    )


def collect_facts(report: Report) -> list[str]:
    """Return the facts about the machine, the programs missing on it, and warnings."""
    quick = ", too short to be reliable (--quick)" if report.quick else ""
    return [
        f"{report.at:%Y-%m-%d}{quick}. Store, daemon, load and receiver all on this one machine.",
        ", ".join(f"{name}: {value}" for name, value in report.machine.items()),
        ", ".join(f"{name} {value}" for name, value in report.versions.items()),
        *report.missing,
        *_warnings(report),
    ]


def _warnings(report: Report) -> Iterator[str]:
    for row in report.rows:
        if row.other_processes_share is not None and row.other_processes_share > MAX_OTHERS_SHARE:
            yield f"Unreliable: {row.row.name}{_format_other_processes(row)}."


def format_markdown(report: Report) -> str:
    """Return one table for the README, without the details."""
    lines = [_markdown_row(MARKDOWN_HEADINGS), _markdown_row(["---"] * len(MARKDOWN_HEADINGS))]
    for row in report.rows:
        failure = f" {row.failure}" if row.failure else ""
        lines.append(_markdown_row([f"**{row.row.title}**", "", f"{_format_runs(row)}{failure}", "", ""]))
        for line in row.lines:
            name, store, measured, _, share, targets = format_cells(row, line)
            lines.append(_markdown_row([name, store, measured, share, targets]))
    return "\n".join([*lines, "", *collect_facts(report), *_footnotes(report)]) + "\n"


def _footnotes(report: Report) -> Iterator[str]:
    for row in report.rows:
        if row.row.measured_elsewhere:
            yield f"{ELSEWHERE}, {row.row.name}: {'; '.join(row.row.measured_elsewhere)}."


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def format_json(report: Report) -> str:
    """Return the report as JSON, with the figures of every run."""
    content = {
        "at": report.at.astimezone(UTC).isoformat(timespec="seconds"),
        "machine": report.machine,
        "versions": report.versions,
        "quick": report.quick,
        "missing": report.missing,
        "rows": [_row_as_json(row) for row in report.rows],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _row_as_json(row: RowResult) -> dict[str, Any]:
    return {
        "name": row.row.name,
        "title": row.row.title,
        "target": row.row.target,
        "elsewhere": row.row.measured_elsewhere,
        "runs": row.runs,
        "seconds": round(row.seconds, 1),
        "others": row.other_processes_share,
        "failure": row.failure or None,
        "lines": [_line_as_json(row, line) for line in row.lines],
    }


def _line_as_json(row: RowResult, line: ContenderResult) -> dict[str, Any]:
    names = line.samples[0] if line.samples else ()
    return {
        "name": line.contender.name,
        "store": line.contender.store or None,
        "skipped": line.contender.skip_reason or None,
        "failure": line.failure or None,
        "figures": {name: line.spread(name)._asdict() for name in names},
        "ratios": find_ratios(row, line),
        "targets": [{"text": text, "met": met} for text, met in evaluate_targets(row, line)],
        "runs": line.samples,
    }
