"""The commands of the group `dead`: `list`, `redrive` and `purge`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from later.cli.commands import mass_actions
from later.cli.commands.listing import TaskFilter, TaskJson, fetch_tasks, last_error, print_tasks, task_time
from later.cli.commands.tasks import redrive_by_id
from later.cli.groups import OrderedGroup
from later.cli.options import (
    RATE,
    ActionOptions,
    Command,
    action_options,
    client_options,
    examples,
    json_lines_option,
    limit_option,
)
from later.cli.times import PAST_TIME_HELP, death_time_options
from later.client.http import ApiClient
from later.core.retry import DEATH_REASONS


def _reason_option(command: Command) -> Command:
    return click.option("--reason", type=click.Choice(DEATH_REASONS), help="Only tasks that died for this reason.")(
        command
    )


@click.group(cls=OrderedGroup)
def dead() -> None:
    """List, redrive and purge dead tasks.

    A task is dead when later has given it up: exhausted (its last retry failed), address (its last retry, too, was
    refused by the address guard), gone (the receiver answered 410), busy (the receiver was busy for a day), expired
    (its ttl ended), lost (its workers crashed again and again) or body (its record cannot be read). It is kept for as
    long as its topic's policy field dead_keep says.
    """


@dead.command(
    "list",
    epilog=examples(
        "later dead list order", "later dead list order --reason exhausted --died-after 2h", about=PAST_TIME_HELP
    ),
)
@click.argument("topic")
@_reason_option
@death_time_options
@limit_option
@json_lines_option
@client_options
def list_dead(
    *, client: ApiClient, topic: str, reason: str | None, died_after: float | None, died_before: float | None,
    limit: int, as_json: bool,
) -> int:  # fmt: skip
    """List a topic's dead tasks.

    Shows when and why each died, after how many attempts, and the receiver's last answer; the oldest death first.
    """
    tasks = fetch_tasks(client, TaskFilter(topic, "dead", died_after, died_before, reason), limit + 1)
    headers = ("id", "died", "attempts", "reason", "status", "message")
    return print_tasks(tasks, limit, headers, _row, as_json=as_json)


def _row(task: TaskJson) -> Sequence[str]:
    error = last_error(task)
    cells = (str(error.get(name) or "-") for name in ("reason", "status", "message"))
    return (task["id"], task_time(task), str(task["attempts"]), *cells)


@dead.command(
    epilog=examples(
        "later dead redrive 35adbde5-77c4-4d65-adac-0082d91f2554",
        "later dead redrive --topic order --reason exhausted --died-after 2h --rate 20/s",
        about=PAST_TIME_HELP,
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--topic", metavar="TEXT", help="Redrive dead tasks of this topic; asks for confirmation.")
@_reason_option
@death_time_options
@click.option("--rate", type=RATE, help="Tasks redriven per second.  [default: all at once]")
@action_options
@client_options
def redrive(
    *, client: ApiClient, ids: tuple[str, ...], topic: str | None, reason: str | None, died_after: float | None,
    died_before: float | None, rate: float | None, options: ActionOptions,
) -> int:  # fmt: skip
    """Make dead tasks due again.

    They are due now, with all their retries, and their ttl counts from now. An ID may also be that of a task that waits
    in a dead-letter topic: it goes back to the topic in which it died. Exit status 1 if one of the IDs is neither.

    With --topic, tasks are redriven in chunks. Tasks that die after the command has started are left out, so that none
    is redriven twice. If the command is interrupted, run it again to continue; with --rate, tasks whose turn has not
    come stay dead.
    """
    if bool(ids) == (topic is not None):
        raise click.UsageError("Give either IDs or --topic.")
    if topic is not None:
        return mass_actions.redrive_dead(
            client, TaskFilter(topic, "dead", died_after, died_before, reason), rate, options
        )
    if any(value is not None for value in (reason, died_after, died_before, rate)) or options.dry_run:
        raise click.UsageError("--reason, --died-after, --died-before, --rate and --dry-run need --topic.")
    return redrive_by_id(client, ids, as_json=options.as_json)


@dead.command(
    epilog=examples(
        "later dead purge --topic order --died-before 7d", "later dead purge --topic order --reason gone --yes",
        about=PAST_TIME_HELP,
    )
)  # fmt: skip
@click.option("--topic", metavar="TEXT", required=True, help="Purge dead tasks of this topic.")
@_reason_option
@death_time_options
@action_options
@client_options
def purge(
    *, client: ApiClient, topic: str, reason: str | None, died_after: float | None, died_before: float | None,
    options: ActionOptions,
) -> int:  # fmt: skip
    """Remove dead tasks for good.

    Their ids are forgotten and can be created again. Asks for confirmation. Tasks are removed in chunks of 5,000; if
    the command is interrupted, run it again to continue.
    """
    return mass_actions.purge_dead(client, TaskFilter(topic, "dead", died_after, died_before, reason), options)
