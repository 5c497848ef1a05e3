"""Start and stop of the embedded store, with a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from later.embedded import EmbeddedStore, server, socket_url
from tests.embedded.stores import a_process, a_store, is_running, send, server_pid, wait_until


async def test_a_started_store_loses_and_evicts_nothing(data: Path) -> None:
    async with a_store(data) as store:
        wanted = {"save": "", "appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        for name, value in wanted.items():
            assert send(data, "CONFIG", "GET", name)[name] == value
        assert store.url == socket_url(data)
        assert store.why_unavailable() is None
        assert data.stat().st_mode & 0o777 == 0o700


async def test_the_server_runs_in_its_own_session(data: Path) -> None:
    async with a_store(data):
        assert os.getsid(server_pid(data)) == server_pid(data)


async def test_the_url_of_a_path_with_special_characters_works(data: Path) -> None:
    odd = data / "a b#c%41?d"
    async with a_store(odd):
        assert send(odd, "PING")


async def test_a_relative_directory_is_the_same_store(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    async with a_store(Path("./data")) as store:
        assert store.url == socket_url(data)


async def test_stop_leaves_no_process_no_socket_and_no_lock(data: Path) -> None:
    async with a_store(data) as store:
        pid = server_pid(data)
        await store.stop()
        assert not is_running(pid)
        assert not (data / "store.sock").exists()
        async with a_store(data) as again:
            assert again.why_unavailable() is None


async def test_stop_may_be_called_twice_and_before_start(data: Path) -> None:
    store = EmbeddedStore(data)
    await store.stop()
    await store.start()
    await store.stop()
    await store.stop()
    assert store.why_unavailable() == "the embedded store is not running"
    assert await store.check(0) is None


async def test_stop_ends_a_suspended_server(data: Path) -> None:
    async with a_store(data):
        pid = server_pid(data)
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


async def test_a_cancelled_start_leaves_no_process_and_no_lock(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = data.parent / "silent"
    silent.write_text(f"#!/bin/sh\necho $$ > {data.parent}/pid\nexec sleep 60\n")
    silent.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(server, "find_server", lambda: silent)
        store = EmbeddedStore(data)
        start = asyncio.create_task(store.start())
        pid_file = data.parent / "pid"
        await wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        await wait_until(lambda: store.why_unavailable() == "the embedded store is loading its data")
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    assert not is_running(int(pid_file.read_text()))
    async with a_store(data):
        assert send(data, "PING")


async def test_kill_9_of_owner_and_server_leaves_the_data_and_no_lock(data: Path) -> None:
    with a_process("store_owner.py", data) as owner:
        send(data, "SET", "task", "kept")
        owner.kill()
        os.kill(server_pid(data), signal.SIGKILL)
    async with a_store(data):
        assert send(data, "GET", "task") == "kept"
