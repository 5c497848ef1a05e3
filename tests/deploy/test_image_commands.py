"""The commands of the image's build, in an empty venv of this machine: what they install is the daemon."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from later import __version__
from tests.deploy.dockerfile import BUILD, ROOT, copied

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PLACE = "/opt/later"
"""Where the image has its venv."""


def build_commands(venv: Path) -> Iterator[list[str]]:
    """Yield the commands of the build, for a venv elsewhere."""
    for instruction in BUILD:
        if instruction.name == "RUN":
            words = [word.replace(PLACE, str(venv)) for word in instruction.arguments]
            yield [sys.executable if words[0] == "python" else words[0], *words[1:]]


def test_what_is_copied_is_enough_to_install_a_daemon(tmp_path: Path) -> None:
    source, venv = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    for name in copied():
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    for command in build_commands(venv):
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(source)  # the image has the venv only

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [venv / "bin" / "later", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert run("--version") == (0, f"later {__version__}\n")
    assert run("keys", "make")[0] == 0  # a command that needs the extra `server`
    status, text = run("healthy", "--listen", "127.0.0.1:1", "--health", "off")
    assert (status, text) == (1, "later: no daemon listens at 127.0.0.1:1\n")
    assert not [*venv.glob("lib/*/site-packages/pyspark")]  # only what the daemon needs
