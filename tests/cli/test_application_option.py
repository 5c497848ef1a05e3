"""The application that a command is given: how it is found, and what it is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from later import Later
from later.cli.application_option import application_options, load_application
from later.cli.exit import exit_code
from later.core.errors import ConfigError
from tests.cases import each_case
from tests.cli.api_stub import Capture

SHOP = """
from later import Handlers, Later

tasks = Later("http://127.0.0.1:9", key=None)
parts = Handlers()

class Group:
    inner = tasks

def make():
    return tasks

def make_nothing():
    return None

def fail():
    raise KeyError("no database")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of an application in the current directory, which nothing else imports."""
    (tmp_path / "shop_of_test").mkdir()
    (tmp_path / "shop_of_test" / "main.py").write_text(SHOP)
    (tmp_path / "needs_more.py").write_text("import no_such_library\n")
    (tmp_path / "fails.py").write_text("def connect():\n    raise OSError('no disk')\n\nconnect()\n")
    (tmp_path / "cut.py").write_text("tasks = (\n")
    (tmp_path / "unresolved.py").write_text(
        "from __future__ import annotations\nfrom later import Later\ntasks = Later()\n"
        "@tasks.handler\nasync def remind(order: Missing) -> None: ...\n"
    )
    (tmp_path / "nowhere.py").write_text("from later import Later\ntasks = Later()\n")
    (tmp_path / "receives.py").write_text("from later import Later\ntasks = Later()\ntasks.asgi()\n")
    (tmp_path / "used.py").write_text("from later import Later\ntasks = Later('http://a')\ntasks.client\n")
    known, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@each_case("name", ["shop_of_test.main:tasks", "shop_of_test.main:Group.inner", "shop_of_test.main:make"])
def test_an_application_is_found_in_the_current_directory(name: str) -> None:
    assert load_application(name) is sys.modules["shop_of_test.main"].tasks
    assert os.getcwd() in sys.path


@each_case(
    ("name", "message"),
    [
        ("shop", "APP: expected MODULE:ATTRIBUTE, such as shop.tasks:tasks, got 'shop'"),
        (":tasks", "APP: expected MODULE:ATTRIBUTE, such as shop.tasks:tasks, got ':tasks'"),
        ("shop/main.py:tasks", "APP: expected MODULE:ATTRIBUTE, such as shop.tasks:tasks, got 'shop/main.py:tasks'"),
        ("no_such_module:tasks", "there is no module no_such_module, neither in {cwd} nor where Python finds others"),
        ("shop_of_test.no:tasks", "there is no module shop_of_test.no, neither in {cwd} nor where Python finds others"),
        (
            "shop_of_test.main:taks",
            "shop_of_test.main:taks: the module shop_of_test.main has no taks: did you mean shop_of_test.main:tasks?",
        ),
        ("fails:tasks", "fails cannot be imported: OSError"),
        ("cut:tasks", "cut cannot be imported: SyntaxError"),
        ("needs_more:tasks", "needs_more cannot be imported: ModuleNotFoundError"),
        ("shop_of_test.main:fail", "shop_of_test.main:fail failed: KeyError"),
        (
            "shop_of_test.main:parts",
            "shop_of_test.main:parts: Handlers have no connection: name the Later that includes them",
        ),
        (
            "shop_of_test.main:Group",
            "shop_of_test.main:Group: expected a Later, got the class Group: did you mean shop_of_test.main:tasks?",
        ),
        (
            "shop_of_test.main:make_nothing",
            "shop_of_test.main:make_nothing: expected a Later, got an object of the class NoneType: "
            "did you mean shop_of_test.main:tasks?",
        ),
    ],
)
def test_what_is_no_application_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_application(name)
    assert str(refused.value) == message.format(cwd=os.getcwd())


def test_an_error_of_the_applications_own_is_shown_from_where_its_code_begins(capsys: Capture) -> None:
    for name, first in (("fails:tasks", "fails.py"), ("needs_more:tasks", "needs_more.py")):
        with pytest.raises(ConfigError):
            load_application(name)
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert first in lines[1]
    assert lines[-1] == "ModuleNotFoundError: No module named 'no_such_library'"


@click.command()
@application_options
def show(application: Later) -> None:
    connection = application.connection
    print(connection.url, connection.key, connection.ca)


def run(*arguments: str) -> int:
    return exit_code(lambda: show.main(arguments, standalone_mode=False) or 0)


def test_the_command_line_counts_before_the_application_and_that_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("LATER_URL", "http://environment")
    assert run("shop_of_test.main:tasks") == 0
    assert run("shop_of_test.main:tasks", "--url", "http://flag", "--ca", "ca.pem") == 0
    assert run("nowhere:tasks") == 0
    assert run("receives:tasks") == 0
    assert capsys.readouterr().out.splitlines() == [
        "http://127.0.0.1:9 None None",
        "http://flag None ca.pem",
        "http://environment None None",
        "http://environment None None",
    ]


@each_case(
    ("arguments", "message"),
    [
        (
            ["nowhere:tasks"],
            'nowhere:tasks: where is later? Give --url, LATER_URL, or Later("http://…") in the application',
        ),
        (
            ["used:tasks", "--url", "http://b"],
            "used:tasks: it calls later while it is imported, so its URL and key cannot be set",
        ),
        (
            ["unresolved:tasks", "--url", "http://b"],
            "unresolved:tasks: unresolved.remind: the annotation 'Missing' of order cannot be resolved: "
            "name 'Missing' is not defined",
        ),
    ],
)
def test_an_application_that_cannot_be_used_exits_with_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err == f"later: {message}\n"
