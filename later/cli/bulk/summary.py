"""The summary of a command of `bulk`: the one object that --json prints, whatever happens, and the exit status."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Mapping
from enum import StrEnum
from itertools import takewhile
from typing import Any

import click

from later.cli.exit import CommandFailed, TerminationSignal, handle_termination_signals
from later.cli.groups import OrderedGroup
from later.cli.times import rfc3339
from later.client.http import TargetFull
from later.core.errors import (
    STORE_FULL_REASON,
    CallFailed,
    ConfigError,
    InputUnreadable,
    LaterError,
    Refused,
    StoreDown,
    StoreMismatch,
)

MIN_TIME_S, MAX_TIME_S = -62_135_596_800, 253_402_300_799
"""The first second of the year 1, and the last one of 9999."""
_USERINFO = re.compile(r"//[^/?#]*@")


class CommandOutcome(StrEnum):
    """How a command ended."""

    DONE = "done"
    REFUSED = "refused"
    """More rows were rejected than allowed; the others are done."""
    MISSING = "missing"
    """More rows have no task than allowed."""
    DECLINED = "declined"
    """The question whether to do it was answered with no."""
    FAILED = "failed"
    """Spark is missing or failed, or later has a fault."""
    USAGE = "usage"
    """Wrong options, an input that cannot be read as tasks, or a store that is not later's."""
    UNREACHED = "unreached"
    """The API or the store did not answer, or something else than later did."""
    FULL = "full"
    """The store accepts no more tasks."""
    LOST = "lost"
    """The store has lost tasks that it had confirmed."""
    INTERRUPTED = "interrupted"
    """By Ctrl-C, SIGTERM or SIGHUP."""


EXIT_STATUSES: Mapping[CommandOutcome, int] = {
    CommandOutcome.DONE: 0,
    CommandOutcome.REFUSED: 1,
    CommandOutcome.MISSING: 1,
    CommandOutcome.DECLINED: 1,
    CommandOutcome.FAILED: 1,
    CommandOutcome.USAGE: 2,
    CommandOutcome.UNREACHED: 3,
    CommandOutcome.FULL: 4,
    CommandOutcome.LOST: 5,
}
"""The exit status of each outcome; that of an interrupted command is 128 and the signal's number."""


class Summary:
    """A summary that a command fills in as it goes, so that it says what is known whenever the command ends."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.command: str | None = None
        self.job: str | None = None
        self.run: str | None = None
        self.url: str | None = None
        self.prefix: str | None = None
        self.input: str | None = None
        self.rejects: str | None = None
        self.output: str | None = None
        self.counts: dict[str, int] = {}
        self.due: dict[str, Any] | None = None
        self.report: Any = None
        self.outcome = CommandOutcome.DONE
        self.error: str | None = None
        self._started = time.monotonic()
        self._seconds: float | None = None

    def set_target(self, url: str, prefix: str) -> None:
        """Set where the command writes or reads. `prefix` is that of the store's keys; the API has one of its own."""
        self.url = without_password(url)
        self.prefix = None if url.startswith(("http://", "https://")) else prefix

    @property
    def target(self) -> str:
        """Where the command writes or reads, for people."""
        return self.url or "" if self.prefix is None else f"{self.url}, prefix {self.prefix}"

    def start_job(self) -> None:
        """Count the seconds from now on: Spark has started."""
        self._started = time.monotonic()

    def finish_job(self, seconds: float) -> None:
        """Set how long the job took."""
        self._seconds = seconds

    def end(self, outcome: CommandOutcome, error: str | None = None) -> int:
        """Set how the command ends, and return its exit status."""
        self.outcome, self.error = outcome, error
        return EXIT_STATUSES[outcome]

    def fail(self, error: BaseException) -> BaseException:
        """Set how the command ends by an error. Return the error for the program, with the exit status."""
        if isinstance(error, KeyboardInterrupt | click.Abort | TerminationSignal):
            number = error.number if isinstance(error, TerminationSignal) else signal.SIGINT
            self.outcome, self.error = CommandOutcome.INTERRUPTED, f"interrupted by {signal.Signals(number).name}"
            return error
        reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
        status = self.end(outcome_of(error), " ".join(reason.split()) or type(error).__name__)
        return CommandFailed(str(error), status) if isinstance(error, LaterError) else error

    def print_json(self) -> None:
        """Print the object."""
        seconds = time.monotonic() - self._started if self._seconds is None else self._seconds
        result = {
            "command": self.command,
            "job": self.job,
            "run": self.run,
            "url": self.url,
            "prefix": self.prefix,
            "input": self.input,
            "rejects": self.rejects,
            "output": self.output,
            "seconds": round(seconds, 3),
            "counts": self.counts,
            "due": self.due,
            "report": self.report,
            "outcome": self.outcome.value,
            "error": self.error,
        }
        print(json.dumps(result))


class SummaryGroup(OrderedGroup):
    """A group of commands with a summary, which is printed with --json however the command ends."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = Summary(as_json="--json" in takewhile(lambda text: text != "--", args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        summary: Summary = ctx.obj
        try:
            with handle_termination_signals():
                code = super().invoke(ctx)
        except (click.exceptions.Exit, BrokenPipeError):  # help was printed, or nobody reads
            raise
        except BaseException as error:
            summary.command = ctx.invoked_subcommand
            failure = summary.fail(error)
            if summary.as_json:
                summary.print_json()
            if failure is error:
                raise
            raise failure from error
        summary.command = ctx.invoked_subcommand
        if summary.as_json:
            summary.print_json()
        return code


def current_summary() -> Summary:
    """Return the summary of the command that runs."""
    summary = click.get_current_context().find_object(Summary)
    assert summary is not None, "the group `bulk` makes it"
    return summary


def outcome_of(error: BaseException) -> CommandOutcome:
    """Return the outcome of a command that ended by this error."""
    if isinstance(error, TargetFull) or str(error).startswith(STORE_FULL_REASON):
        return CommandOutcome.FULL
    if isinstance(error, CallFailed | StoreDown):
        return CommandOutcome.UNREACHED
    if isinstance(error, click.ClickException | Refused | ConfigError | InputUnreadable | StoreMismatch):
        return CommandOutcome.USAGE
    return CommandOutcome.FAILED


def format_due_time(due_at: int) -> str:
    """Format a due time in Unix milliseconds. One before the year 1 or after 9999 is shown as one of these years."""
    return rfc3339(min(max(due_at / 1000, MIN_TIME_S), MAX_TIME_S))


def without_password(url: str) -> str:
    """Return a URL without user and password."""
    return _USERINFO.sub("//", url, count=1)
