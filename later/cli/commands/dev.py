"""The group `dev`: a daemon with a clock to move, for tests, and the commands that move it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from later.cli.exit import CommandFailed, ExitStatus, exit_code
from later.cli.groups import OrderedGroup
from later.cli.options import DURATION, Command, client_options, config_options, examples
from later.cli.root_key import read_root_key
from later.cli.store_access import load_config
from later.cli.times import EXECUTE_TIME
from later.client.http import ApiClient
from later.embedded.temporary import temporary_directory

CLOCK_PATH = "/dev/clock"
SETTLE_HELP = "Wait until all that is due then has been tried, for as long as --wait says."
STEP_HELP = "Stop at each time on the way at which something is due, until that has been tried."


@click.group(
    cls=OrderedGroup,
    invoke_without_command=True,
    epilog=examples("later dev", "later dev advance 30d", "later dev advance-to 2027-01-01T00:00:00Z --step"),
)
@config_options("dev")
@click.pass_context
def dev(context: click.Context, /, **flags: str | None) -> ExitStatus | None:
    """Run a daemon with a clock to move, for tests.

    A task that is due in 30 days is delivered when the clock was moved on by as much: `later dev advance 30d`, or POST
    {"advance": 2592000} to /dev/clock. The clock runs on meanwhile, and moves only forward.

    It has an embedded store of its own, which no other daemon can use, and listens on this machine only.
    """
    return _run(flags) if context.invoked_subcommand is None else None


def _run(flags: Mapping[str, str | None]) -> ExitStatus:
    with ExitStack() as stack:

        def work() -> int:
            config = read_root_key(load_config("dev", flags), os.environ)
            if not config.data_given:
                config = replace(config, data=stack.enter_context(temporary_directory()))
            # imported here, because commands that move the clock of another process need none of it
            return int(importlib.import_module("later.daemon.single").run(config))

        return ExitStatus(exit_code(work), immediate=True)


def _move_options(command: Command) -> Command:
    """Give a command that moves the clock --settle and --step, and the options of the API's client."""
    settle = click.option("--settle", is_flag=True, help=SETTLE_HELP)
    step = click.option("--step", is_flag=True, help=STEP_HELP)
    return settle(step(client_options(command)))


@dev.command("advance", epilog=examples("later dev advance 30d", "later dev advance 90m --settle"))
@click.argument("duration", type=DURATION)
@_move_options
def advance(*, client: ApiClient, duration: float, settle: bool, step: bool) -> int:
    """Move the clock of a running `later dev` on by DURATION, and print the time."""
    return _move(client, {"advance": duration}, settle=settle, step=step)


@dev.command("advance-to", epilog=examples("later dev advance-to 2027-01-01T00:00:00Z --step"))
@click.argument("time", type=EXECUTE_TIME)
@_move_options
def advance_to(*, client: ApiClient, time: float | str, settle: bool, step: bool) -> int:
    """Move the clock of a running `later dev` to TIME, RFC 3339 or Unix seconds, and print the time."""
    return _move(client, {"to": time}, settle=settle, step=step)


@dev.command("clock", epilog=examples("later dev clock"))
@client_options
def clock(*, client: ApiClient) -> int:
    """Print the time of a running `later dev`."""
    print(client.ask("GET", CLOCK_PATH)["now"])
    return 0


def _move(client: ApiClient, move: dict[str, Any], *, settle: bool, step: bool) -> int:
    wait_s = client.timeout_s if settle or step else 0.0
    if wait_s:
        move |= {"settle": wait_s, "step": step}
    answer = client.ask("POST", CLOCK_PATH, move, wait_s=wait_s)
    print(answer["now"])
    if answer.get("settled") is False:
        raise CommandFailed(
            f"not all that is due has been tried within {wait_s:g} s (--wait): the clock was to go to {answer['to']}", 1
        )
    return 0
