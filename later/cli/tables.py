"""Tables, and how figures stand in them, for a person."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from later.cli.console import one_line


def seconds(ms: int) -> str:
    """A duration for a person: `0.3 s`, `12 s`, `5 min`, `3 h`, `2 d`."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms // unit_ms} {unit}"
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000} s"


def size(count: float) -> str:
    """A number of bytes for a person: `1.5 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def print_figures(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are figures."""
    _print(headers, rows, figures=len(headers) - 1)


def print_words(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """All columns are text."""
    _print(headers, rows, figures=0)


def _print(headers: Sequence[str], rows: Sequence[Sequence[str]], figures: int) -> None:
    """Drawn on a terminal, in plain columns elsewhere; the last `figures` columns are."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    (_draw if sys.stdout.isatty() else _print_plain)(headers, rows, len(headers) - figures)


def _draw(headers: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for index, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if index >= texts else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def _print_plain(headers: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [*map(str.ljust, row[:texts], widths), *map(str.rjust, row[texts:], widths[texts:])]
        print("  ".join(cells).rstrip())
