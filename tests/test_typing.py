"""Type checkers accept the right uses of handlers, and refuse the wrong ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "typing_cases" / "handlers_usage.py"
WRONG = " # error: "


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(FILE.read_text().splitlines(), 1) if WRONG in line}


def check_types(*command: str) -> str:
    """Run a type checker, and return what it prints: it fails because of the wrong uses."""
    done = subprocess.run([sys.executable, "-m", *command], check=False, capture_output=True, text=True, cwd=ROOT)
    return done.stdout


@pytest.mark.system
def test_mypy_refuses_exactly_the_wrong_uses(tmp_path: Path) -> None:
    options = ("--strict", "--config-file", "", "--explicit-package-bases", "--cache-dir", str(tmp_path))
    printed = check_types("mypy", *options, str(FILE))
    found = dict(re.findall(r"handlers_usage\.py:(\d+): error: (.*)", printed))
    assert {int(line) for line in found} == wrong_lines(), printed
    lines = FILE.read_text().splitlines()
    for line, text in found.items():
        assert lines[int(line) - 1].partition(WRONG)[2] in text


@pytest.mark.system
def test_pyright_refuses_exactly_the_wrong_uses(tmp_path: Path) -> None:
    config = {"include": [str(FILE)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    printed = check_types("basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable)
    found = {int(line) for line in re.findall(r"handlers_usage\.py:(\d+):\d+ - error", printed)}
    assert found == wrong_lines(), printed
