"""The program `later`: its commands, and the run of one of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from later import __version__
from later.cli.exit import ExitStatus, exit_code
from later.cli.groups import Extra, LazyCommand, LazyGroup

SERVER = Extra(
    "server",
    (
        "aiohappyeyeballs",
        "cronsim",
        "hiredis",
        "httptools",
        "prometheus_client",
        "redis",
        "rich",
        "structlog",
        "tzdata",
        "yarl",
    ),
    "the server",
)
"""The packages that the daemons need, and the commands that open the store."""

COMMANDS = {
    "up": LazyCommand("later.cli.commands.daemon:up", "Run the API and a worker.", SERVER),
    "serve": LazyCommand("later.cli.commands.daemon:serve", "Run the API without a worker.", SERVER),
    "worker": LazyCommand("later.cli.commands.daemon:worker", "Run a worker without the API.", SERVER),
    "dev": LazyCommand("later.cli.commands.dev:dev", "Run a daemon with a clock to move, for tests.", SERVER),
    "create": LazyCommand("later.cli.commands.tasks:create", "Create a task, or many from a file."),
    "query": LazyCommand("later.cli.commands.tasks:query", "Show tasks by id."),
    "delete": LazyCommand("later.cli.commands.tasks:delete", "Delete tasks in any state."),
    "list": LazyCommand("later.cli.commands.listing:list_tasks", "List a topic's tasks in one state."),
    "explain": LazyCommand("later.cli.commands.tasks:explain", "Explain why a task or a topic has not run yet."),
    "forecast": LazyCommand(
        "later.cli.commands.forecast:forecast", "Show when waiting tasks fall due, of one topic or of all."
    ),
    "update": LazyCommand("later.cli.commands.tasks:update", "Change a waiting task."),
    "run-now": LazyCommand("later.cli.commands.tasks:run_now", "Make tasks due now."),
    "dead": LazyCommand("later.cli.commands.dead:dead", "List, redrive and purge dead tasks."),
    "claim": LazyCommand("later.cli.commands.claims:claim", "Claim due tasks of pulled topics."),
    "ack": LazyCommand("later.cli.commands.claims:ack", "Say that claimed tasks are done."),
    "nack": LazyCommand("later.cli.commands.claims:nack", "Say that an attempt at claimed tasks has failed."),
    "release": LazyCommand("later.cli.commands.claims:release", "Give claimed tasks back."),
    "extend": LazyCommand("later.cli.commands.claims:extend", "Keep claimed tasks for longer."),
    "work": LazyCommand("later.cli.commands.work:work", "Run a command for each task of a pulled topic."),
    "run": LazyCommand("later.cli.commands.run:run", "Run the handlers of a Python application."),
    "topics": LazyCommand("later.cli.commands.topics:topics", "Show, pause and purge topics, and set their policies."),
    "namespaces": LazyCommand("later.cli.commands.topics:namespaces", "Set the policies of namespaces."),
    "schedules": LazyCommand(
        "later.cli.commands.schedules:schedules", "Create tasks again and again: put, show and pause schedules."
    ),
    "handlers": LazyCommand(
        "later.cli.commands.handlers:handlers", "List, check and apply the handlers of an application."
    ),
    "bulk": LazyCommand("later.cli.bulk.group:bulk", "Create and manage tasks by the hundred million, with Spark."),
    "keys": LazyCommand("later.cli.commands.keys:keys", "Make, show and revoke API keys.", SERVER),
    "secrets": LazyCommand(
        "later.cli.commands.secrets:secrets", "Show and rotate the secrets that sign deliveries.", SERVER
    ),
    "audit": LazyCommand(
        "later.cli.commands.audit:audit", "Show who changed keys, policies, topics or many tasks.", SERVER
    ),
    "check": LazyCommand(
        "later.cli.commands.check:check", "Say whether the address guard lets a URL be called.", SERVER
    ),
    "healthy": LazyCommand("later.cli.commands.healthy:healthy", "Say whether the daemon that runs here works."),
    "cluster": LazyCommand(
        "later.cli.commands.cluster:cluster", "Plan how shards fall on the nodes of a cluster.", SERVER
    ),
    "status": LazyCommand("later.cli.commands.status:status", "Show the store, its workers and its tasks.", SERVER),
    "doctor": LazyCommand(
        "later.cli.commands.doctor:doctor", "Check the whole store; with --repair, repair it.", SERVER
    ),
    "move": LazyCommand("later.cli.commands.move:move", "Move all data to another store.", SERVER),
    "export": LazyCommand("later.cli.commands.exports:export", "Write all data of the store to a file.", SERVER),
    "import": LazyCommand("later.cli.commands.imports:import_", "Read an export into the store.", SERVER),
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
