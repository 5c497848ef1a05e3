"""Options that commands share: those of the configuration, of the API client and of mass actions, and single ones."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from later.cli.console import notify
from later.client.http import ApiClient
from later.client.key_source import KEY, is_readable_by_others, read_key
from later.config import Config, load
from later.option_table import OPTIONS
from later.option_types import OptionType, any_rate, duration_s, switch

Command = TypeVar("Command", bound=Callable[..., Any])

CLIENT_COMMAND = "query"
"""A command that has the same options of the configuration as every other client of the API: --url and --wait."""
STORE_COMMAND = "status"
"""A command that has the same options of the configuration as every other one that opens the store."""
MAX_LISTED = 1_000_000_000
"""The largest --limit of a command that lists tasks or topics."""
DURATION_HELP = "A DURATION is a number of seconds or has a unit: 500ms, 15s, 10m, 2h, 7d, 1h30m."
CONFIG_HELP = "File to read options from.  [default: later.toml, if it exists; LATER_CONFIG]"


if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.4 only


class OptionParamType(ParamType):
    """An `OptionType` as a parameter type of click."""

    def __init__(self, option_type: OptionType) -> None:
        self.name = option_type.metavar
        self._option_type = option_type

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._option_type(value)
        except ValueError as error:
            self.fail(f"{value}: expected {error}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name


DURATION = OptionParamType(duration_s)
"""A duration in seconds, as the HTTP API takes it."""
RATE = OptionParamType(any_rate)
SWITCH = OptionParamType(switch)


# The configuration


def config_options(command_name: str, only: Collection[str] | None = None) -> Callable[[Command], Command]:
    """Return the decorator that gives a command --config and its options of the configuration, or `only` those named.

    `command_name` decides which options the command has, and which defaults its help shows.
    """
    options = [
        option for option in OPTIONS if (command_name in option.commands if only is None else option.name in only)
    ]

    def decorate(command: Command) -> Command:
        command = click.option("--config", metavar="FILE", help=CONFIG_HELP)(command)
        for option in reversed(options):
            default = option.shown_default or option.default or ""
            if option.name == "redis" and command_name == "up":
                default = "the embedded store"
            elif option.name == "data" and command_name == "dev":
                default = "a temporary one, removed at the end"
            elif option.name == "data" and command_name != "up":
                default = "none: --redis applies"
            elif option.name == "url" and command_name == "run":
                default = "the application's"
            help = f"{option.help}  [default: {default}; {option.variable}]"
            form: dict[str, Any] = {}
            if option.type.is_list:
                form = {"multiple": True, "callback": _join_values}
            elif option.type is switch:
                form = {"is_flag": False, "flag_value": "on"}  # without a value, it is turned on
            command = click.option(f"--{option.name}", option.key, metavar=option.type.metavar, help=help, **form)(
                command
            )
        return command

    return decorate


def _join_values(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> str | None:
    """Return the values of an option that may be given many times as one text."""
    return ",".join(values) or None


def client_options(command: Command) -> Command:
    """Give a command --url, --key-file, --ca, --wait and --config, and pass it the client of that API as `client`."""

    @wraps(command)
    def with_client(**parameters: Any) -> Any:
        flags = {name: parameters.pop(name) for name in ("config", "url", "key_file", "ca", "wait")}
        return command(client=build_client(flags), **parameters)

    return config_options(CLIENT_COMMAND)(with_client)  # type: ignore[return-value]  # one keyword less, the same result


def build_client(flags: Mapping[str, str | None]) -> ApiClient:
    """Build the client of the API at --url; it is closed when the command ends. Raises ConfigError."""
    config = load(CLIENT_COMMAND, flags, os.environ)
    client = ApiClient(config.url, config.wait_ms / 1000, time.time, load_key(flags, config).key, config.ca)
    click.get_current_context().call_on_close(client.close)
    return client


class LoadedKey(NamedTuple):
    """The API key of a command, and the file that it was read from; None for none."""

    key: str | None
    file: str | None


def load_key(flags: Mapping[str, str | None], config: Config) -> LoadedKey:
    """Load the API key of --key-file, the environment or the configuration's file, in this order.

    A file that others can read is warned of. It is not refused: what they have read, they have.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    file = config.key_file
    if flags.get("key_file") is None and os.environ.get(KEY):
        file = None
    key = read_key(file, os.environ)
    if file is not None and is_readable_by_others(file):
        notify(f"{file}: other users can read this key: chmod 600 {shlex.quote(file)}")
    return LoadedKey(key, file)


# Mass actions


class ActionOptions(NamedTuple):
    """The options of a mass action. `yes`: do not ask for confirmation; `dry_run`: only count the tasks."""

    yes: bool
    dry_run: bool
    retries: int
    as_json: bool


def action_options(command: Command) -> Command:
    """Give a command the options of a mass action, as its parameter `options` (`ActionOptions`)."""

    @wraps(command)
    def with_options(*, yes: bool, dry_run: bool, retries: int, as_json: bool, **others: Any) -> Any:
        return command(options=ActionOptions(yes, dry_run, retries, as_json), **others)

    decorated: Any = with_options
    for option in (
        json_option,
        retries_option("How often a failed request is repeated."),
        click.option("--dry-run", is_flag=True, help="Change nothing; print how many tasks would be changed."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click keeps what it decorates


# Single options


def retries_option(help: str) -> Callable[[Command], Command]:
    """Return the decorator that gives a command --retries."""
    return click.option(
        "--retries", type=click.IntRange(0, 100), metavar="NUMBER", default=5, show_default=True, help=help
    )


def limit_option(command: Command) -> Command:
    """Give a command that lists tasks --limit."""
    limit = click.IntRange(1, MAX_LISTED)
    return click.option(
        "--limit", type=limit, metavar="NUMBER", default=50, show_default=True, help="Tasks listed at most."
    )(command)


def json_option(command: Command) -> Command:
    """Give a command that prints one result --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def json_lines_option(command: Command) -> Command:
    """Give a command that may print several results --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(command)


def retry_option(command: Command) -> Command:
    """Give a command that makes tasks --retry."""
    return click.option(
        "--retry", type=int, metavar="NUMBER", help="Retries after the first attempt.  [default: the topic's]"
    )(command)


def content_options(command: Command) -> Command:
    """Give a command that makes tasks --content and --content-file."""
    file = click.option(
        "--content-file", metavar="FILE", help="Read the content from a UTF-8 file; - is standard input."
    )
    return click.option("--content", metavar="TEXT", help="Content to POST.  [default: empty]")(file(command))


def header_options(command: Command) -> Command:
    """Give a command that makes tasks --header and --context."""
    context = click.option(
        "--context", callback=parse_context, metavar="NAME=VALUE", multiple=True,
        help="Text that the receiver gets under this name, beside the content; repeatable.",
    )  # fmt: skip
    header = click.option(
        "--header", "headers", callback=parse_headers, metavar="'NAME: VALUE'", multiple=True,
        help="Header to send with the POST; repeatable.",
    )  # fmt: skip
    return header(context(command))


def parse_headers(context: click.Context, parameter: click.Parameter, lines: Sequence[str]) -> dict[str, str] | None:
    """Parse repeated `Name: value` options. No error shows a value, because it may be a secret."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name:
            raise click.BadParameter("expected 'Name: value'")
        if name.lower() in {known.lower() for known in headers}:
            raise click.BadParameter(f"{name} is given twice")
        headers[name] = value.strip()
    return headers or None


def parse_context(context: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, str] | None:
    """Parse repeated `name=value` options. No error shows a value, because it may be a secret."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter("expected name=value")
        if name in values:
            raise click.BadParameter(f"{name} is given twice")
        values[name] = value
    return values or None


def examples(*lines: str, about: str = "") -> str:
    """Return the text below a command's options: `about`, how a DURATION is written, and example commands."""
    commands = "".join(f"\n  {line}" for line in lines)
    return "\n\n".join(filter(None, (about, DURATION_HELP, f"\b\nExamples:{commands}")))
