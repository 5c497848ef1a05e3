"""Tables on standard output, and sizes as text."""
# ruff: noqa: PLC0415  # rich comes with the server, and takes long to import where nothing is drawn

from __future__ import annotations

import sys
from collections.abc import Sequence

from later.cli.console import printable

_EIGHTHS: list[str] = ["", *"▏▎▍▌▋▊▉"]
"""The ends of bars, by the eighths of a character."""


def format_size(size: float) -> str:
    """Format a number of bytes: `1.5 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def format_bar(value: int, most: int, width: int = 32) -> str:
    """Return a bar, of full width if `value` is `most`; one that is not 0 is always seen."""
    eighths = max(round(value / most * width * 8), 1) if value > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def print_number_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text, and whose other columns are numbers."""
    _print_table(headers, rows, range(1, len(headers)))


def print_bar_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are numbers between a text and a bar."""
    _print_table(headers, rows, range(1, len(headers) - 1))


def print_text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are all text."""
    _print_table(headers, rows, range(0))


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: range) -> None:
    """Print a table: drawn on a terminal where rich is installed, otherwise in plain columns.

    The columns that are `numbers` are aligned right.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty() or not _draw_table(headers, rows, numbers):
        _print_plain_table(headers, rows, numbers)


def _draw_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: range) -> bool:
    """Draw a table. Return False, with nothing printed, where rich is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for index, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if index in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)
    return True


def _print_plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: range) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = enumerate(zip(row, widths, strict=True))
        aligned = [text.rjust(width) if index in numbers else text.ljust(width) for index, (text, width) in cells]
        print("  ".join(aligned).rstrip())
