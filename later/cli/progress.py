"""What is told of work that takes a while: a bar on a terminal, and lines above it, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from later.cli.console import one_line


def bar_of(unit: str, total: int | None, *more: ProgressColumn) -> Bar:
    """A bar that counts something."""
    return Bar(total, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(), *more)


class Bar:
    """A context: its end takes the bar away. `total` None: nobody knows it."""

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

    def stand_at(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def describe(self, text: str) -> None:
        """What a column of `{task.description}` says."""
        self._progress.update(self._task, description=text)

    def again(self, reason: str, pause_s: float) -> None:
        self.say(f"{reason}; trying again in {pause_s:g} s")

    def say(self, text: str) -> None:
        self._progress.console.print(f"later: {one_line(' '.join(text.split()))}")
