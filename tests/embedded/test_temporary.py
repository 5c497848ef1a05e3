"""The data directories of `later dev`: each is removed at its end, or when the next one starts."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from later.embedded.locks import owner_lock
from later.embedded.temporary import temporary_directory


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def a_directory(folder: Path, name: str, age_s: float) -> Path:
    """Return a directory that a daemon has used, as it is so long after its start."""
    directory = folder / name
    directory.mkdir()
    (directory / "owner.lock").touch()
    os.utime(directory, (time.time() - age_s,) * 2)
    return directory


def test_a_temporary_directory_is_removed_at_the_end() -> None:
    with temporary_directory() as directory:
        (directory / "appendonlydir").mkdir()
    assert not directory.exists()


def test_those_of_daemons_that_were_killed_are_removed_and_no_others(folder: Path) -> None:
    abandoned = a_directory(folder, "later-dev-abandoned", age_s=3600)
    starting, used = a_directory(folder, "later-dev-new", age_s=1), a_directory(folder, "later-dev-used", age_s=3600)
    foreign = a_directory(folder, "later-data", age_s=3600)
    (folder / "later-dev-other").mkdir()
    os.utime(folder / "later-dev-other", (0, 0))
    with owner_lock(used), temporary_directory() as directory:
        left = {path.name for path in folder.iterdir()}
    assert not abandoned.exists()
    assert left == {starting.name, used.name, foreign.name, directory.name, "later-dev-other"}
