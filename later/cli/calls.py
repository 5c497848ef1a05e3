"""What a shell asks a running API about single tasks, and how the answer is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from later.cli.console import one_line, say
from later.cli.policy_options import shown
from later.client.http import CallFailed, Client
from later.core.errors import LaterError

OF_ONE = frozenset({404, 409})
"""What is so of one task, and says nothing about the next."""


def create(client: Client, fields: Mapping[str, Any], *, as_json: bool) -> int:
    """Create one task and print its id. Raises CallFailed."""
    answer = client.ask("POST", "/create", _given(fields))
    if as_json:
        _print_json(answer)
        return 0
    _print_id(answer)
    if answer.get("created") is False:
        say("this id is known: nothing was created")
    if "warning" in answer:
        say(str(answer["warning"]))
    return 0


def update(client: Client, id: str, changes: Mapping[str, Any], *, as_json: bool) -> int:
    """Change a task that waits, and print where it is then; a ttl of 0 is none. Raises CallFailed."""
    ageless = {"ttl": None} if changes["ttl"] == 0 else {}
    answer = client.ask("POST", "/update", {"id": id, **_given(changes), **ageless})
    (_print_json if as_json else _print_task)(answer)
    return 0


def explain(client: Client, whom: Mapping[str, Any], *, as_json: bool) -> int:
    """Print why a task or a topic has not run yet, and the figures behind it. Raises CallFailed."""
    answer = client.ask("POST", "/explain", whom)
    if as_json:
        _print_json(answer)
        return 0
    print(one_line(str(answer.pop("sentence"))))
    print()
    _print_task({name: _figures(value) if isinstance(value, dict) else value for name, value in answer.items()})
    return 0


def query(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Print where tasks are. Raises CallFailed."""
    return _for_each(client, "/query", ids, _print_json if as_json else _print_task)


def delete(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Delete tasks and print their ids. Raises CallFailed."""
    return _for_each(client, "/delete", ids, _print_json if as_json else _print_id)


def run_now(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Make tasks due now and print their ids. Raises CallFailed."""
    return _for_each(client, "/run-now", ids, _print_json if as_json else _print_id)


def redrive(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Bring dead tasks back and print their ids. Raises CallFailed."""
    return _for_each(client, "/redrive", ids, _print_json if as_json else _print_id)


def _for_each(client: Client, path: str, ids: Sequence[str], show: Callable[[dict[str, Any]], None]) -> int:
    """Ask for one id after the other; 1 where one was not there, or it cannot be done as things are."""
    failed = 0
    for id in ids:
        try:
            show({"id": id} | client.ask("POST", path, {"id": id}))
        except CallFailed as error:
            if error.status not in OF_ONE:
                raise
            failed += 1
            say(str(error))
    return 1 if failed else 0


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer))


def _print_id(answer: Mapping[str, Any]) -> None:
    print(one_line(str(answer.get("id"))))


def _print_task(task: Mapping[str, Any]) -> None:
    """One line a field, and a blank one after the last."""
    width = max(13, *map(len, task))
    for name, value in task.items():
        if value is not None:
            print(f"{one_line(name):<{width}} {one_line(value if isinstance(value, str) else json.dumps(value))}")
    print()


def _figures(values: Mapping[str, Any]) -> str:
    """`delay 3, unack 0`; fields of a policy as they are shown elsewhere."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else shown(name, value)}" for name, value in values.items()
    )


def with_content(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the content of `content_file`, if one is given. Raises LaterError."""
    file = fields["content_file"]
    content = {"content": fields["content"] if file is None else _content(file, fields["content"])}
    return {name: value for name, value in (fields | content).items() if name != "content_file"}


def _content(file: str, besides: str | None) -> str:
    if besides is not None:
        raise click.UsageError("Either --content or --content-file.")
    with opened(file) as content:
        try:
            return content.read().decode()
        except UnicodeDecodeError as error:
            raise LaterError(f"--content-file {file}: not UTF-8: {error}") from None


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """A file's bytes, `-` for standard input."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file
