"""Click groups: one imports its commands when they are called, the other keeps their order."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.exceptions import NoSuchCommand


class LazyCommand(NamedTuple):
    """A command that is not imported yet. `path` is `module:attribute`; `help` is its line in the group's help."""

    path: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that its help needs none of them.

    It works like the one in click's documentation ("Lazily Loading Subcommands"), but takes help from `lazy_commands`.
    """

    def __init__(self, *args: Any, lazy_commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self.lazy_commands.get(cmd_name)
        return None if lazy is None else load_command(lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:  # click knows only commands that are imported, and would propose none
            raise NoSuchCommand(error.command_name, possibilities=self.lazy_commands, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.lazy_commands.items()])


def load_command(lazy: LazyCommand) -> click.Command:
    """Import a command and return it."""
    module, _, attribute = lazy.path.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{lazy.path} is not a command")
    return command


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)
