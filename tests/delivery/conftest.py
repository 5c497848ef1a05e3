"""Clients: a test runs with each of them (`client`) or later's own (`own_client`), and with each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests import receivers
from tests.receivers import CLIENTS


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the HTTP client with which `a_sender` sends."""
    monkeypatch.setattr(receivers, "client_name", request.param)
    return str(request.param)


@pytest.fixture
def own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later's own client is that with which `a_sender` sends."""
    monkeypatch.setattr(receivers, "client_name", "own")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops of a test: both, if it is about a client."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if any({"client", "own_client"} & set(mark.args) for mark in item.iter_markers("usefixtures")):
        loops["uvloop"] = uvloop.new_event_loop
    return loops
