"""`later handlers`: an application's handlers, and the policies that they wish, set with the API behind it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from later.client import Client
from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of
from tests.client.api_servers import ApiServer, api_server

SHOP = """
from dataclasses import dataclass
from later import Handlers, Later
from later.client import Info

tasks = Later("{url}", callback="http://app.example/later")
shop = Handlers(namespace="{namespace}")
tasks.include(shop)

@dataclass
class Remind:
    order: int

@shop.handler("remind", concurrency=4, timeout="90s", aliases=["old"], policy={{"retry": 5, "timeout": "30s"}})
async def remind(reminder: Remind) -> None: ...

@remind.on_dead
async def gave_up(dead: Info) -> None: ...

@shop.every("1h", jitter="5m", payload=7)
def tick(number: int) -> None: ...

wrong = Later("{url}")

@wrong.handler("a", policy={{"rety": 5}})
def wishes(number: int) -> None: ...

@wrong.handler("b")
def takes(number: "Missing") -> None: ...

@wrong.every(60, id="x")
def needs(number: int) -> None: ...

@wrong.handler("c")
def is_well(number: int) -> None: ...

misspelt = Later("{url}")
misspelt.handler("a", policy={{"rety": 5}})(lambda: None)
refused = Later("{url}")
refused.handler("{namespace}/x", policy={{"on_dead": "elsewhere/x"}})(lambda: None)
"""


NUMBERS = count()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server() as api:
        yield api


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: ApiServer) -> Iterator[str]:
    """Write the module of an application, and return the namespace of its handlers."""
    namespace = f"shop{next(NUMBERS)}"
    (tmp_path / "handled.py").write_text(SHOP.format(url=api.url, namespace=namespace))
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield namespace
    sys.path[:] = path
    sys.modules.pop("handled", None)


def test_the_handlers_of_an_application_are_listed_with_their_types(module: str, capsys: Capture) -> None:
    assert exit_code_of("handlers", "list", "handled:tasks", "--json") == 0
    remind, gave_up, tick = map(json.loads, capsys.readouterr().out.splitlines())
    assert remind == {
        "topic": f"{module}/remind", "aliases": [f"{module}/old"], "payload": "handled.Remind", "concurrency": 4,
        "timeout": 90.0, "strict": False,
        "policy": {"retry": 5, "timeout": "30s", "on_dead": f"{module}/remind.on_dead"}, "schedules": [],
    }  # fmt: skip
    assert (gave_up["payload"], tick["schedules"]) == ("later.client.answers.Info", [f"{module}:tick"])
    assert exit_code_of("handlers", "list", "handled:tasks") == 0
    headers, first, *_ = capsys.readouterr().out.splitlines()
    assert headers.split() == ["topic", "aliases", "payload", "concurrency", "timeout", "wishes", "schedules"]
    assert first.split()[2:5] == ["handled.Remind", "4", "90s"]
    assert exit_code_of("handlers", "list", "handled:wrong") == 1
    assert "the annotation 'Missing' of number cannot be resolved" in capsys.readouterr().err


def test_check_names_each_handler_that_is_wrong(capsys: Capture) -> None:
    assert exit_code_of("handlers", "check", "handled:tasks") == 0
    assert capsys.readouterr().out == "all 3 handlers are well\n"
    assert exit_code_of("handlers", "check", "handled:wrong") == 1
    printed = capsys.readouterr()
    assert printed.out == "3 of 4 handlers are wrong\n"
    first, second, third = printed.err.splitlines()
    assert first.startswith("later: a: rety: no field of a policy; there are ")
    assert first.endswith("did you mean retry?")
    assert "the annotation 'Missing' of number cannot be resolved" in second
    assert third == "later: needs: its handler takes a payload: declare its schedule with payload=…"


def test_apply_shows_what_differs_asks_and_sets_it(
    module: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(*options: str, answer: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO() if answer is None else Terminal(f"{answer}\n"))
        status = exit_code_of("handlers", "apply", "handled:tasks", *options)
        return (status, *capsys.readouterr())

    status, printed, asked = apply()
    assert (status, "--yes" in asked) == (2, True)
    assert [line.split() for line in printed.splitlines()] == [
        ["topic", "field", "now", "wish"],
        [f"{module}/remind", "retry", "3", "5"],
        [f"{module}/remind", "timeout", "15s", "30s"],
        [f"{module}/remind", "on_dead", "-", f"{module}/remind.on_dead"],
        [f"{module}/remind.on_dead", "callback", "-", "http://app.example/later"],
        [],
        ["schedule", "field", "now", "wish"],
        [f"{module}:tick", "content", "-", "7"],
        [f"{module}:tick", "every", "-", "1h"],
        [f"{module}:tick", "jitter", "-", "5m"],
        [f"{module}:tick", "callback", "-", "http://app.example/later"],
        [f"{module}:tick", "topic", "-", f"{module}/tick"],
    ]
    status, printed, _ = apply("--dry-run", "--json")
    shown = json.loads(printed)
    assert (status, shown["applied"], len(shown["policies"]), len(shown["schedules"])) == (0, False, 4, 5)
    assert shown["policies"][1] == {"topic": f"{module}/remind", "field": "timeout", "before": 15, "after": 30}
    assert shown["schedules"][1] == {"id": f"{module}:tick", "field": "every", "before": None, "after": 3600}
    status, _, asked = apply(answer="n")
    question = "set 4 fields of 2 topics and 5 fields of 1 schedule?"
    assert (status, question in asked, "nothing was set" in asked) == (1, True, True)
    status, printed, asked = apply(answer="y")
    assert status == 0
    assert printed.endswith("4 fields of 2 topics and 5 fields of 1 schedule set\n")
    assert "warning" not in asked
    assert apply() == (0, "all policies and schedules are as the handlers wish\n", "")
    status, printed, _ = apply("--yes", "--json")
    assert json.loads(printed) == {"policies": [], "schedules": [], "undeclared": [], "applied": False}


def test_a_schedule_whose_declaration_is_gone_is_named(module: str, api: ApiServer, capsys: Capture) -> None:
    with Client(api.url) as client:
        client.put_schedule(f"{module}:old", topic=f"{module}/tick", every=60, callback="http://app.example/")
    assert exit_code_of("handlers", "apply", "handled:tasks", "--dry-run") == 0
    named = f"no handler declares the schedule {module}:old of its topic: `later schedules delete {module}:old` ends it"
    assert named in capsys.readouterr().err


@each_case(
    "name, text",
    [
        ("handled:misspelt", "a: rety: no field of a policy"),
        ("handled:refused", "/x: on_dead: expected another topic of the namespace shop"),
    ],
)
def test_a_wish_that_is_refused_is_told_in_the_words_of_the_daemon(name: str, text: str, capsys: Capture) -> None:
    assert exit_code_of("handlers", "apply", name, "--yes") == 1
    assert text in capsys.readouterr().err


def test_a_daemon_that_is_away_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.sync.pause", lambda *_: None)
    url = "http://127.0.0.1:9"
    assert exit_code_of("handlers", "apply", "handled:tasks", "--dry-run", "--url", url) == 1
    assert capsys.readouterr().err.startswith(f"later: {url} did not answer")
