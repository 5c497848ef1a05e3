"""One process, as its supervisor sees it: it answers, hangs, dies."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from later.config import load
from later.processes.child import MAX_MISSED_CALLS, Child, spawn
from later.processes.rpc import Channel, Handlers, RpcError, open_channel

PATHS = ["/a:b", "/ä b", "/\udcff", "/usr/lib"]


class Program:
    """What asyncio knows of a process: it lives until it is to end, or is killed."""

    pid = 4711

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        return self.returncode or 0

    def end(self, status: int) -> None:
        if self.returncode is None:
            self.returncode = status
            self._ended.set()

    def kill(self) -> None:
        self.end(-signal.SIGKILL)


class Inside:
    """The other end: what it was asked, and what it answers as long as it is `awake`."""

    def __init__(self, program: Program) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.asked: list[str] = []
        self._program = program

    def answers(self) -> Handlers:
        return {"samples": self._figures, "collect": self._gather, "stop": self._stop}

    async def _figures(self, _: None) -> list[Any]:
        self.asked.append("samples")
        await self.awake.wait()
        return []

    async def _gather(self, _: None) -> str:
        self.asked.append("collect")
        await self.awake.wait()
        return "seen"

    async def _stop(self, _: None) -> None:
        self._program.end(3)


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
async def inside(program: Program) -> Inside:
    return Inside(program)


@pytest.fixture
async def child(program: Program, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Child]:
    """It is given up after 10 ms, not a second."""
    call = Channel.call
    monkeypatch.setattr(Channel, "call", lambda *args, timeout_s=0.01: call(*args, timeout_s=timeout_s))
    ours, theirs = socket.socketpair()
    other = await open_channel(theirs, inside.answers())
    child = Child(2)
    child.begin(cast(Process, program), await open_channel(ours, {}))
    yield child
    program.kill()
    child.close()
    other.close()
    await child.exited


async def test_one_that_misses_question_after_question_hangs_until_it_answers(child: Child, inside: Inside) -> None:
    inside.awake.clear()
    with capture_logs() as logs:
        for missed in range(MAX_MISSED_CALLS + 2):
            assert child.is_hung == (missed >= MAX_MISSED_CALLS)
            await child.check()
    assert logs == [{"event": "process hangs", "log_level": "warning", "process": 2, "pid": 4711}]
    inside.awake.set()
    await child.check()
    assert not child.is_hung


async def test_who_scrapes_again_and_again_makes_nobody_hang(child: Child, inside: Inside) -> None:
    inside.awake.clear()
    with capture_logs() as logs:
        assert [await child.update_samples() for _ in range(MAX_MISSED_CALLS + 2)] == [False] * (MAX_MISSED_CALLS + 2)
    assert not child.is_hung
    assert logs == []


async def test_all_that_want_its_figures_at_once_ask_it_once(child: Child, inside: Inside) -> None:
    assert await asyncio.gather(*(child.update_samples() for _ in range(10))) == [True] * 10
    assert inside.asked == ["samples"]
    assert await child.update_samples()
    assert inside.asked == ["samples"] * 2


async def test_one_that_gives_up_waiting_takes_the_answer_from_nobody_else(child: Child, inside: Inside) -> None:
    first = asyncio.create_task(child.update_samples())
    second = asyncio.create_task(child.update_samples())
    await asyncio.sleep(0)
    first.cancel()
    assert await second


async def test_whoever_waits_for_one_that_comes_to_hang_is_told_at_once(child: Child, inside: Inside) -> None:
    inside.awake.clear()
    waiting = asyncio.create_task(child.call("collect", timeout_s=60))
    for _ in range(MAX_MISSED_CALLS):
        await child.check()
    with pytest.raises(RpcError, match="process 2 hangs: collect"):
        await waiting
    inside.awake.set()
    await child.check()
    assert await child.call("collect", timeout_s=60) == "seen"


async def test_one_that_dies_while_it_is_to_stop_is_told_of(child: Child) -> None:
    with capture_logs() as logs:
        await child.stop(5)
    assert logs == [{"event": "process exited", "log_level": "warning", "process": 2, "pid": 4711, "status": 3}]


@pytest.mark.parametrize(("status", "said_why"), [(0, False), (1, True)])
async def test_one_that_ends_as_it_should_or_has_said_why_is_not(
    child: Child, program: Program, status: int, said_why: bool
) -> None:
    child.failure_reported = said_why
    program.end(status)
    with capture_logs() as logs:
        await child.stop(5)
    assert logs == []


async def test_one_that_is_killed_at_a_stop_is_told_of_as_that(child: Child) -> None:
    with capture_logs() as logs:
        await child.stop(0)
    assert [event["event"] for event in logs] == ["process killed: it did not stop in time"]


async def test_it_gets_our_paths_and_the_log_as_it_is_to_be_and_no_other_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    known: list[Child] = []

    async def start(*line: str, env: dict[str, str], **_: object) -> Process:
        assert known, "it may ask as soon as it lives"
        started.append((list(line), env))
        program = Program()
        program.end(0)
        return cast(Process, program)

    def answers(child: Child) -> Handlers:
        known.append(child)
        return {}

    monkeypatch.setattr("asyncio.create_subprocess_exec", start)
    monkeypatch.setattr(sys, "path", PATHS)
    monkeypatch.setenv("LATER_REDIS", "redis://me:secret@a")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    config = load("worker", {"processes": "4", "log_format": "json", "log_level": "warning", "redis": "redis://a"}, {})
    child = await spawn(2, "worker", config, answers)
    assert known == [child]
    await child.stop(5)
    ((line, env),) = started
    assert line[4:6] == ["worker", "2/4"]
    assert line[-4:-1] == ["--log", "json", "warning"]
    assert json.loads(line[-1]) == PATHS
    assert env["PYTHONPATH"] == "/theirs"
    assert [name for name in env if name.startswith("LATER_")] == []
    assert "redis://a" not in line
