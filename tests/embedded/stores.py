"""Running embedded stores, and other processes that use their directories."""

# ruff: noqa: ASYNC110 - other processes raise no events

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from later.embedded import EmbeddedStore, socket_url

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@asynccontextmanager
async def a_store(data: Path, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(data, monotonic=clock)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


@contextmanager
def a_process(script: str, data: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script of this folder; wait until it prints "up"."""
    command = [sys.executable, str(HERE / script), str(data), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            assert any(line == "up\n" for line in process.stdout)
            yield process
        finally:
            process.kill()


def send(data: Path, *command: str) -> Any:
    """Return the server's answer to a command."""
    with redis.Redis.from_url(socket_url(data), decode_responses=True, retry=None, socket_timeout=2) as client:
        return client.execute_command(*command)


def server_pid(data: Path) -> int:
    return int((data / "store.pid").read_text())


def is_running(pid: int) -> bool:
    """Return True if the process exists and is more than a zombie (an orphan's may wait for init)."""
    status = Path(f"/proc/{pid}/status")
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return not status.exists() or "State:\tZ" not in status.read_text()
    return False


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def kill_server(store: EmbeddedStore, data: Path) -> None:
    os.kill(server_pid(data), signal.SIGKILL)
    await wait_until(lambda: store.why_unavailable() is not None)


async def check_until_up(store: EmbeddedStore, now: int) -> None:
    async with asyncio.timeout(5):
        while await store.check(now) is not None:
            await asyncio.sleep(0.005)
