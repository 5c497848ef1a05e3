"""Purging and redriving many tasks, as a shell sees it: a question first, a bar, what it came to."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TaskProgressColumn, TimeRemainingColumn

from later.cli.api_paths import scope_path
from later.cli.commands.listing import ListRange, fetch_tasks
from later.cli.console import notify, printable
from later.cli.options import ActionOptions
from later.cli.progress import ProgressBar
from later.cli.slices import Errand, Slices
from later.cli.times import rfc3339
from later.client.http import CallFailed, Client
from later.core.explain import format_duration
from later.core.policy_scopes import topic_scope


class Crowd(NamedTuple):
    """The tasks of a topic that something is to be done to: how many are in each state, and which of them."""

    topic: str
    states: Mapping[str, int]
    which: str = ""

    @property
    def size(self) -> int:
        return sum(self.states.values())

    def __str__(self) -> str:
        """`1,204 tasks of the topic order (delay 1,000, error 4, dead 200)`."""
        all_dead = [*self.states] == ["dead"]
        told = self.which if all_dead else ", ".join(f"{name} {count:,}" for name, count in self.states.items())
        return f"{_tasks(self.size, 'dead ' if all_dead else '')} of the topic {self.topic}{told and f' ({told})'}"


def purge_topic(client: Client, topic: str, states: Sequence[str], manner: ActionOptions) -> int:
    """Remove a topic's tasks in these states. Raises CallFailed."""

    def count() -> Crowd:
        counts = client.ask("GET", scope_path(topic_scope(topic)))
        return Crowd(counts["topic"], {state: counts[state] for state in states})

    errand = Errand(_purge_path(topic), {"states": list(states)}, "purged")
    return _carry_out(client, "purge", errand, count, manner)


def purge_dead(client: Client, dead: ListRange, manner: ActionOptions) -> int:
    """Remove the dead of a stretch, those that died before now. Raises CallFailed."""
    errand = Errand(_purge_path(dead.topic), {"states": ["dead"], **_filters(_until_now(dead))}, "purged")
    return _carry_out(client, "purge", errand, lambda: _count(client, dead), manner)


def redrive_dead(client: Client, dead: ListRange, rate: float | None, manner: ActionOptions) -> int:
    """Bring back the dead of a stretch, those that died before now. Raises CallFailed."""
    if rate is not None and rate <= 0:
        raise click.UsageError("--rate: expected more than 0 a second.")
    fields = {"topic": dead.topic, **_filters(_until_now(dead))} | ({} if rate is None else {"rate": rate})
    errand = Errand("/redrive", fields, "redriven", rate)
    return _carry_out(client, "redrive", errand, lambda: _count(client, dead), manner)


def _purge_path(topic: str) -> str:
    return scope_path(topic_scope(topic)) + "/purge"


def _until_now(dead: ListRange) -> ListRange:
    now = math.ceil(time.time() * 1000) / 1000
    return dead._replace(before=now if dead.before is None else min(dead.before, now))


def _filters(dead: ListRange) -> dict[str, Any]:
    given = {"died_after": dead.since, "died_before": dead.before, "reason": dead.reason}
    return {name: value for name, value in given.items() if value is not None}


# How many


def _count(client: Client, dead: ListRange) -> Crowd:
    """The dead of a stretch. Where something narrows it they are looked at one by one, and that takes a while."""
    which = _which(dead)
    counts = client.ask("GET", scope_path(topic_scope(dead.topic)))
    if not which:
        return Crowd(counts["topic"], {"dead": counts["dead"]})
    with ProgressBar(counts["dead"], *_columns()) as bar:
        found = 0
        for _ in fetch_tasks(client, dead):
            found += 1
            bar.advance(1)
    return Crowd(counts["topic"], {"dead": found}, which)


def _which(dead: ListRange) -> str:
    told = {
        "reason": dead.reason,
        "died after": None if dead.since is None else rfc3339(dead.since),
        "died before": None if dead.before is None else rfc3339(dead.before),
    }
    return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)


# How it goes


def _carry_out(client: Client, verb: str, errand: Errand, count: Callable[[], Crowd], manner: ActionOptions) -> int:
    if manner.dry_run:
        _print_crowd(count(), manner)
        return 0
    if manner.yes:
        return _go(client, errand, None, manner)
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is no terminal to ask on: --yes to {verb} unasked, --dry-run to see how many.")
    crowd = count()
    if crowd.size and not _agreed(verb, crowd, errand.rate):
        notify(f"nothing was {errand.done}")
        return 1
    return _go(client, errand, crowd.size, manner) if crowd.size else _end(errand, 0, manner)


def _print_crowd(crowd: Crowd, manner: ActionOptions) -> None:
    told = {"topic": crowd.topic, "tasks": crowd.size, "states": crowd.states}
    print(json.dumps(told) if manner.as_json else printable(str(crowd)))


def _agreed(verb: str, crowd: Crowd, rate: float | None) -> bool:
    pace = "" if rate is None else f", {rate:g} a second, for {format_duration(round(crowd.size / rate * 1000))}"
    return click.confirm(printable(f"{verb} {crowd}{pace}?"), err=True)


def _go(client: Client, errand: Errand, total: int | None, manner: ActionOptions) -> int:
    with ProgressBar(total, *_columns()) as bar:
        slices = Slices(client, bar, retries=manner.retries, sleep=time.sleep, clock=time.monotonic)
        stopped: BaseException | None = None
        try:
            slices.carry_out(errand)
        except (CallFailed, KeyboardInterrupt) as error:
            stopped = error
    if stopped is None:
        return _end(errand, slices.done, manner, exact=slices.exact)
    if slices.done or not slices.exact:
        _end(errand, slices.done, manner, exact=slices.exact)
        notify("the same command goes on with the rest")
    raise stopped


def _end(errand: Errand, done: int, manner: ActionOptions, *, exact: bool = True) -> int:
    if manner.as_json:
        print(json.dumps({errand.done: done, "exact": exact}))
    elif exact:
        print(f"{_tasks(done)} {errand.done}")
    else:
        print(f"at least {_tasks(done)} {errand.done}: what was done by calls without an answer is not counted")
    return 0


def _columns() -> Sequence[ProgressColumn]:
    return (BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _tasks(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}task" + ("" if count == 1 else "s")
