"""`python -m scripts.bench`: measures the rows that were asked for, and tells what they came to."""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from scripts.bench.environment import FULL, QUICK, Setting, find_nginx
from scripts.bench.machine import machine, versions
from scripts.bench.options import Options, parsed
from scripts.bench.report import Report, as_json, markdown, show
from scripts.bench.results import Measured
from scripts.bench.rows import ROWS
from scripts.bench.rows.sweep import SWEEP
from scripts.bench.runs import measure

WIDTH = 180
"""Where the output is no terminal."""


def main() -> int:
    """The exit status: 1 where anything could not be measured; a target that is missed is no failure."""
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="later-", dir=options.folder) as folder:
        report = measured(options, a_setting(options, Path(folder)))
    tell(options, report)
    return int(any(row.failed for row in report.rows))


def a_setting(options: Options, folder: Path) -> Setting:
    return Setting(
        scale=QUICK if options.quick else FULL,
        server=options.server,
        durabilities=options.durabilities,
        wrk=shutil.which("wrk"),
        nginx=find_nginx(),
        folder=folder,
    )


def measured(options: Options, setting: Setting) -> Report:
    """Measure, and say on standard error how it goes."""
    rows = [row for row in ROWS if row.name in options.only]
    return Report(
        at=datetime.now(UTC),
        machine=machine(setting),
        versions=versions(setting),
        quick=options.quick,
        missing=setting.missing,
        rows=[measure(row, setting, options.runs, _say) for row in rows],
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(options: Options, report: Report) -> None:
    """Print it, write it, draw it."""
    if options.markdown:
        print(markdown(report), end="")
    else:
        show(report, Console(width=None if sys.stdout.isatty() else WIDTH))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(as_json(report))
    for row in report.rows:
        if row.row is SWEEP and options.plot is not None:
            _plot(row, options.plot)


def _plot(sweep: Measured, file: Path) -> None:
    """Where a rate is missing, a plot that was there before is the better one."""
    if sweep.failed:
        _say(f"{file}: not drawn, for the sweep failed")
        return
    from scripts.bench.plot import draw  # noqa: PLC0415  # it takes a second that no other run needs

    draw(sweep, file)


if __name__ == "__main__":
    sys.exit(main())
