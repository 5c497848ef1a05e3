"""A pool whose processes cannot be started."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from later.config import Config, load
from later.processes.child import Child
from later.processes.pool import ProcessPool


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ProcessPool:
    """A pool of two processes, on a machine without its Python."""
    monkeypatch.setattr("sys.executable", "/no/such/python")
    return a_pool()


def a_pool() -> ProcessPool:
    def fail(child: Child) -> None:
        raise AssertionError("it never ran")

    return ProcessPool(load("up", {"processes": "2"}, {}), handlers=lambda child: {}, on_unexpected_exit=fail)


async def test_each_start_is_retried_with_growing_delays(pool: ProcessPool) -> None:
    now, delays = 0, []
    with capture_logs() as logs:
        for _ in range(5):
            due = await pool.check(now)
            assert due is not None
            delays.append(due - now)
            now = due
    assert delays == [0, 1000, 2000, 4000, 8000]
    assert [(event["event"], event["process"]) for event in logs] == [
        ("process cannot be started", number) for _ in range(5) for number in (1, 2)
    ]


async def test_no_start_is_retried_before_its_delay_is_over(pool: ProcessPool) -> None:
    await pool.check(0)
    await pool.check(0)
    with capture_logs() as logs:
        assert await pool.check(999) == 1000
    assert logs == []


async def test_after_a_reload_the_next_check_starts_the_missing_processes(pool: ProcessPool) -> None:
    now = 0
    for _ in range(6):
        now = await pool.check(now) or 0
    pool.end_delays()
    with capture_logs() as logs:
        assert await pool.check(now - 9000) == now - 9000 + 32_000
    assert [event["process"] for event in logs] == [1, 2]


async def test_missing_processes_are_not_ready_and_need_no_stop(pool: ProcessPool) -> None:
    await pool.check(0)
    assert pool.why_not_ready() == "2 of 2 processes are being started"
    assert pool.up == []
    pool.kill()
    await pool.stop(0)


async def test_a_bug_in_one_start_counts_as_an_exit_and_the_others_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    async def fail(number: int, config: Config) -> Child:
        started.append(number)
        raise ZeroDivisionError

    monkeypatch.setattr("later.processes.pool.start_child", fail)
    pool = a_pool()
    with capture_logs() as logs:
        assert [await pool.check(0), await pool.check(0)] == [0, 1000]
    assert started == [1, 2, 1, 2]
    assert [(event["event"], event["process"]) for event in logs] == [
        ("process cannot be started", number) for number in (1, 2, 1, 2)
    ]
    assert logs[0]["reason"] == "ZeroDivisionError()"
