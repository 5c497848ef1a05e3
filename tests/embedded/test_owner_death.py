"""The end of a server whose owner is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from later.embedded import EmbeddedError, EmbeddedStore, owner_death
from later.embedded import server as embedded_server
from later.embedded.owner_death import OwnerWatcher
from tests.embedded.stores import (
    a_process,
    a_store,
    check_until_up,
    is_running,
    kill_server,
    send,
    server_pid,
    wait_until,
)

MODES = ["watched", *(["", "uvloop"] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("mode", MODES)
async def test_a_server_ends_with_its_killed_owner_and_keeps_what_it_acknowledged(data: Path, mode: str) -> None:
    with a_process("store_owner.py", data, mode) as owner:
        server = server_pid(data)
        for number in range(100):
            send(data, "SET", f"task-{number}", "kept")
        owner.kill()
        await wait_until(lambda: not is_running(server))
    assert "User requested shutdown" in (data / "store.log").read_text(), "it ended cleanly"
    async with a_store(data):
        assert send(data, "DBSIZE") == 100


@pytest.mark.parametrize("mode", MODES)
async def test_a_suspended_server_is_no_hindrance_to_the_next_one(data: Path, mode: str) -> None:
    with a_process("store_owner.py", data, mode) as owner:
        send(data, "SET", "task", "kept")
        server = server_pid(data)
        os.kill(server, signal.SIGSTOP)
        owner.kill()
    assert is_running(server)
    async with a_store(data):
        assert not is_running(server)
        assert send(data, "GET", "task") == "kept"


@pytest.fixture
def watchers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of the watchers that the test starts, because the kernel sends no signal."""
    started: list[int] = []
    start = OwnerWatcher.start

    async def record(server: int) -> OwnerWatcher:
        watcher = await start(server)
        started.append(watcher.pid)
        return watcher

    monkeypatch.setattr(embedded_server, "request_death_signal", lambda: None)
    monkeypatch.setattr(OwnerWatcher, "start", record)
    return started


async def test_a_watcher_ends_with_the_server(data: Path, watchers: list[int]) -> None:
    async with a_store(data):
        [watcher] = watchers
        assert is_running(watcher)
    await wait_until(lambda: not is_running(watcher))


async def test_each_run_of_a_server_has_a_watcher(data: Path, watchers: list[int]) -> None:
    async with a_store(data) as store:
        await kill_server(store, data)
        await wait_until(lambda: not is_running(watchers[0]))
        restart_at = await store.check(0)
        assert restart_at is not None
        await check_until_up(store, restart_at)
        assert [is_running(watcher) for watcher in watchers] == [False, True]


async def test_without_its_watcher_no_server_is_left_running(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "request_death_signal", lambda: None)
    monkeypatch.setattr(owner_death, "SHELL", "/nonexistent/sh")
    with pytest.raises(EmbeddedError, match="cannot run /nonexistent/sh"):
        await EmbeddedStore(data).start()
    with pytest.raises(redis.ConnectionError):
        send(data, "PING")


def test_a_process_whose_owner_is_gone_already_runs_nothing() -> None:
    request = owner_death.request_death_signal()
    if request is None:
        assert sys.platform != "linux"
        return
    pid = os.fork()
    if pid == 0:
        grandchild = os.fork()  # has another parent than this process, as one whose owner was killed
        if grandchild == 0:
            request()
            os._exit(1)  # it did not notice that
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
