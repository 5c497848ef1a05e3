"""The API key of commands: from a file or the environment, checked before a call, and shown nowhere."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from later.cli.groups import load_command
from later.cli.program import COMMANDS
from later.core.api_keys import make_key_text
from tests.cli.api_stub import TASK_JSON, ApiStub, Capture, Reply, exit_code_of
from tests.environment import HAS_SERVER

KEY = make_key_text()
MISTYPED = KEY[:-1] + ("a" if KEY[-1] != "a" else "b")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(f"{KEY}\n", encoding="utf-8")
    return file


def test_each_command_that_calls_the_api_takes_a_key_file_and_no_key() -> None:
    callers = set[str]()
    for name, lazy in COMMANDS.items():
        if lazy.extra is not None:
            continue
        command = load_command(lazy)
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            options = {option for parameter in each.params for option in parameter.opts}
            if "--wait" in options:  # for an answer of the API
                callers.add(name)
                assert "--key-file" in options, each.name
                assert "--key" not in options
    assert callers == {
        "create", "query", "delete", "list", "explain", "forecast", "update", "run-now", "dead", "topics", "namespaces",
        "bulk", "claim", "work", "ack", "nack", "release", "extend", "run", "schedules",
    }  # fmt: skip


def test_the_key_is_in_the_header_of_each_call(
    api: ApiStub, key_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def sent(*options: str) -> str | None:
        api.replies.append(Reply(200, TASK_JSON))
        assert exit_code_of("query", "n1", *options) == 0
        return api.requests[-1].headers.get("Authorization")

    assert sent() is None
    assert sent("--key-file", str(key_file)) == f"Bearer {KEY}"
    Path("later.toml").write_text(f'key_file = "{key_file}"\n', encoding="utf-8")
    assert sent() == f"Bearer {KEY}"
    other = make_key_text()
    monkeypatch.setenv("LATER_KEY", other)
    assert sent() == f"Bearer {other}"
    assert sent("--key-file", str(key_file)) == f"Bearer {KEY}"
    monkeypatch.delenv("LATER_KEY")
    monkeypatch.setenv("LATER_KEY_FILE", str(key_file))
    assert sent() == f"Bearer {KEY}"
    output = capsys.readouterr()
    assert KEY not in output.out + output.err


def test_a_mistyped_key_is_told_before_any_call(api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("LATER_KEY", MISTYPED)
    for command in (["query", "n1"], *([["bulk", "create", "x.csv", "--job", "j"]] if HAS_SERVER else [])):
        assert exit_code_of(*command) == 2
        error = capsys.readouterr().err
        assert "mistyped: its check digits are wrong" in error
        assert MISTYPED not in error
    monkeypatch.delenv("LATER_KEY")
    assert exit_code_of("query", "n1", "--key-file", KEY) == 2
    error = capsys.readouterr().err
    assert error == ("later: key file: expected the name of a file, got a key: put it into a file, or into LATER_KEY\n")
    assert api.requests == []


def test_a_key_that_others_can_read_is_warned_of(api: ApiStub, key_file: Path, capsys: Capture) -> None:
    key_file.chmod(0o644)
    api.replies.append(Reply(200, TASK_JSON))
    assert exit_code_of("query", "n1", "--key-file", str(key_file)) == 0
    assert capsys.readouterr().err == f"later: {key_file}: other users can read this key: chmod 600 {key_file}\n"


def test_a_call_that_needs_a_key_says_how_to_give_one(api: ApiStub, key_file: Path, capsys: Capture) -> None:
    needs = "this call needs a key: Authorization: Bearer later_…"
    api.replies += [Reply(401, {"type": "/problems/no-key", "status": 401, "detail": needs})] * 2
    assert exit_code_of("query", "n1") == 1
    assert capsys.readouterr().err == f"later: {needs}; put the key into LATER_KEY, or name its file (--key-file)\n"
    assert exit_code_of("query", "n1", "--key-file", str(key_file)) == 1
    assert capsys.readouterr().err == f"later: {needs}\n"
