"""`later handlers`: an application's handlers, and the policies that they wish, set with the API behind it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

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

@shop.handler
def tick() -> None: ...

wrong = Later("{url}")

@wrong.handler("a", policy={{"rety": 5}})
def wishes(number: int) -> None: ...

@wrong.handler("b")
def takes(number: "Missing") -> None: ...

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
        "policy": {"retry": 5, "timeout": "30s", "on_dead": f"{module}/remind.on_dead"},
    }  # fmt: skip
    assert (gave_up["payload"], tick["payload"]) == ("later.client.answers.Info", None)
    assert exit_code_of("handlers", "list", "handled:tasks") == 0
    headers, first, *_ = capsys.readouterr().out.splitlines()
    assert headers.split() == ["topic", "aliases", "payload", "concurrency", "timeout", "wishes"]
    assert first.split()[2:5] == ["handled.Remind", "4", "90s"]
    assert exit_code_of("handlers", "list", "handled:wrong") == 1
    assert "the annotation 'Missing' of number cannot be resolved" in capsys.readouterr().err


def test_check_names_each_handler_that_is_wrong(capsys: Capture) -> None:
    assert exit_code_of("handlers", "check", "handled:tasks") == 0
    assert capsys.readouterr().out == "all 3 handlers are well\n"
    assert exit_code_of("handlers", "check", "handled:wrong") == 1
    printed = capsys.readouterr()
    assert printed.out == "2 of 3 handlers are wrong\n"
    first, second = printed.err.splitlines()
    assert first.startswith("later: a: rety: no field of a policy; there are ")
    assert first.endswith("did you mean retry?")
    assert "the annotation 'Missing' of number cannot be resolved" in second


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
    ]
    status, printed, _ = apply("--dry-run", "--json")
    shown = json.loads(printed)
    assert (status, shown["applied"], len(shown["changes"])) == (0, False, 4)
    assert shown["changes"][1] == {"topic": f"{module}/remind", "field": "timeout", "before": 15, "after": 30}
    status, _, asked = apply(answer="n")
    assert (status, "set 4 fields of 2 topics?" in asked, "nothing was set" in asked) == (1, True, True)
    status, printed, asked = apply(answer="y")
    assert (status, printed.endswith("4 fields of 2 topics set\n"), "warning" in asked) == (0, True, False)
    assert apply()[:2] == (0, "all policies are as the handlers wish\n")
    assert apply("--yes", "--json")[:2] == (0, '{"changes": [], "applied": false}\n')


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
