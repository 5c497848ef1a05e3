"""Progress bars on standard error, shown on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from later.cli.console import printable


def counting_bar(unit: str, total: int | None, *columns: ProgressColumn) -> ProgressBar:
    """Build a bar that counts in `unit`, such as rows; `columns` are shown at its end."""
    return ProgressBar(total, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(), *columns)


class ProgressBar:
    """A progress bar, removed at the end of its context. `total` is None if it is unknown."""

    def __init__(self, total: int | None, *columns: ProgressColumn) -> None:
        console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, by: int) -> None:
        self._progress.advance(self._task, by)

    def update(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def set_description(self, text: str) -> None:
        """Set the text of a column `{task.description}`."""
        self._progress.update(self._task, description=text)

    def print_retry(self, reason: str, pause_s: float) -> None:
        """Print why the last call failed, and the pause before the next one."""
        self.notify(f"{reason}; trying again in {pause_s:g} s")

    def notify(self, text: str) -> None:
        """Print one line above the bar."""
        self._progress.console.print(f"later: {printable(' '.join(text.split()))}")
