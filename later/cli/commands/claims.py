"""The commands of consumers: `claim`, `ack`, `nack`, `release` and `extend`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from later.cli.console import notify, printable
from later.cli.options import DURATION, client_options, examples, json_lines_option, json_option
from later.client.consumer import Consumer
from later.client.http import ApiClient


@click.command(epilog=examples("later claim jobs", "later claim urgent jobs --max 10 --poll 20s --json"))
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--max", "limit", type=click.IntRange(1, 500), metavar="NUMBER", default=1, show_default=True,
    help="Tasks claimed at most.",
)  # fmt: skip
@click.option("--lease", type=DURATION, help="How long the tasks are left to you.  [default: as their topic says]")
@click.option(
    "--poll", type=DURATION, default="0s", show_default=True, help="How long to wait where nothing is due: up to 60s."
)
@json_lines_option
@client_options
def claim(
    *, client: ApiClient, topics: tuple[str, ...], limit: int, lease: float | None, poll: float, as_json: bool
) -> int:
    """Claim due tasks of pulled topics.

    Those of the first topic come first. Prints the tasks with their leases, for `later ack` and the other commands.
    Exit status 1 if nothing is due.
    """
    tasks = Consumer(client).claim(topics, limit, lease_s=lease, wait_s=poll)
    for task in tasks:
        if as_json:
            print(json.dumps(task.fields))
            continue
        for name, value in task.fields.items():
            if value is not None:
                print(f"{printable(name):<13} {printable(value if isinstance(value, str) else json.dumps(value))}")
        print()
    return 0 if tasks else 1


@click.command(epilog=examples("later ack AQAABD…"))
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@json_option
@client_options
def ack(*, client: ApiClient, leases: tuple[str, ...], as_json: bool) -> int:
    """Say that claimed tasks are done.

    Exit status 1 if a lease was lost.
    """
    return _report("acked", leases, Consumer(client).ack(leases), as_json=as_json)


@click.command(epilog=examples('later nack AQAABD… --delay 10m --message "no disk"', "later nack AQAABD… --dead"))
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@click.option("--delay", type=DURATION, help="Time until the next attempt.  [default: the topic's backoff]")
@click.option("--message", metavar="TEXT", help="What went wrong, for people; 500 characters at most.")
@click.option("--reason", metavar="WORD", help="What went wrong, for programs: a word of a-z and _.")
@click.option("--dead", is_flag=True, help="No attempt follows: the tasks are dead.")
@click.option("--busy", is_flag=True, help="The attempt costs no retry.")
@json_option
@client_options
def nack(
    *,
    client: ApiClient,
    leases: tuple[str, ...],
    delay: float | None,
    message: str | None,
    reason: str | None,
    dead: bool,
    busy: bool,
    as_json: bool,
) -> int:
    """Say that an attempt at claimed tasks has failed.

    After as many failures as they have retries, the tasks are dead. Exit status 1 if a lease was lost.
    """
    lost = Consumer(client).nack(leases, delay_s=delay, message=message, reason=reason, dead=dead, busy=busy)
    return _report("nacked", leases, lost, as_json=as_json)


@click.command(epilog=examples("later release AQAABD…"))
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@json_option
@client_options
def release(*, client: ApiClient, leases: tuple[str, ...], as_json: bool) -> int:
    """Give claimed tasks back.

    They are due as before, and no attempt is spent. Exit status 1 if a lease was lost.
    """
    return _report("released", leases, Consumer(client).release(leases), as_json=as_json)


@click.command(epilog=examples("later extend AQAABD… --lease 10m"))
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@click.option("--lease", type=DURATION, help="How long from now.  [default: as their topic says]")
@json_option
@client_options
def extend(*, client: ApiClient, leases: tuple[str, ...], lease: float | None, as_json: bool) -> int:
    """Keep claimed tasks for longer.

    Exit status 1 if a lease was lost.
    """
    return _report("extended", leases, Consumer(client).extend(leases, lease), as_json=as_json)


def _report(done: str, leases: Sequence[str], lost: Sequence[str], *, as_json: bool) -> int:
    """Print how many leases were in force, and name those that were lost."""
    count = len(set(leases)) - len(lost)
    if as_json:
        print(json.dumps({done: count, "lost": [*lost]}))
    else:
        print(f"{done} {count}")
        for lease in lost:
            notify(f"{lease}: the lease was lost")
    return 1 if lost else 0
