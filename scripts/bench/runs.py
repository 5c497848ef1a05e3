"""The runs of a row: each run measures all contenders, one after another.

A disturbance of the machine then affects the reference as much as later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

from later.core.errors import LaterError
from scripts.bench.environment import Environment
from scripts.bench.other_processes import OtherProcessesMeter
from scripts.bench.results import FIGURES, BenchError, ContenderResult, Row, RowResult

PrintProgress = Callable[[str], None]


def measure_row(row: Row, environment: Environment, runs: int | None, print_progress: PrintProgress) -> RowResult:
    """Measure a row `runs` times, or as often as the row says.

    A failure is kept in the result, so that the other contenders are still measured.
    """
    result, started = RowResult(row=row, runs=runs or row.runs), time.monotonic()
    others = OtherProcessesMeter()
    try:
        with row.contenders(environment) as contenders:
            main_figure = row.figures[0]
            result.lines = [ContenderResult(contender=each, main_figure=main_figure) for each in contenders]
            for run in range(1, result.runs + 1):
                for line in result.lines:
                    _measure_once(row, line, run, print_progress)
    except Exception as error:
        result.failure = _failure_text(error)
        print_progress(f"{row.name}: {result.failure}")
    result.seconds, result.other_processes_share = time.monotonic() - started, others.share()
    return result


def _measure_once(row: Row, line: ContenderResult, run: int, print_progress: PrintProgress) -> None:
    """Measure a contender once, unless an earlier run of it failed."""
    label = " ".join(part for part in (f"{row.name}:", line.contender.name, line.contender.store) if part)
    if line.contender.skip_reason or line.failure:
        skip_reason = line.contender.skip_reason
        print_progress(f"{label}: {f'skipped: {skip_reason}' if skip_reason else line.failure}")
        return
    try:
        measured = line.contender.measure()
    except Exception as error:
        line.failure = _failure_text(error)
        print_progress(f"{label}, run {run}: {line.failure}")
        return
    samples = [measured] if isinstance(measured, Mapping) else measured
    line.samples += samples
    names = [name for name in (*row.figures, *row.details) if name in samples[0]]
    medians = {name: median(sample[name] for sample in samples) for name in names}
    figures = [f"{FIGURES[name].label} {FIGURES[name].text(value)}" for name, value in medians.items()]
    print_progress(f"{label}, run {run}: {', '.join(figures)}")


def _failure_text(error: Exception) -> str:
    if isinstance(error, BenchError | LaterError):
        return f"failed: {error}"
    return f"failed: {type(error).__name__}: {error}"
