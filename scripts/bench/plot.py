"""Plot of lateness by load: an SVG that is readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from scripts.bench.results import BenchError, ContenderResult, RowResult

GREY = "#7d8590"
"""Readable on white and on black."""
COLOURS = {"p50": "#2f81f7", "p99": "#e3702d"}
DASHES = ("-", "--", ":")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters, not outlines of letters
    "svg.hashsalt": "later",  # the same figures make the same file
    "font.family": ["sans-serif"],
    "font.size": 11,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
STORE_LABELS = {"none": "no persistence", "everysec": "appendfsync everysec", "always": "appendfsync always"}


def draw(sweep: RowResult, file: Path) -> None:
    """Draw the sweep into a file. Raises BenchError if nothing was measured."""
    lines = [line for line in sweep.lines if line.samples]
    if not lines:
        raise BenchError("nothing to draw: the sweep was not measured")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.subplots()
        for store, dash in zip(dict.fromkeys(line.contender.store for line in lines), DASHES, strict=False):
            _draw_curves(axes, [line for line in lines if line.contender.store == store], store, dash)
        _format_axes(axes, sorted({line.median("asked") for line in lines}))
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})


def _draw_curves(axes: Axes, lines: Sequence[ContenderResult], store: str, dash: str) -> None:
    rates = [line.median("asked") for line in lines]
    for name, colour in COLOURS.items():
        latenesses = [line.median(name) for line in lines]
        label = f"{name}, {STORE_LABELS[store]}"
        axes.plot(rates, latenesses, dash, color=colour, marker="o", markersize=4, linewidth=1.8, label=label)


def _format_axes(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates)
    axes.set_xlabel("tasks due a second, spread evenly")
    axes.set_ylabel("lateness in ms, due time to arrival")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", color=GREY, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
