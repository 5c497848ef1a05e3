"""Other users cannot read or replace the files of an embedded store, whatever the directory was before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from later.embedded import EmbeddedError, EmbeddedStore
from tests.embedded.stores import a_store, send


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The umask that hides nothing."""
    previous = os.umask(0)
    yield
    os.umask(previous)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_files(data: Path) -> list[str]:
    """Return the files below the directory that others have any permission for. The server may remove some."""
    found = []
    for path in data.rglob("*"):
        with suppress(FileNotFoundError):
            if mode_of(path) & 0o077:
                found.append(str(path.relative_to(data)))
    return sorted(found)


async def test_a_new_directory_and_its_files_are_private_whatever_the_umask(data: Path) -> None:
    async with a_store(data):
        send(data, "SET", "task", "secret")
        send(data, "BGREWRITEAOF")
        assert (mode_of(data), open_files(data)) == (0o700, [])
        assert {"store.log", "store.sock", "appendonlydir"} <= {path.name for path in data.iterdir()}
    assert os.umask(0) == 0


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750])
async def test_an_empty_directory_that_is_open_to_others_is_closed_and_that_is_logged(data: Path, mode: int) -> None:
    data.mkdir()
    data.chmod(mode)
    with capture_logs() as logs:
        async with a_store(data):
            assert (mode_of(data), open_files(data)) == (0o700, [])
    assert logs[0] == {
        "event": "data directory closed to other users",
        "log_level": "info",
        "data": str(data),
        "mode_before": f"{mode:04o}",
    }


async def test_files_that_an_older_version_left_open_are_closed(data: Path) -> None:
    async with a_store(data):
        send(data, "SET", "task", "kept")
        send(data, "SAVE")
    assert (data / "dump.rdb").exists()
    (data / "signing.key").write_text("secret")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    async with a_store(data):
        assert send(data, "GET", "task") == "kept"
        assert (mode_of(data), open_files(data)) == (0o700, [])


async def test_a_directory_with_other_files_keeps_its_mode_and_the_stores_files_are_private(data: Path) -> None:
    data.mkdir()
    data.chmod(0o755)
    (data / "notes.txt").write_text("for all")
    async with a_store(data):
        assert (mode_of(data), open_files(data)) == (0o755, ["notes.txt"])


async def test_a_directory_with_other_files_that_others_can_write_to_is_refused(data: Path) -> None:
    data.mkdir()
    data.chmod(0o1777)
    (data / "notes.txt").write_text("for all")
    with pytest.raises(EmbeddedError) as refused:
        await EmbeddedStore(data).start()
    assert str(refused.value) == (
        f"other users can write into {data} (mode 1777), and it holds other files than the store's (notes.txt); "
        f"choose a directory of its own, such as --data {data}/later-data"
    )
    assert [path.name for path in data.iterdir()] == ["notes.txt"]


async def test_a_directory_of_another_user_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(
        EmbeddedError, match=rf"{data} belongs to another user \(uid {owner}\).*--data {data}/later-data"
    ):
        await EmbeddedStore(data).start()


async def test_a_link_of_another_user_is_a_foreign_file(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the server would append its log to the file that the link names."""
    data.mkdir()
    data.chmod(0o777)
    (data / "store.log").symlink_to("/etc/hostname")
    lstat = Path.lstat

    def lstat_of_another_user(path: Path) -> os.stat_result:
        fields = list(lstat(path))
        fields[stat.ST_UID] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", lstat_of_another_user)
    with pytest.raises(EmbeddedError, match=r"other files than the store's \(store.log\)"):
        await EmbeddedStore(data).start()
