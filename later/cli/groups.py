"""Click groups: one that imports its commands when they are called, and one that keeps their order."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """A command that is not imported yet: `module:attribute`, and its line in the group's help."""

    path: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that its help needs none of them.

    As in click's documentation ("Lazily Loading Subcommands"), but help is taken from the table.
    """

    def __init__(self, *args: Any, lazy_commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self.lazy_commands.get(cmd_name)
        return None if lazy is None else load_command(lazy)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.lazy_commands.items()])


def load_command(lazy: LazyCommand) -> click.Command:
    """Import a command."""
    module, _, attribute = lazy.path.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{lazy.path} is not a command")
    return command


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)
