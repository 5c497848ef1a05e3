"""The command line: flags, environment, exit statuses. Each command imports its heavy half when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from later import __version__
from later.cli.bulk.group import of_bulk
from later.cli.commands.dead import of_dead
from later.cli.commands.tasks import explain, list_tasks, run_now, update
from later.cli.commands.topics import of_namespaces, of_topics
from later.cli.exit import Ended, attempt
from later.cli.options import (
    InOrder,
    an_object_a_line,
    client_of,
    configured,
    examples,
    headers,
    reading,
    retries,
    seconds,
)
from later.config import Config, load
from later.core.errors import StoreDown

if TYPE_CHECKING:
    from later.store.open import Store


def main() -> None:
    """The program `later`."""
    _open_what_was_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever the terminal's encoding, there is an answer
    ended = run(sys.argv[1:])
    if ended.at_once:
        # A thread of a daemon may hang in a name lookup for a minute, and the interpreter would wait for it.
        os._exit(ended.status)
    sys.exit(ended.status)


def _open_what_was_closed() -> None:
    """Standard input, output and error that we were started without (`2>&-`): they go nowhere.

    Or the first file or connection that is opened would get their number, and what is printed and logged.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it is `number`: the lowest that is free
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # until the end


def run(arguments: Sequence[str]) -> Ended:
    """Run one command; what it has to say is said when this returns."""
    at_once = False

    def work() -> int:
        nonlocal at_once
        result = later.main(list(arguments), prog_name="later", standalone_mode=False)
        if isinstance(result, Ended):
            at_once = result.at_once
            result = result.status
        sys.stdout.flush()
        return int(result or 0)

    status = attempt(work)
    return Ended(status, at_once)


# The commands


@click.group(
    cls=InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Every option with a LATER_… name is also an environment variable, and a key in later.toml (--config FILE). "
    "The order is: flag, environment, file, default.",
)
@click.version_option(__version__, message="later %(version)s")
def later() -> None:
    """Remember HTTP calls and make them when they are due."""


@later.command(epilog=examples("later up", "later up --data /var/lib/later --listen 127.0.0.1:9000"))
@configured("up")
def up(**flags: str | None) -> Ended:
    """Run API and workers in one go.

    On a store of its own, below --data, unless --redis names one.
    """
    return _run_daemon("up", flags)


@later.command(epilog=examples("later serve --redis redis://10.0.0.5:6379/0", "later serve --data ./later-data"))
@configured("serve")
def serve(**flags: str | None) -> Ended:
    """Run the HTTP frontend alone.

    On --redis, or on the store of an `up` that runs (--data).
    """
    return _run_daemon("serve", flags)


@later.command(epilog=examples("later worker --redis redis://10.0.0.5:6379/0 --concurrency 1000"))
@configured("worker")
def worker(**flags: str | None) -> Ended:
    """Run the delay, unack and error tickers alone.

    On --redis, or on the store of an `up` that runs (--data).
    """
    return _run_daemon("worker", flags)


@later.command(
    epilog=examples(
        "later create --topic order --callback http://127.0.0.1:8888/success --delay 10m --content hello",
        "later create --from tasks.ndjson --job import-7",
    )
)
@click.option("--topic", metavar="TEXT", help="What the task is about; needed, as is --callback.")
@click.option("--callback", metavar="URL", help="Where to POST the task when it is due.")
@click.option(
    "--delay", callback=reading(seconds), metavar="DURATION", help="When it is due, from now.  [default: the topic's]"
)
@click.option(
    "--execute-time", type=float, metavar="SECONDS", help="When it is due, in Unix seconds; instead of --delay."
)
@click.option("--retry", type=int, help="How many failures are followed by another try.  [default: the topic's]")
@click.option("--content", metavar="TEXT", help="What to POST.  [default: nothing]")
@click.option("--content-file", metavar="FILE", help="Read the content from a file of UTF-8, - for standard input.")
@click.option(
    "--header",
    "headers",
    callback=headers,
    metavar="'NAME: VALUE'",
    multiple=True,
    help="Send it with the call; repeatable.",
)
@click.option(
    "--ttl",
    callback=reading(seconds),
    metavar="DURATION",
    help="Do not deliver it once it is so old.  [default: the topic's]",
)
@click.option(
    "--id", metavar="TEXT", help="An id of your own: creating it again creates nothing.  [default: a new one]"
)
@click.option("--from", "source", metavar="FILE", help="Create a task of each line of NDJSON, - for standard input. "
              "A line without an id gets one: sending the file again makes its task again.")  # fmt: skip
@click.option("--job", metavar="TEXT", help="With --from: count the file's tasks into this job.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="With --from: lines sent at once."
)
@retries("With --from: how often a batch is sent again that did not get through.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@configured("create")
def create(
    *, source: str | None, job: str | None, batch: int, retries: int, as_json: bool,
    config: str | None, url: str | None, wait: str | None, **task: Any,
) -> int:  # fmt: skip
    """Create a task, or many from a file.

    Prints the task's id, or what the file came to; exit status 1 if a line of it was not created.
    """
    client = client_of({"config": config, "url": url, "wait": wait})
    if source is not None:
        if any(value is not None for value in task.values()):
            raise click.UsageError("--from takes the tasks from the file alone.")
        from later.cli.commands.create_file import create_from

        return create_from(client, source, job=job, batch=batch, retries=retries, as_json=as_json)
    if job is not None:
        raise click.UsageError("--job goes with --from.")
    for name in ("topic", "callback"):
        if task[name] is None:
            raise click.UsageError(f"Missing option '--{name}'.")
    from later.cli import calls

    return calls.create(client, calls.with_content(task), as_json=as_json)


@later.command(epilog=examples("later query 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@an_object_a_line
@configured("query")
def query(*, ids: tuple[str, ...], as_json: bool, **flags: str | None) -> int:
    """Show where tasks are.

    Exit status 1 if one of them is not there.
    """
    client = client_of(flags)
    from later.cli import calls

    return calls.query(client, ids, as_json=as_json)


@later.command(epilog=examples("later delete 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@an_object_a_line
@configured("delete")
def delete(*, ids: tuple[str, ...], as_json: bool, **flags: str | None) -> int:
    """Delete tasks, wherever they are.

    Prints their ids; exit status 1 if one of them is not there.
    """
    client = client_of(flags)
    from later.cli import calls

    return calls.delete(client, ids, as_json=as_json)


for command in (list_tasks, explain, update, run_now, of_dead, of_topics, of_namespaces, of_bulk):
    later.add_command(command)


@later.command(epilog=examples("later status --data ./later-data", "later status --json"))
@click.option(
    "--topics", type=click.IntRange(0), default=20, show_default=True, help="Topics shown, of those with most to do."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@configured("status")
def status(*, topics: int, as_json: bool, **flags: str | None) -> int:
    """Show store, workers, tasks and backlog.

    The tasks by state and topic, what is due, and how late the oldest of it is.
    """
    config = _prepared("status", flags)
    from later.cli.commands import status

    async def look(memory: Store) -> int:
        found = await status.survey(memory, config.shown_store_url)
        (status.print_json if as_json else status.print_text)(found, topics)
        return 0

    return _with_memory(config, look)


@later.command(epilog=examples("later doctor", "later doctor --repair --data ./later-data"))
@click.option("--repair", is_flag=True, help="Mend what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line: each finding, then a summary.")
@configured("doctor")
def doctor(*, repair: bool, as_json: bool, **flags: str | None) -> int:
    """Examine the whole store, and mend it.

    Is every task in exactly one bucket, every bucket entry a task, every wake entry right? Safe beside running
    workers. Exit status 1 if something is wrong and was not mended.
    """
    config = _prepared("doctor", flags)
    from later.cli.commands.doctor import look_through

    async def look(memory: Store) -> int:
        return await look_through(memory, repair=repair, as_json=as_json)

    return _with_memory(config, look)


# What commands stand on


def _run_daemon(command: str, flags: Mapping[str, str | None]) -> Ended:
    config = _prepared(command, flags)
    if config.processes == 1:
        from later.daemon.single import run
    else:
        from later.processes.supervisor import run

    return Ended(attempt(lambda: run(command, config)), at_once=True)


def _prepared(command: str, flags: Mapping[str, str | None]) -> Config:
    """The configuration, with the log set up by it."""
    config = load(command, flags, os.environ)
    if command != "up" and config.data_given:
        from later.embedded import socket_url

        config = replace(config, store_url=socket_url(config.data))
    from later import log

    log.setup(config.log_format, config.log_level)
    return config


def _with_memory(config: Config, look: Callable[[Store], Awaitable[int]]) -> int:
    import asyncio
    import time
    from contextlib import aclosing

    from later.core.clock import Clock
    from later.store.open import open_store
    from later.store.settings import StoreSettings

    timeout_s = config.store_timeout_ms / 1000
    settings = StoreSettings(url=config.store_url, prefix=config.prefix, timeout_s=timeout_s)

    async def open_and_look() -> int:
        try:
            clock = Clock(time.monotonic, time.time)
            async with aclosing(await open_store(settings, clock, config.policy, config.shards)) as store:
                return await look(store)
        except StoreDown as error:
            raise StoreDown(f"{error}{_hint(config)}") from error

    return asyncio.run(open_and_look())


def _hint(config: Config) -> str:
    """For whoever forgot that the store of an `up` is not at the default address."""
    forgot = not config.redis_given and not config.data_given and (config.data / "store.sock").exists()
    return f" (for the store of `later up`: --data {config.data})" if forgot else ""
