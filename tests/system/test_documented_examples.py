"""The examples of docs/topics.md, docs/operations.md and docs/schedules.md print what is documented.

The examples of each document are run in order against a new daemon. In a ```console block a line that begins with `$ `
is a command (a backslash at its end continues it), and the lines up to the next command are its output. `…` stands for
anything on its line, and alone on a line for any lines. A command is one of `later …`, `sleep SECONDS`, and `curl -s
URL` with -X, -d and `-w '%{http_code}\\n'`: curl need not be installed, so no more of it is known here.
"""

from __future__ import annotations

import http.client
import re
import shlex
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.system.api_client import create, query
from tests.system.commands import run_at
from tests.system.daemons import Daemon, run_up
from tests.system.receivers import Receiver, done, in_sequence, status
from tests.system.waiting import PROPAGATION_S, wait_until

DOCUMENTS = Path(__file__).parent.parent.parent / "docs"
TOPICS, OPERATIONS, SCHEDULES = (DOCUMENTS / f"{name}.md" for name in ("topics", "operations", "schedules"))
API, RECEIVER = "http://127.0.0.1:8080", "http://127.0.0.1:8888/"
"""The addresses in the documents."""
MAX_LATENESS_S = 10.0
"""How late the output after a sleep may be on a busy machine."""
CHANGE = re.compile(r"later \w+ (set|unset|pause|resume) |curl .*-X ")
USE = re.compile(r"later create |curl .*/create |curl .*/forecast")
"""Commands whose answer depends on the policies that the answering process knows."""


class Example(NamedTuple):
    """A documented command with its line and output; `slept` if it follows a sleep."""

    line: int
    command: str
    printed: str
    slept: bool


def parse_examples(text: str) -> list[Example]:
    """Return the examples of a document, including sleeps."""
    found: list[Example] = []
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for example in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block[1], re.MULTILINE):
            line = text.count("\n", 0, block.start(1) + example.start()) + 1
            slept = bool(found) and found[-1].command.startswith("sleep ")
            found.append(Example(line, example[1].replace("\\\n", ""), example[2].rstrip("\n"), slept))
    return found


def is_as_documented(printed: str, documented: str) -> bool:
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else _line_pattern(line) for line in documented.split("\n"))
    return re.fullmatch(pattern, printed + "\n") is not None


def _line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…"))) + r"\n"


class DocumentShell:
    """Runs documented commands and prints the documented addresses in their output.

    No policy is used until every process has seen the last change, `seen_within_s` later.
    """

    def __init__(self, api: str, receiver: str, seen_within_s: float) -> None:
        self._api = api
        self._receiver = receiver
        self._seen_within_s = seen_within_s
        self._seen_at = 0.0

    def run_example(self, example: Example) -> str:
        """Run an example and return its output; after a sleep, repeat it until the output is as documented."""
        printed = self.run(example.command)
        given_up_at = time.monotonic() + (MAX_LATENESS_S if example.slept else 0)
        while not is_as_documented(printed, example.printed) and time.monotonic() < given_up_at:
            printed = self.run(example.command)
        return printed

    def run(self, command: str) -> str:
        if USE.match(command):
            time.sleep(max(0, self._seen_at - time.monotonic()))
        program, *arguments = shlex.split(command.replace(API, self._api).replace(RECEIVER, self._receiver))
        printed = {"later": self._later, "curl": _curl, "sleep": _sleep}[program](arguments)
        if CHANGE.match(command):
            self._seen_at = time.monotonic() + self._seen_within_s
        return printed.replace(self._api, API).replace(self._receiver, RECEIVER).rstrip("\n")

    def _later(self, arguments: Sequence[str]) -> str:
        done = run_at(self._api, *arguments)
        assert done.returncode in (0, 1), done
        return done.stdout + done.stderr


def _sleep(arguments: Sequence[str]) -> str:
    time.sleep(float(*arguments))
    return ""


def _curl(arguments: Sequence[str]) -> str:
    parser = ArgumentParser("curl", exit_on_error=False)
    parser.add_argument("-s", action="store_true", required=True)
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", dest="body")
    parser.add_argument("-w", dest="after", choices=["%{http_code}\\n"])
    parser.add_argument("url", type=urlsplit)
    options = parser.parse_args(arguments)
    method = options.method or ("GET" if options.body is None else "POST")
    headers = {} if options.body is None else {"Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection(options.url.netloc, timeout=30)
    try:
        connection.request(method, options.url._replace(scheme="", netloc="").geturl(), options.body, headers)
        response = connection.getresponse()
        return response.read().decode() + (f"{response.status}\n" if options.after else "")
    finally:
        connection.close()


@pytest.mark.timeout(600)  # 70 commands, each a process of its own: more than two minutes on a busy machine
def test_the_examples_print_what_is_documented(folder: Path, data: Path, receiver: Receiver, processes: int) -> None:
    receiver.rules |= {"/fails": status(500), "/busy": status(503, retry_after="60")}
    with run_up(folder, data) as up:
        run_examples(TOPICS, up, receiver, processes)


def test_the_examples_of_an_incident_print_what_is_documented(
    folder: Path, data: Path, receiver: Receiver, processes: int
) -> None:
    """Every task has failed once: three wait for a retry, twelve are dead. Then the receiver works again."""
    receiver.rules["/order"] = in_sequence(status(500), done)
    with run_up(folder, data, "--retry-base", "1000s") as up:
        for number in range(11, 26):
            create_failed_task(f"order-{number}", "error" if number < 14 else "dead", up, receiver)
        run_examples(OPERATIONS, up, receiver, processes)


def test_the_examples_of_schedules_print_what_is_documented(
    folder: Path, data: Path, receiver: Receiver, processes: int
) -> None:
    with run_up(folder, data) as up:
        run_examples(SCHEDULES, up, receiver, processes)


def create_failed_task(id: str, state: str, up: Daemon, receiver: Receiver) -> None:
    """Create a task and wait until it has failed."""
    create(up.url, id=id, callback=receiver.url("/order"), retry=3 if state == "error" else 0)
    wait_until(lambda: query(up.url, id)["state"] == state, "the task has failed")


def run_examples(document: Path, up: Daemon, receiver: Receiver, processes: int) -> None:
    """Run the document's examples in order."""
    shell = DocumentShell(up.url, receiver.url(), PROPAGATION_S if processes > 1 else 0)
    for example in parse_examples(document.read_text()):
        printed = shell.run_example(example)
        assert is_as_documented(printed, example.printed), (
            f"{document.name}:{example.line}: $ {example.command}\n"
            f"--- documented\n{example.printed}\n--- printed\n{printed}"
        )


@pytest.mark.parametrize("processes", [1], indirect=True, ids=["alone"])
def test_the_documents_have_examples() -> None:
    assert (len(parse_examples(TOPICS.read_text())) > 60, len(parse_examples(OPERATIONS.read_text())) > 15) == (
        True,
        True,
    )


@pytest.mark.parametrize("processes", [1], indirect=True, ids=["alone"])
def test_examples_are_read_with_what_they_print() -> None:
    first = "```console\n$ later a \\\n  b\nx\n\n y\n$ sleep 1\n$ curl\n```\n"
    assert parse_examples(f"{first}\n```sh\n$ no\n```\n```console\n$ later c\nz…\n```\n") == [
        Example(2, "later a   b", "x\n\n y", slept=False),
        Example(7, "sleep 1", "", slept=False),
        Example(8, "curl", "", slept=True),
        Example(15, "later c", "z…", slept=False),
    ]


@pytest.mark.parametrize("processes", [1], indirect=True, ids=["alone"])
@pytest.mark.parametrize(
    ("printed", "documented", "matches"),
    [
        ("a\nb", "a\nb", True),
        ("a 17 b", "a … b", True),
        ("a.b", "a.b", True),
        ("axb", "a.b", False),
        ("a", "", False),
        ("", "a", False),
        ("a\nb\nc", "a…c", False),
        ("a\nb\nc", "a\n…\nc", True),
        ("a\nc", "a\n…\nc", True),
        ("a\nb\nc", "…\nb\n…", True),
        ("a\nb\nc", "…\nd\n…", False),
        ("a\nb", "a", False),
    ],
)
def test_output_is_compared_completely(printed: str, documented: str, matches: bool) -> None:
    assert is_as_documented(printed, documented) is matches
