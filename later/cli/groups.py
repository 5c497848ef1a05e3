"""Click groups: one imports its commands when they are called, the other keeps their order."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import click

from later.core.errors import ConfigError


class Extra(NamedTuple):
    """An extra of the package: its name, modules that it installs on every platform, and what it is called."""

    name: str
    modules: tuple[str, ...]
    title: str

    def check(self, command: str) -> None:
        """Raise ConfigError if a module is missing that this command needs."""
        if any(map(_is_missing, self.modules)):
            raise ConfigError(f"`{command}` needs {self.title}: pip install 'later[{self.name}]'")


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # not even the package is there that it is in
        return True


class LazyCommand(NamedTuple):
    """A command that is not imported yet.

    `path` is `module:attribute`; `help` is its line in the group's help; `extra` is what must be installed besides
    later itself.
    """

    path: str
    help: str
    extra: Extra | None = None


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
        if lazy is None:
            return None
        if lazy.extra is not None:
            lazy.extra.check(cmd_name)
        return load_command(lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy_commands and not name.startswith("-"):  # click has no names to propose
            proposed = get_close_matches(name, self.lazy_commands, n=1)
            hint = f" Did you mean {proposed[0]!r}?" if proposed else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

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
