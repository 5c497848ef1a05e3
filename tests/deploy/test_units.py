"""The units of deploy/systemd, by systemd's own checks and by the daemons' limits."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from later.config import load
from later.option_types import duration_s
from tests.cases import each_case
from tests.deploy.stop_time import longest_stop_s

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
MAX_EXPOSURE = "15"
"""The level of `systemd-analyze security` in tenths, of 100: with more than 1.5 of 10 it is not OK."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


class Unit(configparser.RawConfigParser):
    """A unit. Of options that occur more than once, the last counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.read_string(path.read_text())

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def test_there_is_a_unit_of_each_daemon() -> None:
    assert [unit.stem for unit in UNITS] == ["later-serve", "later-up", "later-worker"]


@each_case("path", UNITS)
def test_a_unit_starts_its_command_with_options_that_it_takes(path: Path) -> None:
    program, command, *options = Unit(path)["Service"]["ExecStart"].split()
    flags = {option.lstrip("-"): value for option, value in zip(*[iter(options)] * 2, strict=True)}
    assert program == "/opt/later/bin/later"
    assert command == path.stem.removeprefix("later-")
    assert load(command, flags, {}).command == command


@each_case("path", UNITS)
def test_a_unit_is_killed_no_sooner_than_its_daemon_has_stopped(path: Path) -> None:
    service = Unit(path)["Service"]
    assert service["KillMode"] == "mixed"
    assert duration_s(service["TimeoutStopSec"]) >= longest_stop_s(path.stem.removeprefix("later-"))


def test_the_units_are_protected_alike() -> None:
    first, *others = [path.read_text().partition("CapabilityBoundingSet=")[2] for path in UNITS]
    assert first
    assert others == [first, first]


@needs_systemd
@pytest.mark.system
def test_systemd_takes_every_line_of_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/later/bin/later", shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "later-" in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
@pytest.mark.system
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_says_that_a_unit_is_exposed_to_little(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
