"""`create`, `query` and `delete`: what a shell asks a running API, and how the answer is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from later.cli.say import one_line, say
from later.client import CallFailed, Client
from later.core.errors import LaterError


def create(client: Client, fields: Mapping[str, Any], *, as_json: bool) -> int:
    """Create one task and print its id. Raises CallFailed."""
    given = {name: value for name, value in fields.items() if value is not None}
    answer = ask(client, "POST", "/create", given)
    if as_json:
        _print_json(answer)
        return 0
    print(one_line(str(answer.get("id"))))
    if answer.get("created") is False:
        say("this id is known: nothing was created")
    if "warning" in answer:
        say(str(answer["warning"]))
    return 0


def query(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Print where tasks are. Raises CallFailed."""
    return _for_each(client, "/query", ids, _print_json if as_json else _print_task)


def delete(client: Client, ids: Sequence[str], *, as_json: bool) -> int:
    """Delete tasks and print their ids. Raises CallFailed."""
    return _for_each(client, "/delete", ids, _print_json if as_json else _print_id)


def _for_each(client: Client, path: str, ids: Sequence[str], show: Callable[[dict[str, Any]], None]) -> int:
    """Ask for one id after the other; 1 where one was not there."""
    missing = 0
    for id in ids:
        try:
            show(ask(client, "POST", path, {"id": id}))
        except CallFailed as error:
            if error.status != 404:
                raise
            missing += 1
            say(str(error))
    return 1 if missing else 0


def ask(client: Client, method: str, path: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object that is answered. Raises CallFailed."""
    answer = client.call(method, path, None if fields is None else json.dumps(fields).encode())
    if not isinstance(answer, dict):
        raise CallFailed("the answer is no JSON object: is it later that answers there?", 200)
    return answer


def _print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer))


def _print_id(answer: Mapping[str, Any]) -> None:
    print(one_line(str(answer.get("id"))))


def _print_task(task: Mapping[str, Any]) -> None:
    """One line a field, and a blank one after the last."""
    for name, value in task.items():
        if value is not None:
            print(f"{one_line(name):<13} {one_line(value if isinstance(value, str) else json.dumps(value))}")
    print()


def read_text(name: str) -> str:
    """A file's text, `-` for standard input. Raises LaterError."""
    with opened(name) as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise LaterError(f"--content-file {name}: not UTF-8: {error}") from None


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """A file's bytes, `-` for standard input."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file
