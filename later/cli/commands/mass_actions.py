"""Mass actions, which purge or redrive many tasks: ask first, act chunk by chunk, show progress, print the result.

No chunk has its effect twice, because its tasks are no longer where they were. So a call whose answer was lost may be
repeated, and an interrupted command continues when it is run again. Only a task that dies again could be redriven
twice; to prevent that, each call names the time at which the command began.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from later.cli.api_paths import scope_path
from later.cli.commands.listing import TaskFilter
from later.cli.console import notify, printable
from later.cli.options import ActionOptions
from later.cli.progress import ProgressBar, task_bar
from later.cli.times import rfc3339
from later.client.batches import RetryPolicy
from later.client.http import ApiClient
from later.core.errors import CallFailed, Unavailable
from later.core.explain import format_duration
from later.core.policy_scopes import topic_scope

CHUNK_SIZE = 5000
"""Tasks per call: so few that the answer comes quickly and other calls need not wait long."""
MAX_PAUSE_S = 86_400.0
"""The longest pause between two chunks."""
CHUNK_S = 10.0
"""With a rate, the time over which a chunk's tasks become due: after an interruption, the effects end so soon."""


class Selection(NamedTuple):
    """The tasks of a topic that a mass action will change: how many in each state, and the filters as text."""

    topic: str
    states: Mapping[str, int]
    filters: str = ""

    @property
    def size(self) -> int:
        return sum(self.states.values())

    def __str__(self) -> str:
        """`1,204 tasks of the topic order (delay 1,000, error 4, dead 200)`."""
        only_dead = [*self.states] == ["dead"]
        counts = ", ".join(f"{name} {count:,}" for name, count in self.states.items())
        details = self.filters if only_dead else counts
        tasks = _count_tasks(self.size, "dead " if only_dead else "")
        return f"{tasks} of the topic {self.topic}{details and f' ({details})'}"


class MassAction(NamedTuple):
    """A call that acts on the first `limit` tasks that it finds; `count_field` of its answer is their number.

    If the answer has a cursor, the next call continues there.

    With `rate`, so many tasks of a chunk become due each second. The rate is in `fields`, too.
    """

    path: str
    fields: Mapping[str, Any]
    count_field: str
    rate: float | None = None


class ChunkRunner:
    """Runs a mass action chunk by chunk.

    `count` is the number of tasks changed. If it is not `exact`, calls without an answer may have changed more.
    """

    def __init__(
        self,
        client: ApiClient,
        progress: ProgressBar,
        *,
        retries: int,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.count = 0
        self.exact = True
        self._client = client
        self._progress = progress
        self._retry = RetryPolicy(retries, sleep, jitter=0, on_retry=progress.print_retry)
        self._sleep = sleep
        self._clock = clock

    def run(self, action: MassAction) -> None:
        """Act on chunk after chunk until no task is left; with a rate, wait until the tasks of a chunk are due.

        Raises:
            CallFailed: a call failed, and so did its repetitions. The tasks of later chunks are as they were.
        """
        rate = action.rate
        limit = CHUNK_SIZE if rate is None else min(max(math.floor(rate * CHUNK_S), 1), CHUNK_SIZE)
        min_pause_s = (
            0.0 if rate is None else min(limit / rate, MAX_PAUSE_S)
        )  # a call without an answer may have taken effect
        fields = {**action.fields, "limit": limit}
        while True:
            started = self._clock()
            answer = self._retry.call(lambda: self._call(action.path, fields), min_pause_s)
            done = int(answer[action.count_field])
            self.count += done
            self._progress.advance(done)
            cursor = answer.get("cursor")
            if answer.get("more") is not True or not (done or cursor):
                return
            if cursor is not None:
                fields["cursor"] = cursor
            if rate is not None:
                self._sleep(max(started + min(done / rate, MAX_PAUSE_S) - self._clock(), 0.0))

    def _call(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        was_exact, self.exact = self.exact, False  # stays False if the call is interrupted
        try:
            answer = self._client.ask("POST", path, fields)
        except CallFailed as error:
            self.exact = was_exact and not isinstance(error, Unavailable)
            raise
        self.exact = was_exact
        return answer


def purge_topic(client: ApiClient, topic: str, states: Sequence[str], options: ActionOptions) -> int:
    """Remove a topic's tasks in these states. Raises CallFailed."""
    action = MassAction(_topic_path(topic) + "/purge", {"states": list(states)}, "purged")
    return _carry_out(client, "purge", action, lambda: _select(client, action, states), options)


def purge_dead(client: ApiClient, dead: TaskFilter, options: ActionOptions) -> int:
    """Remove the dead tasks that the filter selects, if they died before now. Raises CallFailed."""
    action = MassAction(_topic_path(dead.topic) + "/purge", {"states": ["dead"], **_filters_until_now(dead)}, "purged")
    return _carry_out(client, "purge", action, lambda: _select_dead(client, action, dead), options)


def redrive_dead(client: ApiClient, dead: TaskFilter, rate: float | None, options: ActionOptions) -> int:
    """Redrive the dead tasks that the filter selects, if they died before now. Raises CallFailed."""
    if rate is not None and rate <= 0:
        raise click.UsageError("--rate: expected more than 0 per second.")
    fields = {"topic": dead.topic, **_filters_until_now(dead)} | ({} if rate is None else {"rate": rate})
    action = MassAction("/redrive", fields, "redriven", rate)
    return _carry_out(client, "redrive", action, lambda: _select_dead(client, action, dead), options)


def _topic_path(topic: str) -> str:
    return scope_path(topic_scope(topic))


def _filters_until_now(dead: TaskFilter) -> dict[str, Any]:
    """Return the fields of a call that select dead tasks, but none that dies from now on."""
    now = math.ceil(time.time() * 1000) / 1000
    before = now if dead.before is None else min(dead.before, now)
    filters = {"died_after": dead.since, "died_before": before, "reason": dead.reason}
    return {name: value for name, value in filters.items() if value is not None}


def _select_dead(client: ApiClient, action: MassAction, dead: TaskFilter) -> Selection:
    filters = {
        "reason": dead.reason,
        "died after": None if dead.since is None else rfc3339(dead.since),
        "died before": None if dead.before is None else rfc3339(dead.before),
    }
    text = ", ".join(f"{name} {value}" for name, value in filters.items() if value is not None)
    return _select(client, action, ["dead"], text)


def _select(client: ApiClient, action: MassAction, states: Sequence[str], filters: str = "") -> Selection:
    """Let the API count the tasks that an action would change. Raises CallFailed."""
    counts = dict.fromkeys(states, 0)
    fields = {**action.fields, "dry_run": True}
    while True:
        answer = client.ask("POST", action.path, fields)
        for state in states:
            counts[state] += int(answer["states"][state])
        if answer.get("more") is not True or answer.get("cursor") is None:
            return Selection(answer["topic"], counts, filters)
        fields["cursor"] = answer["cursor"]


def _carry_out(
    client: ApiClient, verb: str, action: MassAction, select: Callable[[], Selection], options: ActionOptions
) -> int:
    if options.dry_run:
        selection = select()
        fields = {"topic": selection.topic, "tasks": selection.size, "states": selection.states}
        print(json.dumps(fields) if options.as_json else printable(str(selection)))
        return 0
    if options.yes:
        return _run_chunks(client, action, None, options)
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"No terminal to ask on: use --yes to {verb} without asking, or --dry-run to count the tasks."
        )
    selection = select()
    if not selection.size:
        return _print_result(action, 0, options)
    rate = action.rate
    pace = "" if rate is None else f", {rate:g} a second, for {format_duration(round(selection.size / rate * 1000))}"
    if not click.confirm(printable(f"{verb} {selection}{pace}?"), err=True):
        notify(f"nothing was {action.count_field}")
        return 1
    return _run_chunks(client, action, selection.size, options)


def _run_chunks(client: ApiClient, action: MassAction, total: int | None, options: ActionOptions) -> int:
    with task_bar(total) as bar:
        runner = ChunkRunner(client, bar, retries=options.retries, sleep=time.sleep, clock=time.monotonic)
        stopped: BaseException | None = None
        try:
            runner.run(action)
        except (CallFailed, KeyboardInterrupt) as error:
            stopped = error
    if stopped is None:
        return _print_result(action, runner.count, options, exact=runner.exact)
    if runner.count or not runner.exact:
        _print_result(action, runner.count, options, exact=runner.exact)
        notify("run the same command again to continue")
    raise stopped


def _print_result(action: MassAction, done: int, options: ActionOptions, *, exact: bool = True) -> int:
    if options.as_json:
        print(json.dumps({action.count_field: done, "exact": exact}))
    elif exact:
        print(f"{_count_tasks(done)} {action.count_field}")
    else:
        print(f"at least {_count_tasks(done)} {action.count_field}: requests without an answer may have changed more")
    return 0


def _count_tasks(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}task" + ("" if count == 1 else "s")
