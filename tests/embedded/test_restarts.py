"""Restarts of an embedded server that exits; no test waits for a delay to pass."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from later.embedded import server
from tests.embedded.stores import a_store, check_until_up, is_running, kill_server, send, server_pid, wait_until


async def test_a_server_that_exits_is_restarted_after_growing_delays(data: Path) -> None:
    async with a_store(data, clock=lambda: 0.0) as store:
        send(data, "SET", "task", "kept")
        now = 0
        for delay_s in (1, 2, 4):
            await kill_server(store, data)
            exited = server_pid(data)
            assert await store.check(now) == now + delay_s * 1000
            assert await store.check(now + delay_s * 1000 - 1) == now + delay_s * 1000
            assert not is_running(exited)
            now += delay_s * 1000
            await check_until_up(store, now)
            assert send(data, "GET", "task") == "kept"


async def test_the_delay_stops_growing_at_a_minute(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_store(data) as store:
        await kill_server(store, data)
        monkeypatch.setattr(server, "find_server", lambda: Path("/nowhere/valkey-server"))
        now, delays = 0, []
        for _ in range(8):
            due_at = await store.check(now)
            assert due_at is not None
            delays.append((due_at - now) // 1000)
            now = due_at
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_minute_of_uptime_resets_the_delay(data: Path) -> None:
    async with a_store(data, clock=lambda: 0.0) as store:
        await kill_server(store, data)
        assert await store.check(0) == 1000
        await check_until_up(store, 1000)
        await kill_server(store, data)
        assert await store.check(61_000) == 62_000


async def test_a_store_says_why_it_is_unavailable(data: Path) -> None:
    seconds = [0.0]
    async with a_store(data, clock=lambda: seconds[0]) as store:
        await kill_server(store, data)
        assert store.why_unavailable() == "the embedded store exited (exit status -9) and is about to be restarted"
        await store.check(0)
        seconds[0] = 0.4
        assert store.why_unavailable() == "the embedded store exited (exit status -9) and restarts in 1 s"
        await check_until_up(store, 1000)
        assert store.why_unavailable() is None


async def test_on_exit_is_called_for_an_exit_and_not_for_a_stop(data: Path) -> None:
    async with a_store(data) as store:
        reasons: list[str | None] = []
        store.on_exit = lambda: reasons.append(store.why_unavailable())
        os.kill(server_pid(data), signal.SIGKILL)
        await wait_until(lambda: bool(reasons))
        now = await store.check(0)
        assert now is not None
        await check_until_up(store, now)
    assert len(reasons) == 1
    assert "exited (exit status -9)" in str(reasons[0])


async def test_stop_while_a_restart_is_scheduled_leaves_no_lock(data: Path) -> None:
    async with a_store(data) as store:
        await kill_server(store, data)
        assert await store.check(0) == 1000
        await store.stop()
        assert await store.check(1000) is None
        assert not (data / "store.sock").exists()
        async with a_store(data):
            assert send(data, "PING")
