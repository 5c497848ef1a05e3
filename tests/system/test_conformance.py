"""A daemon answers and does what the virtual clock of tests does: its clock is moved, so that no case waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from later import Later
from tests.cases import each_case
from tests.conformance.cases import CASES
from tests.conformance.world import Case, World
from tests.system.daemons import Daemon, run_daemon

SETTLE_S = 60


@pytest.fixture(scope="module")
def processes() -> int:
    """One: a daemon whose clock is moved has no option for more."""
    return 1


@pytest.fixture
def dev(folder: Path) -> Iterator[Daemon]:
    with run_daemon("dev", folder) as daemon:
        yield daemon


class DaemonWorld(World):
    """A daemon whose clock is moved."""

    def __init__(self, tasks: Later, case: str, http: aiohttp.ClientSession) -> None:
        super().__init__(tasks, case)
        self._http = http

    async def now(self) -> datetime:
        async with self._http.get(f"{self.tasks.url}/dev/clock") as response:
            return datetime.fromisoformat((await self._read(response))["now"])

    async def move(self, by_s: float) -> None:
        move = {"advance": by_s, "step": True, "settle": SETTLE_S}
        async with self._http.post(f"{self.tasks.url}/dev/clock", json=move) as response:
            assert (await self._read(response))["settled"]

    async def _read(self, response: aiohttp.ClientResponse) -> Any:
        assert response.status == 200, await response.text()
        return await response.json()


@asynccontextmanager
async def open_world(url: str, case: str) -> AsyncIterator[World]:
    """Serve an application to which the daemon sends its calls."""
    port = unused_port()
    tasks = Later(url, callback=f"http://127.0.0.1:{port}/later")
    app = web.Application()
    app.cleanup_ctx.append(tasks.aiohttp_ctx)
    tasks.receive(app, "/later")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with aiohttp.ClientSession() as http:
            yield DaemonWorld(tasks, case, http)
    finally:
        await runner.cleanup()


@pytest.mark.timeout(400)
@each_case("case", CASES, ids=[case.__name__ for case in CASES])
async def test_on_a_daemon(case: Case, dev: Daemon) -> None:
    async with open_world(dev.url, case.__name__) as world:
        await case(world)
