"""Options that the commands of `bulk` share: where Spark runs, and where the tasks are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click

from later.cli.options import config_options
from later.config import Config, load

MASTER = "local[*,4]"
"""All cores of this machine. Without the 4, a task of Spark's that fails once fails the job."""

Command = Callable[..., int]


class LaterAddress(NamedTuple):
    """Where the tasks are: the URL of the API (http, https) or of the store, without a password.

    `prefix` is of the store's keys; an answer may take `timeout_s` (s).
    """

    url: str
    prefix: str
    timeout_s: float


def on_spark(command: Command) -> Command:
    """Give a command --master and --conf, as its parameters `master` and `conf`; it runs only where Spark is."""
    decorated = click.option(
        "--conf", callback=_settings_of_what_is_here, metavar="KEY=VALUE", multiple=True,
        help="A setting of Spark's; repeatable.",
    )(command)  # fmt: skip
    return click.option(
        "--master", default=MASTER, show_default=True, metavar="URL",
        help="Where Spark runs: here, or spark://, yarn or k8s:// for a cluster.",
    )(decorated)  # fmt: skip


def to_later(command: Command) -> Command:
    """Give a command the options that say where tasks go, by the API or the store, as its parameter `target`."""

    @wraps(command)
    def with_target(*, url: str | None, **given: Any) -> int:
        flags = {name: given.pop(name) for name in ("config", "wait", "prefix", "store_timeout")}
        return command(target=_target(url, flags), **given)

    decorated = config_options("query", ("wait", "prefix", "store-timeout"))(with_target)
    return click.option(
        "--url", metavar="URL",
        help="Where later's API answers; or the store itself: redis://, rediss:// or unix://, its password in "
        "LATER_REDIS_PASSWORD or in the file that LATER_REDIS_PASSWORD_FILE names."
        "  [default: http://127.0.0.1:8080; LATER_URL for the API's]",
    )(decorated)  # fmt: skip


def of_store(command: Command) -> Command:
    """Give a command the options that say where the store is, as its parameter `target`."""

    @wraps(command)
    def with_target(*, url: str | None, **given: Any) -> int:
        flags = {name: given.pop(name) for name in ("config", "redis", "data", "prefix", "store_timeout")}
        return command(target=_store(url, flags), **given)

    decorated = config_options("status", ("redis", "data", "prefix", "store-timeout"))(with_target)
    return click.option(
        "--url", metavar="URL",
        help="The same as --redis. A password goes into LATER_REDIS_PASSWORD, or into the file that "
        "LATER_REDIS_PASSWORD_FILE names.",
    )(decorated)  # fmt: skip


def _settings_of_what_is_here(
    context: click.Context, parameter: click.Parameter, lines: Sequence[str]
) -> dict[str, str]:
    """The settings. Spark is looked for before the command begins: its own imports and its other options' need it."""
    from later.bulk.spark.preflight import check_packages  # noqa: PLC0415  # no other command needs it

    found = _settings(lines)
    check_packages()
    return found


def _settings(lines: Sequence[str]) -> dict[str, str]:
    """`spark.key=value`, again and again; the last of a key counts, as for spark-submit."""
    found: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{key}: expected spark.KEY=VALUE, like spark.driver.memory=4g")
        found[key] = value
    return found


def _target(url: str | None, flags: dict[str, str | None]) -> LaterAddress:
    """Raises ConfigError."""
    from later.store.url import check_url, is_store_url  # noqa: PLC0415  # heavy: only where a command runs

    store = None if url is None or not is_store_url(check_url(url)) else url
    config = load("query", flags | {"url": url if store is None else None}, os.environ)
    if store is None:
        return LaterAddress(config.url, config.prefix, config.wait_ms / 1000)
    return _target_of_store(store, config)


def _store(url: str | None, flags: dict[str, str | None]) -> LaterAddress:
    """Raises ConfigError."""
    from later.store.url import PASSWORD, check_store_url, password_from_environ, split_password  # noqa: PLC0415  # as above

    if url is not None:
        if flags["redis"] is not None or flags["data"] is not None:
            raise click.UsageError("Either --url, --redis or --data.")
        flags = flags | {"redis": check_store_url(url)}
    config = load("status", flags, os.environ)
    found = _store_url(config)
    if flags["redis"] is None:  # it is not on the command line: the password goes on to where Spark's processes look
        found, password = split_password(found)
        if password and password_from_environ(os.environ) is None:
            os.environ[PASSWORD] = password
    return _target_of_store(check_store_url(found), config)


def _store_url(config: Config) -> str:
    if not config.data_given:
        return config.store_url
    from later.embedded import socket_url  # noqa: PLC0415  # as above

    return socket_url(config.data)


def _target_of_store(url: str, config: Config) -> LaterAddress:
    return LaterAddress(url, config.prefix, config.store_timeout_ms / 1000)
