"""The command `list`, and what other commands need to fetch and print the tasks of a topic in one state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from later.cli.console import notify
from later.cli.options import client_options, examples, json_lines_option, limit_option
from later.cli.tables import print_text_table
from later.cli.times import DUE_TIME_HELP, due_time_options
from later.client.http import ApiClient
from later.store.keys import Bucket

PENDING = "pending"
STATES = tuple(bucket.value for bucket in Bucket)
PAGE_SIZE = 500
"""Tasks per request: not more, because each has all its fields in the answer."""
TIME_HEADERS = {"delay": "due", "unack": "lease ends", "error": "next attempt", "dead": "died", PENDING: "due"}
"""The header of a task's time, which has another meaning in each state."""

TaskJson = dict[str, Any]


class TaskFilter(NamedTuple):
    """The tasks of a topic in one state, or the pending ones, with a time from `since` on and before `before`.

    The times are Unix seconds. With `reason`, only tasks that died for this reason.
    """

    topic: str
    state: str
    since: float | None = None
    before: float | None = None
    reason: str | None = None


@click.command(
    "list",
    epilog=examples(
        "later list order", "later list order --state error --limit 10", "later list order --due-before 0s --json",
        about=DUE_TIME_HELP,
    ),
)  # fmt: skip
@click.argument("topic")
@click.option("--state", type=click.Choice((*STATES, PENDING)), default="delay", show_default=True,
              help="State: waiting (delay), in flight (unack), waiting for a retry (error), dead, or the first three "
                   "together (pending).")  # fmt: skip
@due_time_options
@limit_option
@json_lines_option
@client_options
def list_tasks(
    *, client: ApiClient, topic: str, state: str, due_after: float | None, due_before: float | None, limit: int,
    as_json: bool,
) -> int:  # fmt: skip
    """List a topic's tasks in one state.

    The order is by due time; in unack by the end of the lease, in error by the time of the next attempt, in dead by the
    time of death; in pending by all of the first three. A task that changes its state meanwhile may be listed twice
    there, or not at all.
    """
    tasks = fetch_tasks(client, TaskFilter(topic, state, due_after, due_before), limit + 1)
    headers = ("id", TIME_HEADERS[state], "attempts", "last error", "callback")
    if state == PENDING:
        with_state = ("state", *headers)
        return print_tasks(tasks, limit, with_state, lambda task: (str(task["state"]), *_row(task)), as_json=as_json)
    return print_tasks(tasks, limit, headers, _row, as_json=as_json)


def fetch_tasks(client: ApiClient, selected: TaskFilter, wanted: int = PAGE_SIZE) -> Iterator[TaskJson]:
    """Yield the tasks that the filter selects, in order. `wanted` is how many the caller expects to use.

    Raises:
        CallFailed: a page cannot be fetched.
    """
    request: dict[str, Any] = {"topic": selected.topic, "state": selected.state, "limit": min(wanted, PAGE_SIZE)}
    time = "died" if selected.state == Bucket.DEAD else "due"
    filters = {f"{time}_after": selected.since, f"{time}_before": selected.before, "reason": selected.reason}
    request |= {name: value for name, value in filters.items() if value is not None}
    while True:
        page = client.ask("POST", "/list", request)
        yield from page["tasks"]
        request["cursor"] = page["cursor"]
        if page["cursor"] is None:
            return


def print_tasks(
    tasks: Iterator[TaskJson],
    limit: int,
    headers: Sequence[str],
    row: Callable[[TaskJson], Sequence[str]],
    *,
    as_json: bool,
) -> int:
    """Print the first `limit` tasks, and a note if there are more."""
    if as_json:
        for task in islice(tasks, limit):
            print(json.dumps(task))
    else:
        print_text_table(headers, [row(task) for task in islice(tasks, limit)])
    if next(tasks, None) is not None:
        notify(f"these are the first {limit:,}; use --limit to list more")
    return 0


def task_time(task: TaskJson) -> str:
    return str(task.get("due_at") or task.get("died_at"))


def last_error(task: TaskJson) -> dict[str, Any]:
    return task.get("last_error") or {}


def _row(task: TaskJson) -> Sequence[str]:
    error = last_error(task)
    failure = f"{error['reason']}: {error['message']}" if error else "-"
    return (task["id"], task_time(task), str(task["attempts"]), failure, str(task.get("callback") or "-"))
