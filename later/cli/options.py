"""Options as click knows them: those of the configuration's table, and how single values are read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from later.client.http import Client
from later.config import OPTIONS, Option, load
from later.option_types import milliseconds

Function = TypeVar("Function", bound=Callable[..., Any])

CALL = "query"
"""It has the options that every call has, --url and --wait."""
MOST = 1_000_000_000
"""Of what a command shows."""
DURATIONS = "A DURATION is a number of seconds or has a unit: 500ms, 15s, 10m, 2h, 7d."
CONFIG = "Read options from this file.  [default: later.toml, if there is one; LATER_CONFIG]"


class InOrder(click.Group):
    """Lists its commands in the order in which they were written down."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def configured(command: str) -> Callable[[Function], Function]:
    """Give a command its options of the table, and --config."""
    return chosen(command, [option.name for option in OPTIONS if command in option.commands])


def chosen(command: str, names: Collection[str]) -> Callable[[Function], Function]:
    """Give a command these options of the table, with what they are by default for `command`, and --config."""

    def decorate(function: Function) -> Function:
        function = click.option("--config", metavar="FILE", help=CONFIG)(function)
        for option in reversed([option for option in OPTIONS if option.name in names]):
            flag = (f"--{option.name}", option.key)
            function = click.option(*flag, metavar=option.read.shape, help=_help(option, command))(function)
        return function

    return decorate


def _help(option: Option, command: str) -> str:
    return f"{option.help}  [default: {_default(option, command)}; {option.variable}]"


def _default(option: Option, command: str) -> str:
    if option.name == "redis" and command == "up":
        return "none, but the embedded store"
    if option.name == "data" and command != "up":
        return "none, but --redis"
    return option.shown or option.default or ""


def examples(*lines: str, about: str = "") -> str:
    """What stands below a command's options; `about` says how other values than durations are written."""
    return "\n\n".join(filter(None, (about, DURATIONS, "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines))))


def retries(what: str) -> Callable[[Function], Function]:
    """Give a command --retries."""
    return click.option("--retries", type=click.IntRange(0, 100), default=5, show_default=True, help=what)


def one_object(function: Function) -> Function:
    """Give a command --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def an_object_a_line(function: Function) -> Function:
    """Give a command that may have more to print --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")(function)


def reading(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """What reads an option's text; `read` raises ValueError with what it takes."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(f"{text}: expected {error}") from None

    return callback


def seconds(text: str) -> float:
    """A duration in seconds, as the API takes it. Raises ValueError."""
    return milliseconds(text) / 1000


def headers(context: click.Context, parameter: click.Parameter, lines: Sequence[str]) -> dict[str, str] | None:
    """`Name: value`, again and again; no error shows a value, for it may be a secret."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name:
            raise click.BadParameter("expected 'Name: value'")
        if name.lower() in {known.lower() for known in found}:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = value.strip()
    return found or None


class Manner(NamedTuple):
    """`yes`: without asking; `dry_run`: not at all, but saying how many tasks it would be."""

    yes: bool
    dry_run: bool
    retries: int
    as_json: bool


def of_many(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of those that do something to many tasks, as its parameter `manner`."""

    @wraps(command)
    def with_manner(*, yes: bool, dry_run: bool, retries: int, as_json: bool, **others: Any) -> int:
        return command(manner=Manner(yes, dry_run, retries, as_json), **others)

    decorated = retries("How often a slice is asked for again that did not get through.")(one_object(with_manner))
    decorated = click.option("--dry-run", is_flag=True, help="Do nothing; say how many tasks it would be.")(decorated)
    return click.option("--yes", is_flag=True, help="Go without asking; needed where there is no terminal.")(decorated)


def client_of(flags: Mapping[str, str | None]) -> Client:
    """The API at --url. Raises ConfigError."""
    config = load("query", flags, os.environ)
    return Client(config.url, config.wait_ms / 1000, time.time)
