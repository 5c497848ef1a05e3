"""Deliveries of a real daemon with each HTTP client, directly and through a forward proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.forward_proxy import ForwardProxy
from tests.system.api_client import create, query, read_metric
from tests.system.daemons import run_up, simulated_fault
from tests.system.receivers import Receiver, done, in_sequence, status
from tests.system.waiting import wait_until

SECRET = "hunter2"


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    """A proxy in a thread of its own."""
    proxy, listens, stop = ForwardProxy(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with proxy.listen():
            listens.set()
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert listens.wait(10)
    yield proxy
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    ("client", "env"),
    [("own", {}), ("own", simulated_fault("no-uvloop")), ("aiohttp", {})],
    ids=["own", "own on asyncio's loop", "aiohttp"],
)
def test_a_failed_delivery_is_repeated_and_done(
    folder: Path, data: Path, receiver: Receiver, client: str, env: dict[str, str]
) -> None:
    receiver.rules[f"/{client}"] = in_sequence(status(500), done)
    with run_up(folder, data, "--http-client", client, "--retry-base", "0.1", env=env) as up:
        id = create(up.url, callback=receiver.url(f"/{client}"))
        wait_until(lambda: receiver.attempts(id) == [1, 2], "it was called twice")
        assert up.stop() == 0


@pytest.mark.parametrize("client", ["own", "aiohttp"])
def test_calls_go_through_a_proxy_whose_faults_have_their_own_reason(
    folder: Path, data: Path, receiver: Receiver, proxy: ForwardProxy, client: str
) -> None:
    env = {"LATER_PROXY": proxy.url.replace("//", f"//me:{SECRET}@"), "LATER_HTTP_CLIENT": client}
    with run_up(folder, data, "--log-level", "debug", env=env) as up:
        id = create(up.url, callback=receiver.url("/through"))
        failing = create(up.url, callback="https://127.0.0.1:1/", retry=0)
        wait_until(lambda: receiver.attempts(id) == [1], "it was called")
        wait_until(lambda: query(up.url, failing)["state"] == "dead", "the other is dead")
        error = query(up.url, failing)["last_error"]
        assert error["message"] == "1 failure: the proxy failed: it answered 502 to CONNECT"
        assert read_metric(up.url, 'later_delivery_failures_total{code="proxy",topic="order"}') == 1
    assert len(proxy.heads) == 2
    assert SECRET not in up.log.read_text()
