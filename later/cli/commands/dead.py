"""The commands of `dead`. Each imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

import click

from later.cli.options import (
    CALL,
    MOST,
    Function,
    InOrder,
    Manner,
    an_object_a_line,
    client_of,
    configured,
    examples,
    of_many,
    reading,
)
from later.cli.policy_options import a_second
from later.cli.times import DIED_TIMES, died_times

REASONS = ("exhausted", "gone", "busy", "expired", "lost", "body")
"""What tasks die of."""


def _a_reason(function: Function) -> Function:
    return click.option("--reason", type=click.Choice(REASONS), help="Those that died of this.")(function)


@click.group("dead", cls=InOrder)
def of_dead() -> None:
    """See tasks that died, bring them back, remove them.

    A task is dead when it was given up: exhausted (its last retry failed), gone (the receiver answered 410), busy (for
    a day), expired (its ttl ended), lost (it took its workers down with it) or body (its record cannot be read). It is
    kept for its topic's dead_keep.
    """


@of_dead.command(
    "list",
    epilog=examples(
        "later dead list order", "later dead list order --reason exhausted --died-after 2h", about=DIED_TIMES
    ),
)
@click.argument("topic")
@_a_reason
@died_times
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="So many at most.")
@an_object_a_line
@configured(CALL)
def list_dead(
    *, topic: str, reason: str | None, died_after: float | None, died_before: float | None, limit: int, as_json: bool,
    **flags: str | None,
) -> int:  # fmt: skip
    """Show a topic's dead.

    When each died, of what, after how many attempts, and what its receiver said last; who died first comes first.
    """
    client = client_of(flags)
    from later.cli.commands import listing

    dead = listing.Stretch(topic, "dead", died_after, died_before, reason)
    return listing.list_dead(client, dead, limit=limit, as_json=as_json)


@of_dead.command(
    epilog=examples(
        "later dead redrive 35adbde5-77c4-4d65-adac-0082d91f2554",
        "later dead redrive --topic order --reason exhausted --died-after 2h --rate 20/s",
        about=DIED_TIMES,
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--topic", metavar="TEXT", help="Those of this topic; asks first.")
@_a_reason
@died_times
@click.option("--rate", callback=reading(a_second), metavar="NUMBER/s",
              help="So many a second: it takes as long as that takes.  [default: all at once]")  # fmt: skip
@of_many
@configured(CALL)
def redrive(
    *, ids: tuple[str, ...], topic: str | None, reason: str | None, died_after: float | None,
    died_before: float | None, rate: float | None, manner: Manner, **flags: str | None,
) -> int:  # fmt: skip
    """Bring the dead back.

    They are due now, with all their retries, and their ttl counts from now. Exit status 1 if one of the IDs is not
    dead.

    With --topic: goes in slices, and takes nobody who died since it began: what dies again is not taken twice.
    Interrupted, the same command goes on with the rest; with --rate, what it has not come to yet stays dead then.
    """
    if bool(ids) == (topic is not None):
        raise click.UsageError("Either IDs or --topic.")
    client = client_of(flags)
    if topic is None:
        if any(value is not None for value in (reason, died_after, died_before, rate)) or manner.dry_run:
            raise click.UsageError("--reason, --died-after, --died-before, --rate and --dry-run go with --topic.")
        from later.cli import calls

        return calls.redrive(client, ids, as_json=manner.as_json)
    from later.cli.commands import listing, mass

    dead = listing.Stretch(topic, "dead", died_after, died_before, reason)
    return mass.redrive_dead(client, dead, rate, manner)


@of_dead.command(
    epilog=examples(
        "later dead purge --topic order --died-before 7d", "later dead purge --topic order --reason gone --yes",
        about=DIED_TIMES,
    )
)  # fmt: skip
@click.option("--topic", metavar="TEXT", required=True, help="Those of this topic.")
@_a_reason
@died_times
@of_many
@configured(CALL)
def purge(
    *, topic: str, reason: str | None, died_after: float | None, died_before: float | None, manner: Manner,
    **flags: str | None,
) -> int:  # fmt: skip
    """Remove the dead for good.

    Their ids are forgotten: they may be created anew. Asks first. Goes in slices of 5,000; interrupted, the same
    command goes on with the rest.
    """
    client = client_of(flags)
    from later.cli.commands import listing, mass

    return mass.purge_dead(client, listing.Stretch(topic, "dead", died_after, died_before, reason), manner)
