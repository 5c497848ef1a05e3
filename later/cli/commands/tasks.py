"""The commands about single tasks: `create`, `query`, `delete`, `explain`, `update` and `run-now`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from later.cli.commands.create_file import create_from_file
from later.cli.console import notify, printable
from later.cli.options import (
    DURATION,
    client_options,
    content_options,
    examples,
    header_options,
    json_lines_option,
    json_option,
    parse_context,
    parse_headers,
    retries_option,
    retry_option,
)
from later.cli.policy_options import format_field
from later.cli.times import EXECUTE_TIME
from later.client.batch_split import MAX_IDS
from later.client.http import ApiClient
from later.core.durability import Durability
from later.core.errors import NOT_LATER, CallFailed, LaterError
from later.core.if_exists import IfExists

FAILURES = ("failures", "last_failures")
"""Fields of answers that are lists of failures. (In an explanation, `failures` is their number.)"""
REFUSED_FOR_ONE_TASK = frozenset({404, 409})
"""Statuses of an answer that concern one task only: the command continues with the next one."""


@click.command(
    epilog=examples(
        "later create --topic order --callback http://127.0.0.1:8888/success --delay 10m --content hello",
        "later create --topic order --callback http://127.0.0.1:8888/success --at 2027-01-15T08:00:00Z",
        "later create --from tasks.ndjson --job import-7",
    )
)
@click.option("--topic", metavar="TEXT", help="Topic of the task; required without --from.")
@click.option(
    "--callback",
    metavar="URL",
    help="URL to POST to when the task is due; none for consumers' tasks.  [default: the topic's, as it is then]",
)
@click.option("--delay", type=DURATION, help="Time from now until the task is due.  [default: the topic's]")
@click.option(
    "--execute-time",
    "--at",
    type=EXECUTE_TIME,
    help="Time when the task is due, in RFC 3339 with a zone or in Unix seconds; not with --delay.",
)
@retry_option
@content_options
@header_options
@click.option("--ttl", type=DURATION, help="Age at which the task expires undelivered.  [default: the topic's]")
@click.option(
    "--id", metavar="TEXT", help="Id that you choose: creating it again creates nothing.  [default: a new id]"
)
@click.option(
    "--remember",
    type=DURATION,
    help="How long an id that you choose is remembered after the task has ended; 0: not at all.  "
    "[default: the topic's]",
)
@click.option(
    "--if-exists",
    type=click.Choice([value.value for value in IfExists]),
    help="If a task has the id: keep it as it is, update it if it waits, or create nothing and fail.  [default: keep]",
)
@click.option(
    "--durability",
    type=click.Choice([level.value for level in Durability]),
    help="Where the task must be before the command succeeds: as it is, on the primary's disk, on a replica, on both "
    "disks.  [default: the topic's]",
)
@click.option("--from", "source", metavar="FILE", help="Create a task from each line of NDJSON; - is standard input. "
              "A line without an id gets a new one, so sending the file again creates its task again.")  # fmt: skip
@click.option("--job", metavar="TEXT", help="With --from: id of the bulk job that counts the tasks.")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    metavar="NUMBER",
    default=1000,
    show_default=True,
    help="With --from: lines per request.",
)
@retries_option("With --from: how often a failed batch is sent again.")
@json_option
@client_options
def create(
    *, client: ApiClient, source: str | None, job: str | None, batch: int, retries: int, as_json: bool, **task: Any
) -> int:
    """Create a task, or many from a file.

    Prints the task's id; with --from, the counts of the file's lines, and exit status 1 if a line was not created.
    """
    if source is not None:
        if any(value is not None for value in task.values()):
            raise click.UsageError(
                "--from reads all fields of the tasks from the file: leave out the options of a single task."
            )
        with open_input(source) as file:
            return create_from_file(client, file, job=job, batch=batch, retries=retries, as_json=as_json)
    if job is not None:
        raise click.UsageError("--job needs --from.")
    if task["topic"] is None:
        raise click.UsageError("Missing option '--topic'.")
    answer = client.ask("POST", "/create", read_fields(task))
    if as_json:
        _print_json(answer)
        return 0
    _print_id(answer)
    if answer.get("updated") is True:
        notify("a task with this id exists already: it was updated")
    elif answer.get("created") is False:
        notify("a task with this id exists already: nothing was created")
    if "warning" in answer:
        notify(str(answer["warning"]))
    return 0


@click.command(epilog=examples("later query 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_lines_option
@client_options
def query(*, client: ApiClient, ids: tuple[str, ...], as_json: bool) -> int:
    """Show tasks by id.

    Exit status 1 if one of the tasks does not exist.
    """
    return call_for_each(client, "/query", ids, _print_json if as_json else _print_fields)


@click.command(epilog=examples("later delete 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_lines_option
@client_options
def delete(*, client: ApiClient, ids: tuple[str, ...], as_json: bool) -> int:
    """Delete tasks in any state.

    Prints their ids. A note says if a task was in flight: its receiver may still get that attempt. A note also says if
    a task had ended: its id is forgotten, and can be created again. Exit status 1 if one of the tasks does not exist.
    """
    return call_for_each(client, "/delete", ids, _print_json if as_json else _print_deletion)


@click.command(epilog=examples("later explain 35adbde5-77c4-4d65-adac-0082d91f2554", "later explain --topic order"))
@click.argument("id", required=False)
@click.option("--topic", metavar="TEXT", help="Explain this topic instead of a task.")
@json_option
@client_options
def explain(*, client: ApiClient, id: str | None, topic: str | None, as_json: bool) -> int:
    """Explain why a task or a topic has not run yet.

    Prints one sentence, and the values it is based on.
    """
    if (id is None) == (topic is None):
        raise click.UsageError("Give either an ID or --topic.")
    answer = client.ask("POST", "/explain", {"topic": topic} if id is None else {"id": id})
    if as_json:
        _print_json(answer)
        return 0
    print(printable(str(answer.pop("sentence"))))
    print()
    for name, values in answer.items():
        if isinstance(values, dict):  # `delay 3, unack 0`; fields of a policy as the topics commands print them
            answer[name] = ", ".join(
                f"{key} {value if isinstance(value, str) else format_field(key, value)}"
                for key, value in values.items()
            )
    _print_fields(answer)
    return 0


@click.command(epilog=examples("later update 35adbde5-77c4-4d65-adac-0082d91f2554 --delay 10m"))
@click.argument("id")
@click.option("--delay", type=DURATION, help="Time from now until the task is due.")
@click.option(
    "--execute-time",
    "--at",
    type=EXECUTE_TIME,
    help="Time when the task is due, in RFC 3339 with a zone or in Unix seconds; not with --delay.",
)
@click.option("--content", metavar="TEXT", help="Content to POST.")
@click.option("--content-file", metavar="FILE", help="Read the content from a UTF-8 file; - is standard input.")
@click.option("--callback", metavar="URL", help='URL to POST to; "": the topic\'s, as it is when the task is due.')
@click.option(
    "--header", "headers", callback=parse_headers, metavar="'NAME: VALUE'", multiple=True,
    help="Header to send with the POST; repeatable. The headers given replace all headers of the task.",
)  # fmt: skip
@click.option(
    "--context", callback=parse_context, metavar="NAME=VALUE", multiple=True,
    help="Text that the receiver gets under this name; repeatable. Those given replace the task's whole context.",
)  # fmt: skip
@click.option("--retry", type=int, metavar="NUMBER", help="Retries after the first attempt.")
@click.option(
    "--ttl", type=DURATION, help="Age, from its creation, at which the task expires undelivered; 0: no limit."
)
@json_option
@client_options
def update(*, client: ApiClient, id: str, as_json: bool, **changes: Any) -> int:
    """Change a waiting task.

    The task must be in delay or error. Options that are not given leave their fields unchanged. Prints the changed
    task. Exit status 1 if the task is in flight, dead or does not exist.
    """
    if all(value is None for value in changes.values()):
        raise click.UsageError("Nothing to change: give at least one option, as in --delay 10m.")
    removed = {name: None for name, none in (("callback", ""), ("ttl", 0)) if changes[name] == none}
    answer = client.ask("POST", "/update", {"id": id, **read_fields(changes), **removed})
    (_print_json if as_json else _print_fields)(answer)
    return 0


@click.command("run-now", epilog=examples("later run-now 35adbde5-77c4-4d65-adac-0082d91f2554"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_lines_option
@client_options
def run_now(*, client: ApiClient, ids: tuple[str, ...], as_json: bool) -> int:
    """Make tasks due now.

    The tasks must be in delay, error or dead. Prints their ids; exit status 1 if one of the tasks is in flight
    or does not exist.
    """
    if as_json:  # only the call for one task answers the task
        return call_for_each(client, "/run-now", ids, _print_json)
    return move_each(client, "/run-now", ids, lambda _, moved: _print_id(moved))


def redrive_by_id(client: ApiClient, ids: Sequence[str], *, as_json: bool) -> int:
    """Redrive dead tasks, and print their ids. Raises CallFailed."""

    def show(id: str, _: Mapping[str, Any]) -> None:
        if as_json:
            _print_json({"id": id, "redriven": 1})
        else:
            _print_id({"id": id})

    return move_each(client, "/redrive", ids, show)


def move_each(client: ApiClient, path: str, ids: Sequence[str], show: Callable[[str, Mapping[str, Any]], None]) -> int:
    """Make the tasks of these ids due, and pass each with its result to `show`; return 1 if a task was refused.

    Raises:
        CallFailed: a call failed, or a part of it, after the results of that call were shown.
    """
    refused = 0
    for start in range(0, len(ids), MAX_IDS):
        part = ids[start : start + MAX_IDS]
        results = client.ask("POST", path, {"ids": part}).get("results")
        if not isinstance(results, list) or len(results) != len(part):
            raise CallFailed(f"expected a result for each id: {NOT_LATER}", 200)
        failures: list[CallFailed] = []
        for id, result in zip(part, results, strict=True):
            problem = result.get("error")
            if problem is None:
                show(id, result)
            elif problem.get("status") in REFUSED_FOR_ONE_TASK:
                refused += 1
                notify(str(problem.get("detail")))
            else:
                failures.append(CallFailed(str(problem.get("detail")), problem.get("status")))
        if failures:
            raise failures[0]
    return 1 if refused else 0


def call_for_each(client: ApiClient, path: str, ids: Sequence[str], show: Callable[[dict[str, Any]], None]) -> int:
    """Call the API for each id and pass the answers to `show`; return 1 if a task was refused. Raises CallFailed."""
    refused = 0
    for id in ids:
        try:
            show({"id": id} | client.ask("POST", path, {"id": id}))
        except CallFailed as error:
            if error.status not in REFUSED_FOR_ONE_TASK:
                raise
            refused += 1
            notify(str(error))
    return 1 if refused else 0


# Input


def read_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields given as options, with the content of --content-file. Raises LaterError."""
    fields = {name: value for name, value in options.items() if value is not None}
    name = fields.pop("content_file", None)
    if name is None:
        return fields
    if "content" in fields:
        raise click.UsageError("Give either --content or --content-file, not both.")
    with open_input(name) as file:
        try:
            return fields | {"content": file.read().decode()}
        except UnicodeDecodeError as error:
            raise LaterError(f"--content-file {name}: not UTF-8: {error}") from None


@contextmanager
def open_input(name: str) -> Iterator[BinaryIO]:
    """Open a file for reading bytes; `-` is standard input."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


# Output


def _print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer))


def _print_id(answer: Mapping[str, Any]) -> None:
    print(printable(str(answer.get("id"))))


def _print_deletion(answer: Mapping[str, Any]) -> None:
    _print_id(answer)
    if answer.get("in_flight") is True:
        notify(f"{answer['id']} was in flight: its receiver may have got that attempt, or may still get it")
    if answer.get("ended") is True:
        notify(f"{answer['id']} had ended: there was no task to delete, and the id is forgotten")


def _print_fields(fields: Mapping[str, Any]) -> None:
    """Print one line per field, of failures one for each, and a blank line."""
    width = max(13, *map(len, fields))
    for name, value in fields.items():
        if value is not None:
            for number, line in enumerate(_lines(name, value)):
                print(f"{printable('' if number else name):<{width}} {printable(line)}")
    print()


def _lines(name: str, value: Any) -> list[str]:
    """Return the lines of a field."""
    if name in FAILURES and isinstance(value, list):
        return [_failure_line(failure) for failure in value if isinstance(failure, dict)]
    return [value if isinstance(value, str) else json.dumps(value)]


def _failure_line(failure: Mapping[str, Any]) -> str:
    status, took_ms = failure.get("status"), failure.get("took_ms")
    what = str(failure.get("reason")) if status is None else f"{failure.get('reason')} {status}"
    after = "" if took_ms is None else f" after {took_ms} ms"
    return f"attempt {failure.get('attempt')} at {failure.get('at')}: {what}{after}: {failure.get('message')}"
