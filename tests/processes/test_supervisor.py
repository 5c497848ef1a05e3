"""What a supervisor makes of what its processes say, and what it tells them."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from later.config import load
from later.daemon.lifecycle import Lifecycle
from later.processes.child import Child
from later.processes.messages import decode_startup
from later.processes.rpc import Handlers
from later.processes.supervisor import _Supervisor

FAILURE = {"samples": [], "failure": "cannot listen"}


@pytest.fixture
def supervisor() -> _Supervisor:
    flags = {"processes": "2", "redis": "redis://127.0.0.1:1", "health": "localhost:0"}
    return _Supervisor("worker", load("worker", flags, {}))


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why all of them are to end."""
    said: list[str] = []
    monkeypatch.setattr(Lifecycle, "fail", lambda life, error: said.append(str(error)))
    return said


@pytest.fixture
def children(supervisor: _Supervisor) -> list[Handlers]:
    """What two may ask that have just been started, by number less one."""
    return [supervisor._answers(Child(number)) for number in (1, 2)]


@pytest.fixture
async def reserved(supervisor: _Supervisor) -> AsyncIterator[_Supervisor]:
    await supervisor._reserve()
    yield supervisor
    assert supervisor._reserved is not None
    supervisor._reserved.close()


async def test_what_fails_at_a_first_start_ends_all_of_them(failures: list[str], children: list[Handlers]) -> None:
    await children[0]["up"](None)
    await children[1]["exit_report"](FAILURE)
    assert failures == ["cannot listen"]


async def test_one_that_was_up_once_and_fails_at_another_start_is_a_death(
    supervisor: _Supervisor, failures: list[str], children: list[Handlers]
) -> None:
    await children[1]["up"](None)
    again = Child(2)
    with capture_logs() as logs:
        await supervisor._answers(again)["exit_report"](FAILURE)
    assert failures == []
    assert again.failure_reported
    assert logs == [
        {"event": "process cannot be started", "log_level": "warning", "process": 2, "reason": "cannot listen"}
    ]


async def test_a_store_that_can_serve_none_of_them_ends_all_at_any_time(
    failures: list[str], children: list[Handlers]
) -> None:
    await children[1]["up"](None)
    await children[1]["exit_report"]({**FAILURE, "failure": "it has 64 shards", "fatal_for_all": True})
    assert failures == ["it has 64 shards"]


async def test_one_that_leaves_in_order_ends_nobody_else(failures: list[str], children: list[Handlers]) -> None:
    await children[0]["exit_report"]({"samples": []})
    assert failures == []


async def test_a_process_is_told_numbers_where_a_name_was_given(reserved: _Supervisor) -> None:
    _, places = decode_startup(await reserved._answers(Child(1))["startup_config"](None))
    assert [place for place in places if not ipaddress.ip_address(place.host).is_loopback] == []
    assert places
    assert {place.port for place in places} != {0}


async def test_a_process_without_a_door_is_told_no_place(supervisor: _Supervisor) -> None:
    _, places = decode_startup(await supervisor._orders(None))
    assert places == []
