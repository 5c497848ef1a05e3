"""`python -m scripts.bench`: measure the requested rows and report the results."""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from scripts.bench.environment import FULL, QUICK, Environment, find_nginx, find_node, find_pip
from scripts.bench.machine import describe_machine, find_versions
from scripts.bench.options import Options, parse_options
from scripts.bench.report import Report, format_json, format_markdown, print_tables
from scripts.bench.results import RowResult
from scripts.bench.rows import ROWS
from scripts.bench.rows.sweep import SWEEP
from scripts.bench.runs import measure_row

WIDTH = 180
"""Width of the tables where the output is not a terminal."""


def main() -> int:
    """Measure and report. Return the exit status: 1 if anything failed. A missed target is no failure."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="later-", dir=options.folder) as folder:
        report = measure_rows(options, build_environment(options, Path(folder)))
    write_report(options, report)
    return int(any(row.failed for row in report.rows))


def build_environment(options: Options, folder: Path) -> Environment:
    return Environment(
        sizes=QUICK if options.quick else FULL,
        store_program=options.server,
        durabilities=options.durabilities,
        wrk=shutil.which("wrk"),
        nginx=find_nginx(),
        node=find_node(),
        pip=find_pip(),
        folder=folder,
    )


def measure_rows(options: Options, environment: Environment) -> Report:
    """Measure the rows and print the progress on standard error."""
    rows = [row for row in ROWS if row.name in options.only]
    return Report(
        at=datetime.now(UTC),
        machine=describe_machine(environment),
        versions=find_versions(environment),
        quick=options.quick,
        missing=environment.missing,
        rows=[measure_row(row, environment, options.runs, _print_progress) for row in rows],
    )


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_report(options: Options, report: Report) -> None:
    """Print the report, write it as JSON and draw the sweep."""
    if options.markdown:
        print(format_markdown(report), end="")
    else:
        print_tables(report, Console(width=None if sys.stdout.isatty() else WIDTH))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(format_json(report))
    for row in report.rows:
        if row.row is SWEEP and options.plot is not None:
            _draw_sweep(row, options.plot)


def _draw_sweep(sweep: RowResult, file: Path) -> None:
    """Draw the sweep, unless a rate of it failed: an older plot is then the better one and stays."""
    if sweep.failed:
        _print_progress(f"{file}: not drawn because the sweep failed")
        return
    from scripts.bench.plot import draw  # noqa: PLC0415  # importing matplotlib takes a second

    draw(sweep, file)


if __name__ == "__main__":
    sys.exit(main())
