"""The commands `list`, `explain`, `update` and `run-now`. Each imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

from typing import Any

import click

from later.cli.options import (
    CALL,
    MOST,
    an_object_a_line,
    client_of,
    configured,
    examples,
    headers,
    one_object,
    reading,
    seconds,
)
from later.cli.times import DUE_TIMES, due_times

STATES = ("delay", "unack", "error", "dead")


@click.command(
    "list",
    epilog=examples(
        "later list order", "later list order --state error --limit 10", "later list order --due-before 0s --json",
        about=DUE_TIMES,
    ),
)  # fmt: skip
@click.argument("topic")
@click.option("--state", type=click.Choice(STATES), default="delay", show_default=True,
              help="Waiting (delay), in flight (unack), waiting for another try (error), or dead.")  # fmt: skip
@due_times
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="So many at most.")
@an_object_a_line
@configured(CALL)
def list_tasks(
    *, topic: str, state: str, due_after: float | None, due_before: float | None, limit: int, as_json: bool,
    **flags: str | None,
) -> int:  # fmt: skip
    """Show a topic's tasks in one state.

    By when they are due: in unack that is the end of the lease, in error of the pause, in dead when they died.
    """
    client = client_of(flags)
    from later.cli.commands import listing

    return listing.list_tasks(
        client, listing.Stretch(topic, state, due_after, due_before), limit=limit, as_json=as_json
    )


@click.command(epilog=examples("later explain 35adbde5-77c4-4d65-adac-0082d91f2554", "later explain --topic order"))
@click.argument("id", required=False)
@click.option("--topic", metavar="TEXT", help="Explain this topic instead.")
@one_object
@configured(CALL)
def explain(*, id: str | None, topic: str | None, as_json: bool, **flags: str | None) -> int:
    """Say why a task, or a topic, has not run yet.

    In a sentence; then the figures behind it.
    """
    if (id is None) == (topic is None):
        raise click.UsageError("Either an ID or --topic.")
    client = client_of(flags)
    from later.cli import calls

    return calls.explain(client, {"topic": topic} if id is None else {"id": id}, as_json=as_json)


@click.command(epilog=examples("later update 35adbde5-77c4-4d65-adac-0082d91f2554 --delay 10m"))
@click.argument("id")
@click.option("--delay", callback=reading(seconds), metavar="DURATION", help="When it is due, from now.")
@click.option("--execute-time", type=float, metavar="SECONDS", help="When it is due, in Unix seconds.")
@click.option("--content", metavar="TEXT", help="What to POST.")
@click.option("--content-file", metavar="FILE", help="Read the content from a file of UTF-8, - for standard input.")
@click.option("--callback", metavar="URL", help="Where to POST it.")
@click.option("--header", "headers", callback=headers, metavar="'NAME: VALUE'", multiple=True,
              help="Send it with the call; repeatable. These take the place of all that it had.")  # fmt: skip
@click.option("--retry", type=int, help="How many failures are followed by another try.")
@click.option("--ttl", callback=reading(seconds), metavar="DURATION",
              help="Do not deliver it once it is so old, counted from its creation; 0: however old.")  # fmt: skip
@one_object
@configured(CALL)
def update(
    *, id: str, as_json: bool, config: str | None, url: str | None, wait: str | None, **changes: Any,
) -> int:  # fmt: skip
    """Change a task that waits, in delay or error.

    What is not given stays as it is. Prints where the task is then. Exit status 1 if it is in flight, dead or not
    there.
    """
    if all(value is None for value in changes.values()):
        raise click.UsageError("Nothing to change: give at least one option, as in --delay 10m.")
    client = client_of({"config": config, "url": url, "wait": wait})
    from later.cli import calls

    return calls.update(client, id, calls.with_content(changes), as_json=as_json)


@click.command("run-now", epilog=examples("later run-now 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@an_object_a_line
@configured(CALL)
def run_now(*, ids: tuple[str, ...], as_json: bool, **flags: str | None) -> int:
    """Make tasks due now.

    From delay, error or dead. Prints their ids; exit status 1 if one of them is in flight or not there.
    """
    client = client_of(flags)
    from later.cli import calls

    return calls.run_now(client, ids, as_json=as_json)
