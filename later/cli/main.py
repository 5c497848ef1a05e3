"""The program `later`: its commands and its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from later import __version__
from later.cli.exit import ExitStatus, exit_code
from later.cli.groups import LazyCommand, LazyGroup

COMMANDS = {
    "up": LazyCommand("later.cli.commands.daemon:up", "Run the API and a worker."),
    "serve": LazyCommand("later.cli.commands.daemon:serve", "Run the API without a worker."),
    "worker": LazyCommand("later.cli.commands.daemon:worker", "Run a worker without the API."),
    "create": LazyCommand("later.cli.commands.tasks:create", "Create a task, or many from a file."),
    "query": LazyCommand("later.cli.commands.tasks:query", "Show tasks by id."),
    "delete": LazyCommand("later.cli.commands.tasks:delete", "Delete tasks in any state."),
    "list": LazyCommand("later.cli.commands.listing:list_tasks", "List a topic's tasks in one state."),
    "explain": LazyCommand("later.cli.commands.tasks:explain", "Explain why a task or a topic has not run yet."),
    "update": LazyCommand("later.cli.commands.tasks:update", "Change a waiting task."),
    "run-now": LazyCommand("later.cli.commands.tasks:run_now", "Make tasks due now."),
    "dead": LazyCommand("later.cli.commands.dead:dead", "List, redrive and purge dead tasks."),
    "topics": LazyCommand("later.cli.commands.topics:topics", "Show, pause and purge topics, and set their policies."),
    "namespaces": LazyCommand("later.cli.commands.topics:namespaces", "Set the policies of namespaces."),
    "bulk": LazyCommand("later.cli.bulk.group:bulk", "Create and manage tasks by the hundred million, with Spark."),
    "status": LazyCommand("later.cli.commands.status:status", "Show the store, its workers and its tasks."),
    "doctor": LazyCommand("later.cli.commands.doctor:doctor", "Check the whole store; with --repair, repair it."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="An option whose help names a variable LATER_… can also be set by that environment variable, or by a key in "
    "later.toml (--config FILE). The first that is set counts: command line, environment, file, default. "
    "A command reads only its own options.",
)
@click.version_option(__version__, message="later %(version)s")
def later() -> None:
    """Schedule HTTP callbacks: later calls a URL when a task is due, and retries until the receiver confirms it."""


def main() -> None:
    """Run the program and end the process."""
    _open_missing_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any answer can be printed, whatever the terminal's encoding
    status = run(sys.argv[1:])
    if status.immediate:
        # A daemon's thread may hang in a name lookup for a minute, and the interpreter would wait for it.
        os._exit(status.code)
    sys.exit(status.code)


def _open_missing_streams() -> None:
    """Open standard input, output and error on /dev/null if they are closed (`2>&-`).

    Otherwise the next file or connection opened would get such a descriptor, and would receive all that is printed.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets `number`, the lowest free descriptor
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # never closed


def run(arguments: Sequence[str]) -> ExitStatus:
    """Run one command, flush its output, and return its exit status."""
    immediate = False

    def work() -> int:
        nonlocal immediate
        result = later.main(list(arguments), prog_name="later", standalone_mode=False)
        if isinstance(result, ExitStatus):
            immediate = result.immediate
            result = result.code
        sys.stdout.flush()
        return int(result or 0)

    code = exit_code(work)
    return ExitStatus(code, immediate)
