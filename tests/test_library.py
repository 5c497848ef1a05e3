"""The library: what an application has that installs later without an extra."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import later
from later.cli.groups import Extra, load_command
from later.cli.program import COMMANDS
from later.core.errors import ConfigError
from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of
from tests.environment import HAS_SERVER

ROOT = Path(later.__file__).parent
PACKAGES = ("application.py", "client", "core", "errors.py", "handlers", "puller", "receiver", "run", "testing")
"""What an application may import from. All modules of these packages are the library's."""
SERVER_COMMANDS = [name for name, lazy in COMMANDS.items() if lazy.extra is not None]
OF_THE_SERVER = {"StoreClaims"}
"""The public names that need the server."""
MAX_MODULES = 400
"""The most modules that the public names may import, with those of Python itself."""


def modules() -> list[str]:
    files = {file for package in PACKAGES for file in [ROOT / package, *(ROOT / package).rglob("*.py")]}
    paths = (file.relative_to(ROOT.parent).with_suffix("") for file in files if file.suffix == ".py")
    return sorted(".".join(path.parts) for path in paths)


@each_case("module", modules())
def test_every_module_of_the_library_is_imported_without_an_extra(module: str) -> None:
    import_module(module.removesuffix(".__init__"))


@each_case("name", [name for name in later.__all__ if HAS_SERVER or name not in OF_THE_SERVER])
def test_every_public_name_is_found(name: str) -> None:
    assert getattr(later, name).__module__.startswith("later.")
    assert name in dir(later)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'later' has no attribute 'Soon'"):
        getattr(later, "Soon")  # noqa: B009  # for the type checker, there is none


@each_case("name", OF_THE_SERVER)
def test_a_name_of_the_server_without_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> None:
        raise ModuleNotFoundError("No module named 'redis'", name="redis.asyncio")

    monkeypatch.setattr("importlib.import_module", fail)
    monkeypatch.delitem(vars(later), name, raising=False)
    with pytest.raises(ImportError, match=rf"{name} needs the server: pip install 'later\[server\]'"):
        getattr(later, name)


@each_case("name", [name for name, lazy in COMMANDS.items() if lazy.extra is None])
def test_every_command_of_the_api_is_imported_without_an_extra(name: str) -> None:
    load_command(COMMANDS[name])


def test_a_command_of_the_server_without_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in SERVER_COMMANDS:
        assert exit_code_of(name) == 2
        assert capsys.readouterr() == ("", f"later: `{name}` needs the server: pip install 'later[server]'\n")


def test_an_extra_is_missing_if_one_of_its_modules_is() -> None:
    Extra("server", ("json",), "the server").check("up")
    with pytest.raises(ConfigError, match=r"`up` needs the server: pip install 'later\[server\]'"):
        Extra("server", ("json", "no_such_package.module"), "the server").check("up")


@pytest.mark.skipif(HAS_SERVER, reason="the server is installed")
def test_where_the_server_is_not_installed_its_commands_say_so(capsys: Capture) -> None:
    assert exit_code_of("up", "--listen", "127.0.0.1:0") == 2
    assert capsys.readouterr().err == "later: `up` needs the server: pip install 'later[server]'\n"


@pytest.mark.system
def test_import_later_loads_neither_aiohttp_nor_redis() -> None:
    code = f"""
import sys, time
began, before = time.perf_counter(), set(sys.modules)
import later
assert set(sys.modules) - before == {{"later"}}, set(sys.modules) - before
from later import Later
print(*sorted(set(sys.modules) & {{"email", "http.client", "later.client.aio", "later.receiver.receiver"}}))
from later import {", ".join(set(later.__all__) - OF_THE_SERVER)}
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(len(set(sys.modules) - before), f"modules in {{(time.perf_counter() - began) * 1000:.0f}} ms")
print(*sorted(loaded & {{"aiohttp", "click", "prometheus_client", "redis", "rich", "structlog"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    needless, cost, heavy = done.stdout.splitlines()
    print(cost)
    assert (needless, heavy) == ("", "")
    assert int(cost.split()[0]) <= MAX_MODULES
