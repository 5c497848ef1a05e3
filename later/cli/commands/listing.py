"""`list` and `dead list`: what stands in one of a topic's buckets, page after page, and how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from later.cli.console import say
from later.cli.tables import print_words
from later.client.http import Client

PAGE = 500
"""How many tasks are asked for at once, with all that they hold."""
WHEN = {"delay": "due", "unack": "lease ends", "error": "next try", "dead": "died"}
"""What a task's place in a bucket goes by."""

Task = dict[str, Any]


class Stretch(NamedTuple):
    """Tasks of a topic in one state, from a moment on (Unix seconds) and before another; of the dead, for a reason."""

    topic: str
    state: str
    since: float | None = None
    before: float | None = None
    reason: str | None = None


def list_tasks(client: Client, stretch: Stretch, *, limit: int, as_json: bool) -> int:
    """Print the first `limit` tasks. Raises CallFailed."""
    headers = ("id", WHEN[stretch.state], "attempts", "last error", "callback")
    return _print(tasks(client, stretch, limit + 1), limit, headers, _row, as_json=as_json)


def list_dead(client: Client, dead: Stretch, *, limit: int, as_json: bool) -> int:
    """Print the first `limit` of the dead. Raises CallFailed."""
    headers = ("id", "died", "attempts", "reason", "status", "message")
    return _print(tasks(client, dead, limit + 1), limit, headers, _dead_row, as_json=as_json)


def tasks(client: Client, stretch: Stretch, wanted: int = PAGE) -> Iterator[Task]:
    """Every task of the stretch, in order; `wanted` is how many are likely to be taken. Raises CallFailed."""
    asked: dict[str, Any] = {"topic": stretch.topic, "state": stretch.state}
    asked |= {"due_after": stretch.since, "due_before": stretch.before}
    asked["limit"] = PAGE if stretch.reason else min(wanted, PAGE)
    while True:
        page = client.ask("POST", "/list", asked)
        yield from (task for task in page["tasks"] if stretch.reason in (None, _error(task).get("reason")))
        asked["cursor"] = page["cursor"]
        if page["cursor"] is None:
            return


def _print(
    found: Iterator[Task],
    limit: int,
    headers: Sequence[str],
    row: Callable[[Task], Sequence[str]],
    *,
    as_json: bool,
) -> int:
    if as_json:
        for task in islice(found, limit):
            print(json.dumps(task))
    else:
        print_words(headers, [row(task) for task in islice(found, limit)])
    if next(found, None) is not None:
        sys.stdout.flush()  # or this stands before what it is about
        say(f"these are the first {limit:,}; there are more: --limit")
    return 0


def _row(task: Task) -> Sequence[str]:
    error = _error(task)
    last = f"{error['reason']}: {error['message']}" if error else "-"
    return (task["id"], _when(task), str(task["attempts"]), last, str(task.get("callback") or "-"))


def _dead_row(task: Task) -> Sequence[str]:
    error = _error(task)
    said = (str(error.get(name) or "-") for name in ("reason", "status", "message"))
    return (task["id"], _when(task), str(task["attempts"]), *said)


def _when(task: Task) -> str:
    return str(task.get("due_at") or task.get("died_at"))


def _error(task: Task) -> dict[str, Any]:
    return task.get("last_error") or {}
