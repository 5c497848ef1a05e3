"""How late deliveries are: tasks spread evenly over some seconds, from a `later up` to a receiver, both of its own.

Lateness is measured where it matters: from a task's due time to the moment its callback arrives, both on this
machine's clock. Prints the percentiles and exits 1 if anything came early, or did not come at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import aiohttp
from aiohttp import web

LEAD_S = 2.0
"""Between the creating and the first due time."""
PATIENCE_S = 20.0
BATCH = 1000


def main() -> int:
    options = parsed_options()
    late_ms = sorted(asyncio.run(measure(options)))
    expected = int(options.rate * options.seconds)
    print(
        f"{len(late_ms)} of {expected} tasks, {options.rate:g}/s for {options.seconds:g} s, "
        f"later {' '.join(['up', *options.up])}\n"
        f"lateness in ms: p50 {percentile(late_ms, 50):.1f}, p90 {percentile(late_ms, 90):.1f}, "
        f"p99 {percentile(late_ms, 99):.1f}, max {late_ms[-1]:.1f}, earliest {late_ms[0]:.1f}"
    )
    return 0 if len(late_ms) == expected and late_ms[0] >= 0 else 1


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200, help="tasks a second (default: 200)")
    parser.add_argument("--seconds", type=float, default=30, help="for how long (default: 30)")
    parser.add_argument("up", nargs="*", help="options of `later up`, after --")
    return parser.parse_args()


def percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


async def measure(options: argparse.Namespace) -> list[float]:
    """Each task's lateness in ms."""
    late_ms: dict[str, float] = {}
    expected = int(options.rate * options.seconds)
    complete = asyncio.Event()

    async def receive(request: web.Request) -> web.Response:
        arrived = time.time()
        due = datetime.fromisoformat(request.headers["later-due"]).timestamp()
        late_ms.setdefault(request.headers["webhook-id"], (arrived - due) * 1000)
        if len(late_ms) == expected:
            complete.set()
        return web.Response()

    async with a_receiver(receive) as callback, a_later(options.up) as url:
        await create(url, callback, options.rate, expected)
        async with asyncio.timeout(LEAD_S + options.seconds + PATIENCE_S):
            await complete.wait()
    return list(late_ms.values())


async def create(url: str, callback: str, rate: float, count: int) -> None:
    first = time.time() + LEAD_S + count / 20_000
    tasks = [
        {"topic": "lateness", "callback": callback, "execute_time": first + i / rate, "id": str(uuid.uuid4())}
        for i in range(count)
    ]
    async with aiohttp.ClientSession() as session:
        for start in range(0, count, BATCH):
            async with session.post(f"{url}/create/batch", json=tasks[start : start + BATCH]) as answer:
                assert answer.status == 200, await answer.text()


@asynccontextmanager
async def a_receiver(receive: object) -> AsyncIterator[str]:
    """A receiver's URL."""
    app = web.Application()
    app.router.add_post("/", receive)  # type: ignore[arg-type]  # aiohttp's own handler type is not exported
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_later(options: list[str]) -> AsyncIterator[str]:
    """The URL of a daemon of our own, on an empty store."""
    with tempfile.TemporaryDirectory(prefix="later-") as folder:
        command = [sys.executable, "-m", "later", "up", "--listen", "127.0.0.1:0", "--log-format", "json"]
        daemon = await asyncio.create_subprocess_exec(
            *command, "--data", str(Path(folder) / "data"), *options, stderr=asyncio.subprocess.PIPE
        )
        assert daemon.stderr is not None
        try:
            yield await listening(daemon.stderr)
        finally:
            daemon.terminate()
            await daemon.communicate()


async def listening(log: asyncio.StreamReader) -> str:
    while line := await log.readline():
        event = json.loads(line)
        if event["event"] == "listening":
            return str(event["url"])
    raise SystemExit("later up did not start")


if __name__ == "__main__":
    sys.exit(main())
