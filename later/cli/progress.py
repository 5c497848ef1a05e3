"""Progress bars on standard error, shown on a terminal only, and only where rich is installed."""
# ruff: noqa: PLC0415  # rich comes with the server, and takes long to import where no bar is shown

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from later.cli.console import notify, printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def byte_bar(total: int | None) -> ProgressBar:
    """Build a bar that counts the bytes of a file."""

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TimeRemainingColumn

        return BarColumn(), TaskProgressColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()

    return ProgressBar(total, columns)


def task_bar(total: int | None) -> ProgressBar:
    """Build a bar that counts tasks, with their share of all."""

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TimeRemainingColumn

        return BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeRemainingColumn()

    return ProgressBar(total, columns)


def counting_bar(unit: str, total: int | None) -> ProgressBar:
    """Build a bar that counts in `unit`, such as rows. The description that it is given is shown at its end."""

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        description = TextColumn("{task.description}")
        return BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(), description

    return ProgressBar(total, columns)


class ProgressBar:
    """A progress bar, removed at the end of its context. `total` is None if it is unknown."""

    def __init__(self, total: int | None, columns: Callable[[], Sequence[ProgressColumn]]) -> None:
        self._progress = _build_progress(columns) if sys.stderr.isatty() else None
        self._task = None if self._progress is None else self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def advance(self, by: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, by)

    def update(self, done: int, total: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def set_description(self, text: str) -> None:
        """Set the text of a column `{task.description}`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)

    def print_retry(self, reason: str, pause_s: float) -> None:
        """Print why the last call failed, and the pause before the next one."""
        self.notify(f"{reason}; trying again in {pause_s:g} s")

    def notify(self, text: str) -> None:
        """Print one line above the bar."""
        if self._progress is None:
            notify(text)
        else:
            self._progress.console.print(f"later: {printable(' '.join(text.split()))}")


def _build_progress(columns: Callable[[], Sequence[ProgressColumn]]) -> Progress | None:
    """Build rich's bar with these columns, or return None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        return None
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
    # Otherwise what is printed meanwhile would go to standard error, also if standard output is a file.
    return Progress(*columns(), console=console, transient=True, redirect_stdout=sys.stdout.isatty())
