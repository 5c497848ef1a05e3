"""The runs of a row: one contender after the other, then all of them again.

So what comes and goes on the machine meets the reference as it meets ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from later.core.errors import LaterError
from scripts.bench.environment import Setting
from scripts.bench.other_processes import Others
from scripts.bench.results import FIGURES, BenchError, Line, Measured, Row

Say = Callable[[str], None]


def measure(row: Row, setting: Setting, runs: int | None, say: Say) -> Measured:
    """Measure a row, so many times or as often as it says.

    What goes wrong is written into it: one that fails must not take the others with it.
    """
    measured, started, others = Measured(row=row, runs=runs or row.runs), time.monotonic(), Others()
    try:
        with row.contenders(setting) as contenders:
            measured.lines = [Line(contender=one, main=row.figures[0]) for one in contenders]
            for run in range(1, measured.runs + 1):
                for line in measured.lines:
                    _run(row, line, run, say)
    except Exception as error:
        measured.failure = _reason(error)
        say(f"{row.name}: {measured.failure}")
    measured.seconds, measured.others = time.monotonic() - started, others.share()
    return measured


def _run(row: Row, line: Line, run: int, say: Say) -> None:
    """One run, unless an earlier one of this contender failed."""
    who = " ".join(part for part in (f"{row.name}:", line.contender.name, line.contender.store) if part)
    if line.contender.skip or line.failure:
        say(f"{who}: {f'skipped: {line.contender.skip}' if line.contender.skip else line.failure}")
        return
    try:
        sample = line.contender.measure()
    except Exception as error:
        line.failure = _reason(error)
        say(f"{who}, run {run}: {line.failure}")
        return
    line.samples.append(sample)
    shown = [name for name in (*row.figures, *row.besides) if name in sample]
    told = [f"{FIGURES[name].label} {FIGURES[name].text(sample[name])}" for name in shown]
    say(f"{who}, run {run}: {', '.join(told)}")


def _reason(error: Exception) -> str:
    if isinstance(error, BenchError | LaterError):
        return f"failed: {error}"
    return f"failed: {type(error).__name__}: {error}"
