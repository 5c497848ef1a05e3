"""Ownership of a data directory, against real processes that are killed in every order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from later.embedded import EmbeddedError, EmbeddedStore, locks
from tests.embedded.stores import a_process, a_store, is_running, send, server_pid


async def test_a_directory_in_use_is_refused_with_its_owner(data: Path) -> None:
    with a_process("store_owner.py", data) as owner:
        with pytest.raises(EmbeddedError, match=rf"in use by another `later up` \(pid {owner.pid}\)"):
            await EmbeddedStore(data).start()
        assert send(data, "PING")
        os.kill(server_pid(data), signal.SIGKILL)


async def test_a_second_start_of_a_running_store_is_refused_and_leaves_it_running(data: Path) -> None:
    async with a_store(data) as store:
        with pytest.raises(EmbeddedError, match=f"pid {os.getpid()}"):
            await store.start()
        assert send(data, "PING")


async def test_an_orphaned_server_is_stopped_and_its_data_kept(data: Path) -> None:
    with a_process("store_owner.py", data) as owner:
        send(data, "SET", "task", "kept")
        orphan = server_pid(data)
        os.kill(orphan, signal.SIGSTOP)  # it cannot end by itself
        owner.kill()
    assert is_running(orphan)
    async with a_store(data):
        assert not is_running(orphan)
        assert send(data, "GET", "task") == "kept"


async def test_an_orphan_that_ignores_sigterm_is_killed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "STOP_TIMEOUT_S", 0.2)
    data.mkdir()
    with a_process("unresponsive_server.py", data) as orphan:
        async with a_store(data):
            assert orphan.wait() == -signal.SIGKILL
            assert send(data, "PING")


async def test_a_lock_of_an_unknown_process_is_reported(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "STOP_TIMEOUT_S", 0.1)
    data.mkdir()
    with a_process("unresponsive_server.py", data) as holder:
        (data / "store.sock").unlink()
        with pytest.raises(EmbeddedError, match="fuser"):
            await EmbeddedStore(data).start()
        assert holder.poll() is None


async def test_a_stale_socket_and_a_reused_pid_do_no_harm(data: Path) -> None:
    data.mkdir()
    (data / "store.pid").write_text(f"{os.getpid()}\n")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(data / "store.sock"))
    async with a_store(data):
        assert send(data, "PING")


async def test_a_child_process_of_the_owner_does_not_keep_the_lock(data: Path) -> None:
    store = EmbeddedStore(data)
    await store.start()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:  # noqa: ASYNC220 - it starts at once
        await store.stop()
        async with a_store(data):
            assert child.poll() is None
        child.kill()
