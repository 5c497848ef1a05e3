"""Tables on standard output, and sizes as text."""
# ruff: noqa: PLC0415  # rich comes with the server, and takes long to import where nothing is drawn

from __future__ import annotations

import sys
from collections.abc import Sequence

from later.cli.console import printable


def format_size(size: float) -> str:
    """Format a number of bytes: `1.5 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def print_number_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text, and whose other columns are numbers."""
    _print_table(headers, rows, text_columns=1)


def print_text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are all text."""
    _print_table(headers, rows, text_columns=len(headers))


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """Print a table: drawn on a terminal where rich is installed, otherwise in plain columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty() or not _draw_table(headers, rows, text_columns):
        _print_plain_table(headers, rows, text_columns)


def _draw_table(headers: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> bool:
    """Draw a table with numbers aligned right. Return False, with nothing printed, where rich is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for index, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if index < text_columns else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)
    return True


def _print_plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        texts = map(str.ljust, row[:text_columns], widths)
        numbers = map(str.rjust, row[text_columns:], widths[text_columns:])
        print("  ".join([*texts, *numbers]).rstrip())
