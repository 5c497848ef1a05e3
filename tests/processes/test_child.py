"""A child process as its supervisor sees it: it answers, hangs, exits."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from later.config import load
from later.processes.child import _PROGRAM, MAX_MISSED_CALLS, Child, start_child
from later.processes.rpc import Channel, Handlers, RpcError, open_channel

PATHS = ["/a:b", "/ä b", "/\udcff", "/usr/lib"]


class FakeProcess:
    """A process as asyncio shows it: it runs until it exits or is killed."""

    pid = 4711

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._exited = asyncio.Event()

    async def wait(self) -> int:
        await self._exited.wait()
        return self.returncode or 0

    def exit(self, status: int) -> None:
        if self.returncode is None:
            self.returncode = status
            self._exited.set()

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)


class Peer:
    """The child's end of the channel: it records its calls, and answers while `may_answer` is set."""

    def __init__(self, process: FakeProcess) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.calls: list[str] = []
        self._process = process

    def handlers(self) -> Handlers:
        return {"samples": self.on_samples, "store_samples": self.on_store_samples, "stop": self.on_stop}

    async def on_samples(self, _: None) -> list[Any]:
        self.calls.append("samples")
        await self.may_answer.wait()
        return []

    async def on_store_samples(self, _: None) -> str:
        self.calls.append("store_samples")
        await self.may_answer.wait()
        return "its samples"

    async def on_stop(self, _: None) -> None:
        self._process.exit(3)


@pytest.fixture
def process() -> FakeProcess:
    return FakeProcess()


@pytest.fixture
async def peer(process: FakeProcess) -> Peer:
    return Peer(process)


@pytest.fixture
async def child(process: FakeProcess, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Child]:
    """A child whose calls time out after 10 ms, not a second."""
    call = Channel.call
    monkeypatch.setattr(Channel, "call", lambda *args, timeout_s=0.01: call(*args, timeout_s=timeout_s))
    ours, theirs = socket.socketpair()
    other = await open_channel(theirs)
    other.serve(peer.handlers())
    channel = await open_channel(ours)
    channel.serve({})
    child = Child(2, cast(Process, process), channel)
    yield child
    process.kill()
    child.close()
    other.close()
    await child.exited


async def test_a_child_that_leaves_calls_unanswered_is_hung_until_it_answers(child: Child, peer: Peer) -> None:
    await child.channel.call("samples")
    peer.may_answer.clear()
    with capture_logs() as logs:
        for missed in range(MAX_MISSED_CALLS + 2):
            assert child.is_hung == (missed >= MAX_MISSED_CALLS)
            await child.check()
    assert logs == [{"event": "process hangs", "log_level": "warning", "process": 2, "pid": 4711}]
    peer.may_answer.set()
    await child.check()
    assert not child.is_hung


async def test_checks_without_a_word_from_the_child_are_counted(child: Child, peer: Peer) -> None:
    await child.channel.call("samples")
    peer.may_answer.clear()
    counts = []
    for _ in range(4):
        await child.check()
        counts.append(child.silent_checks)
    assert counts == [0, 1, 2, 3]


async def test_a_child_whose_answers_come_too_late_is_not_silent(child: Child, peer: Peer) -> None:
    await child.channel.call("samples")
    peer.may_answer.clear()
    for _ in range(3):
        await child.check()
    before = child.channel.messages_read
    peer.may_answer.set()
    while child.channel.messages_read < before + 3:  # noqa: ASYNC110 - a message raises no event
        await asyncio.sleep(0)
    peer.may_answer.clear()
    await child.check()
    assert child.silent_checks == 0
    assert child.is_hung, "no call was answered in time"


async def test_a_child_is_not_checked_before_its_first_word(child: Child, peer: Peer) -> None:
    peer.may_answer.clear()
    for _ in range(MAX_MISSED_CALLS + 1):
        await child.check()
    assert (peer.calls, child.silent_checks, child.is_hung) == ([], 0, False)


async def test_frequent_scrapes_do_not_make_a_child_count_as_hung(child: Child, peer: Peer) -> None:
    peer.may_answer.clear()
    with capture_logs() as logs:
        assert [await child.update_samples() for _ in range(MAX_MISSED_CALLS + 2)] == [False] * (MAX_MISSED_CALLS + 2)
    assert not child.is_hung
    assert logs == []


async def test_concurrent_updates_are_one_call(child: Child, peer: Peer) -> None:
    assert await asyncio.gather(*(child.update_samples() for _ in range(10))) == [True] * 10
    assert peer.calls == ["samples"]
    assert await child.update_samples()
    assert peer.calls == ["samples"] * 2


async def test_a_cancelled_update_does_not_cancel_the_others(child: Child, peer: Peer) -> None:
    first = asyncio.create_task(child.update_samples())
    second = asyncio.create_task(child.update_samples())
    await asyncio.sleep(0)
    first.cancel()
    assert await second


async def test_a_pending_call_fails_as_soon_as_the_child_hangs(child: Child, peer: Peer) -> None:
    await child.channel.call("samples")
    peer.may_answer.clear()
    pending = asyncio.create_task(child.call("store_samples", timeout_s=60))
    for _ in range(MAX_MISSED_CALLS):
        await child.check()
    with pytest.raises(RpcError, match="process 2 hangs: store_samples"):
        await pending
    peer.may_answer.set()
    await child.check()
    assert await child.call("store_samples", timeout_s=60) == "its samples"


async def test_a_failure_while_stopping_is_logged(child: Child) -> None:
    with capture_logs() as logs:
        await child.stop(5)
    assert logs == [{"event": "process exited", "log_level": "warning", "process": 2, "pid": 4711, "status": 3}]


@pytest.mark.parametrize(("status", "reported"), [(0, False), (1, True)])
async def test_a_clean_exit_and_a_reported_failure_are_not_logged(
    child: Child, process: FakeProcess, status: int, reported: bool
) -> None:
    child.failure_reported = reported
    process.exit(status)
    with capture_logs() as logs:
        await child.stop(5)
    assert logs == []


async def test_a_child_that_is_killed_at_a_stop_is_logged_as_killed(child: Child) -> None:
    with capture_logs() as logs:
        await child.stop(0)
    assert [event["event"] for event in logs] == ["process killed: it did not stop in time"]


async def test_a_child_gets_our_paths_and_the_log_options_and_no_other_option(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    async def start(*line: str, env: dict[str, str], **_: object) -> Process:
        started.append((list(line), env))
        process = FakeProcess()
        process.exit(0)
        return cast(Process, process)

    monkeypatch.setattr("asyncio.create_subprocess_exec", start)
    monkeypatch.setattr(sys, "path", PATHS)
    monkeypatch.setenv("LATER_REDIS", "redis://me:secret@a")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    config = load("worker", {"processes": "4", "log_format": "json", "log_level": "warning", "redis": "redis://a"}, {})
    child = await start_child(2, config)
    child.channel.serve({})
    await child.stop(5)
    ((line, env),) = started
    assert line[4:6] == ["worker", "2/4"]
    assert line[-4:-1] == ["--log", "json", "warning"]
    assert json.loads(line[-1]) == PATHS
    assert env["PYTHONPATH"] == "/theirs"
    assert [name for name in env if name.startswith("LATER_")] == []
    assert "redis://a" not in line


SIGNAL_AT_IMPORT = """
import importlib.abc, os, sys

class Sender(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Sender())
"""
"""Code that makes a program get a signal when it imports a module."""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["later.processes.child_main", "aiohttp"])
def test_a_child_that_is_stopped_while_it_imports_exits_with_0_and_says_nothing(
    module: str, number: signal.Signals
) -> None:
    """As when systemd signals a whole control group: the supervisor is told of no failure."""
    command = [sys.executable, "-P", "-c", SIGNAL_AT_IMPORT + _PROGRAM, module, str(int(number)), json.dumps(sys.path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
