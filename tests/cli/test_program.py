"""The program: help, usage errors, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from later.cli.application_option import CONNECTION_OPTIONS
from later.cli.bulk.group import bulk
from later.cli.exit import exit_code
from later.cli.groups import load_command
from later.cli.options import CLIENT_COMMAND
from later.cli.program import later
from later.core.errors import ConfigError, StoreDown
from later.option_table import OPTIONS, STORE_COMMANDS, Option
from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, exit_code_of, problem_reply

ROOT = Path(__file__).parents[2]
COMMANDS = {name: load_command(lazy) for name, lazy in later.lazy_commands.items()}
COMMAND_WORDS = [
    words
    for name, command in COMMANDS.items()
    for words in ([(name, sub) for sub in command.commands] if isinstance(command, click.Group) else [(name,)])
]
DEV = ("dev",)
"""The only group that does something by itself."""


@pytest.mark.system
def test_python_m_later_prints_the_version() -> None:
    done = subprocess.run([sys.executable, "-m", "later", "--version"], capture_output=True, text=True, check=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout == "later 0.1.0\n"


SIGNAL_AT_IMPORT = """
import importlib.abc, os, sys
module, number, *arguments = sys.argv[1:]

class Sender(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Sender())
sys.argv[1:] = arguments
from later.cli import main
main()
"""
"""The program, to which a signal comes when it imports a module."""


def end_at_import(module: str, number: signal.Signals, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the error output of a command to which the signal comes at this import."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {SIGNAL_AT_IMPORT}"
    command = [sys.executable, "-c", code, module, str(int(number)), *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return ended.returncode, ended.stderr


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    "module", ["later.cli.program", "click", "later.config", "aiohttp", "later.daemon.single", "uvloop"]
)
def test_a_daemon_that_is_stopped_while_it_imports_exits_with_0_and_says_nothing(
    module: str, number: signal.Signals
) -> None:
    assert end_at_import(module, number, "up", "--listen", "127.0.0.1:0") == (0, "")


@pytest.mark.system
@pytest.mark.parametrize(
    "module", ["later.cli.program", "click", "later.config", "later.cli.commands.tasks", "http.client"]
)
def test_a_command_that_is_interrupted_while_it_imports_exits_with_130_in_one_line(module: str) -> None:
    status, error = end_at_import(module, signal.SIGINT, "query", "x", "--url", "http://127.0.0.1:1")
    assert (status, error.strip()) == (130, "")


@pytest.mark.system
def test_nothing_but_the_signals_is_imported_before_they_are_handled() -> None:
    code = "import signal, sys; before = set(sys.modules); import later.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["__future__", "later", "later.cli", "later.cli.main", "later.startup"]


@pytest.mark.system
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from later.cli.program import run; run(['--help']);"
        "print(sorted({'aiohttp', 'asyncio', 'redis', 'rich', 'structlog', 'http.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


@each_case("name", COMMANDS)
def test_a_command_is_listed_with_the_first_sentence_of_its_help(name: str) -> None:
    first_sentence = (COMMANDS[name].help or "").partition("\n\n")[0]
    assert COMMANDS[name].name == name
    assert later.lazy_commands[name].help == " ".join(first_sentence.split())


@each_case("words", [DEV, *(words for words in COMMAND_WORDS if words != ("keys", "make"))])
def test_every_command_has_help_with_an_example_and_its_options_with_defaults_and_variables(
    words: tuple[str, ...], capsys: Capture
) -> None:
    assert exit_code_of(*words, "-h") == 0
    help = " ".join(capsys.readouterr().out.split())
    assert f"Examples: later {' '.join(words)}" in help
    assert ("[default: later.toml, if it exists; LATER_CONFIG]" in help) is (words not in WITHOUT_CONFIGURATION)
    expected = expected_options(words)
    for option in OPTIONS:
        shown = f"--{option.name} {option.type.metavar}" in help and f"; {option.variable}]" in help
        assert shown == (option in expected), option.name


WITHOUT_CONFIGURATION = {("secrets", "init"), ("handlers", "list"), ("handlers", "check"), ("cluster", "plan")}
"""Commands that call neither the API nor the store, and read no options of the configuration."""

ARGUMENTS = {
    ("create",): ("--topic", "order", "--callback", "http://a/"),
    ("update",): ("x", "--retry", "1"),
    ("dead", "redrive"): ("--topic", "order", "--yes"),
    ("dead", "purge"): ("--topic", "order", "--yes"),
    ("work",): ("jobs", "--", "true"),
    ("topics", "set"): ("order", "--retry", "1"),
    ("topics", "unset"): ("order", "--retry"),
    ("topics", "purge"): ("order", "--yes"),
    ("topics", "list"): (),
    ("schedules", "put"): ("x", "--every", "1h", "--topic", "order"),
    ("schedules", "list"): (),
    ("namespaces", "set"): ("shop", "--retry", "1"),
    ("namespaces", "unset"): ("shop", "--retry"),
}
"""Arguments with which each command of the API goes on to call it; for others a name is enough."""


@pytest.mark.parametrize(
    "words",
    [
        words
        for words in COMMAND_WORDS
        if words[0] not in (*STORE_COMMANDS, "check", "healthy", "bulk", "handlers", "run", "cluster", "move")
    ],
    ids=" ".join,
)
def test_the_environment_and_the_file_of_a_daemon_do_not_concern_a_command_of_the_api(
    words: tuple[str, ...], api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, text in {"REDIS": "redis://a", "DATA": "d", "TICK": "banana", "TIMEOUT": "999"}.items():
        monkeypatch.setenv(f"LATER_{name}", text)
    Path("later.toml").write_text('lease = "banana"\nconcurrency = true\n', encoding="utf-8")
    api.replies = [problem_reply(404, "it is not there")] * 9
    assert exit_code_of(*words, *ARGUMENTS.get(words, ("x",))) == 1
    assert "it is not there" in capsys.readouterr().err


def expected_options(words: tuple[str, ...]) -> list[Option]:
    """Return the options of the configuration that a command has. A command of `bulk` has a --url of its own."""
    if words in WITHOUT_CONFIGURATION:
        return []
    if words[0] == "bulk":
        command = bulk.commands[words[1]]
        return [o for o in OPTIONS if o.name != "url" and o.key in {parameter.name for parameter in command.params}]
    if words == ("handlers", "apply"):
        return [option for option in OPTIONS if option.name in CONNECTION_OPTIONS]
    if words[0] == "dev" and words != DEV:
        return [option for option in OPTIONS if CLIENT_COMMAND in option.commands]
    named = {name for option in OPTIONS for name in option.commands}
    return [option for option in OPTIONS if (words[0] if words[0] in named else CLIENT_COMMAND) in option.commands]


@each_case(
    ("group", "listed"),
    [
        ("dev", ["advance", "advance-to", "clock"]),
        ("topics", ["list", "show", "set", "unset", "pause", "resume", "purge"]),
        ("namespaces", ["show", "set", "unset"]),
        ("schedules", ["put", "get", "list", "delete", "pause", "resume", "run-now", "next"]),
        ("dead", ["list", "redrive", "purge"]),
        ("secrets", ["init", "show", "rotate", "list"]),
        ("keys", ["create", "list", "show", "revoke", "rotate", "make"]),
        ("handlers", ["list", "check", "apply"]),
        ("bulk", ["create", "verify", "cancel", "export", "report"]),
    ],
)
def test_a_group_lists_its_commands(group: str, listed: list[str], capsys: Capture) -> None:
    assert exit_code_of(group, "-h") == 0
    assert listed_commands(capsys.readouterr().out) == listed


def listed_commands(help: str) -> list[str]:
    return [line.split()[0] for line in help.partition("Commands:\n")[2].split("\n\n")[0].splitlines()]


def test_commands_are_listed_in_the_order_of_use(capsys: Capture) -> None:
    assert exit_code_of("--help") == 0
    assert listed_commands(capsys.readouterr().out) == [
        *("up", "serve", "worker", "dev"), *("create", "query", "delete"),
        *("list", "explain", "forecast", "update", "run-now", "dead"),
        *("claim", "ack", "nack", "release", "extend", "work", "run"),
        *("topics", "namespaces", "schedules", "handlers", "bulk"),
        *("keys", "secrets", "audit", "check", "healthy", "cluster", "status", "doctor"),
        *("move", "export", "import"),
    ]  # fmt: skip


@each_case("arguments", [["nope"], ["up", "--nope"], ["query"], ["create", "--batch", "0"], ["up", "x"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: Capture) -> None:
    assert exit_code_of(*arguments) == 2
    assert "Usage:" in capsys.readouterr().err


@each_case(("words", "proposed"), [(["quer"], "query"), (["topics", "purg"], "purge")])
def test_a_command_of_a_similar_name_is_proposed(words: list[str], proposed: str, capsys: Capture) -> None:
    assert exit_code_of(*words) == 2
    assert capsys.readouterr().err.endswith(f"No such command '{words[-1]}'. Did you mean '{proposed}'?\n")


def test_a_wrong_value_exits_with_2_and_one_line(capsys: Capture) -> None:
    assert exit_code_of("up", "--tick", "0") == 2
    assert capsys.readouterr().err == "later: --tick 0: expected a duration of at least 0.01 s\n"


@each_case(
    ("error", "status", "message"),
    [
        (StoreDown("the store\nis away"), 1, "later: the store is away\n"),
        (ConfigError("--x y: expected z"), 2, "later: --x y: expected z\n"),
        (OSError(98, "address already in use"), 1, "later: address already in use\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "later: x: No such file or directory\n"),
        (ConnectionRefusedError("refused \x1b[2J"), 1, "later: refused \\x1b[2J\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_an_error_is_printed_in_one_line(error: BaseException, status: int, message: str, capsys: Capture) -> None:
    def work() -> int:
        raise error

    assert exit_code(work) == status
    assert capsys.readouterr().err == message


def test_a_bug_prints_a_traceback(capsys: Capture) -> None:
    assert exit_code(lambda: 1 // 0) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.system
def test_a_closed_pipe_is_not_reported() -> None:
    code = "from later.cli import main; import sys; sys.argv = ['later', 'up', '--help']; main()"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, check=False,
                          cwd=ROOT)  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")
