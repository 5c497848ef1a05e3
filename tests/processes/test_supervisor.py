"""Handlers of a supervisor: what its processes report, and what it answers."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from typing import cast

import pytest
from structlog.testing import capture_logs

from later.config import load
from later.daemon.lifecycle import Lifecycle
from later.processes.child import MAX_START_CHECKS, Child
from later.processes.pool import ProcessPool
from later.processes.rpc import Channel, Handlers, RpcError, decode_startup
from later.processes.supervisor import Supervisor
from later.worker.ticker import Ticker

FAILURE = {"samples": [], "failure": "cannot listen"}


@pytest.fixture
def supervisor() -> Supervisor:
    flags = {"processes": "2", "redis": "redis://127.0.0.1:1", "health": "localhost:0"}
    return Supervisor(load("worker", flags, {}))


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Failures that stopped the whole daemon."""
    reasons: list[str] = []
    monkeypatch.setattr(Lifecycle, "fail", lambda lifecycle, error: reasons.append(str(error)))
    return reasons


class Process:
    """A process that was started, and never exits."""

    pid = 4711
    returncode: int | None = None

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


class SilentChannel:
    """A channel on which nothing has come from the process yet."""

    messages_read = 0


def a_child(number: int) -> Child:
    return Child(number, cast("asyncio.subprocess.Process", Process()), cast(Channel, SilentChannel()))


@pytest.fixture
async def children(supervisor: Supervisor) -> AsyncIterator[list[Child]]:
    """Two children that were just started, and a third that replaces the second."""
    children = [a_child(number) for number in (1, 2, 2)]
    yield children
    for child in children:
        child.exited.cancel()


@pytest.fixture
def handlers(supervisor: Supervisor, children: list[Child]) -> list[Handlers]:
    return [supervisor.handlers(child) for child in children]


@pytest.fixture
async def listening(supervisor: Supervisor) -> AsyncIterator[Supervisor]:
    await supervisor.reserve_port()
    yield supervisor
    assert supervisor._port is not None
    supervisor._port.close()


async def test_a_failure_at_the_first_start_stops_the_daemon(failures: list[str], handlers: list[Handlers]) -> None:
    await handlers[0]["up"](None)
    await handlers[1]["exit_report"](FAILURE)
    assert failures == ["cannot listen"]


async def test_each_process_reads_a_new_certificate_also_one_that_is_being_started_or_hangs(
    supervisor: Supervisor, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is being started may have read the old certificate already."""
    asked: list[int] = []

    async def call(child: Child, method: str, *, timeout_s: float) -> None:
        asked.append(child.number)
        raise RpcError(f"{method}: no answer")

    monkeypatch.setattr(Child, "call", call)
    monkeypatch.setattr(ProcessPool, "__iter__", lambda pool: iter(children[:2]))
    children[0].up = True
    woken: list[str] = []
    monkeypatch.setattr(ProcessPool, "end_delays", lambda pool: woken.append("those that wait"))
    monkeypatch.setattr(Ticker, "wake", lambda ticker: woken.append(ticker.name))
    with capture_logs() as logs:
        supervisor.reload_certificates()
        assert supervisor._reload is not None
        await supervisor._reload
    assert asked == [1, 2]
    assert woken == ["those that wait", "processes"]
    assert [(event["event"], event["process"]) for event in logs] == [("certificate not replaced", 1)]


async def test_a_failure_at_a_restart_is_logged(
    failures: list[str], children: list[Child], handlers: list[Handlers]
) -> None:
    await handlers[1]["up"](None)
    with capture_logs() as logs:
        await handlers[2]["exit_report"](FAILURE)
    assert failures == []
    assert children[2].failure_reported
    assert logs == [
        {"event": "process cannot be started", "log_level": "warning", "process": 2, "reason": "cannot listen"}
    ]


async def test_a_failure_that_is_fatal_for_all_stops_the_daemon_at_any_time(
    failures: list[str], handlers: list[Handlers]
) -> None:
    await handlers[1]["up"](None)
    await handlers[1]["exit_report"]({**FAILURE, "failure": "it has 64 shards", "fatal_for_all": True})
    assert failures == ["it has 64 shards"]


async def test_a_process_that_stops_in_order_stops_no_other(failures: list[str], handlers: list[Handlers]) -> None:
    await handlers[0]["exit_report"]({"samples": []})
    assert failures == []


async def test_a_process_gets_numeric_addresses_for_a_name(listening: Supervisor) -> None:
    _, addresses = decode_startup(await listening.on_startup_config(None))
    assert [address for address in addresses if not ipaddress.ip_address(address.host).is_loopback] == []
    assert addresses
    assert {address.port for address in addresses} != {0}


async def test_a_process_that_does_not_listen_gets_no_address(supervisor: Supervisor) -> None:
    _, addresses = decode_startup(await supervisor.on_startup_config(None))
    assert addresses == []


async def test_a_process_that_never_says_its_first_word_is_killed(
    supervisor: Supervisor, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a daemon would go on with one process too few, and would never be ready."""
    killed: list[Child] = []

    def record(child: Child) -> None:
        killed.append(child)

    monkeypatch.setattr(ProcessPool, "__iter__", lambda pool: iter(children[:1]))
    monkeypatch.setattr(Child, "kill", record)
    for _ in range(MAX_START_CHECKS - 1):
        await supervisor.update_process_metrics(0)
    assert killed == []
    await supervisor.update_process_metrics(0)
    assert killed == children[:1]
