"""Processes that cannot even be started."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from later.config import Config, load
from later.processes.child import Child
from later.processes.pool import ProcessPool
from later.processes.rpc import Handlers


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> ProcessPool:
    """Two, on a machine that has lost its Python."""
    monkeypatch.setattr("sys.executable", "/no/such/python")
    return ProcessPool("up", two(), handlers=lambda child: {}, on_unexpected_exit=_never)


def two() -> Config:
    return load("up", {"processes": "2"}, {})


def _never(child: Child) -> None:
    raise AssertionError("it has never lived")


async def test_each_is_tried_again_and_again_with_growing_pauses(children: ProcessPool) -> None:
    now, pauses = 0, []
    with capture_logs() as logs:
        for _ in range(5):
            due = await children.check(now)
            assert due is not None
            pauses.append(due - now)
            now = due
    assert pauses == [0, 1000, 2000, 4000, 8000]
    assert [(event["event"], event["process"]) for event in logs] == [
        ("process cannot be started", number) for _ in range(5) for number in (1, 2)
    ]


async def test_none_is_tried_before_its_pause_is_over(children: ProcessPool) -> None:
    await children.check(0)
    await children.check(0)
    with capture_logs() as logs:
        assert await children.check(999) == 1000
    assert logs == []


async def test_they_are_not_ready_and_nothing_of_them_is_to_be_stopped(children: ProcessPool) -> None:
    await children.check(0)
    assert children.why_not_ready() == "2 of 2 processes are being started"
    assert children.up == []
    children.kill()
    await children.stop(0)


async def test_a_fault_at_one_start_is_a_death_too_and_the_others_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")

    def answers(child: Child) -> Handlers:
        if child.number == 1:
            raise ZeroDivisionError
        return {}

    children = ProcessPool("up", two(), handlers=answers, on_unexpected_exit=_never)
    with capture_logs() as logs:
        assert [await children.check(0), await children.check(0)] == [0, 1000]
    assert [(event["event"], event["process"]) for event in logs] == [
        ("process cannot be started", number) for number in (1, 2, 1, 2)
    ]
    assert logs[0]["reason"] == "ZeroDivisionError()"
