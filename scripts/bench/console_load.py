"""Open consoles, without browsers: each asks what its page asks, as often. Arguments: their settings as JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from itertools import cycle, islice
from typing import Any
from urllib.parse import quote

import aiohttp
import uvloop

OVERVIEW = (
    ("/overview?topics=20", 2),
    ("/history?series=done,failed,busy,gone,lateness_p50,lateness_p99,held_lateness_p50,held_lateness_p99&step=10", 10),
    ("/forecast?hours=6&step=300", 30),
)
TOPICS = (("/topics?sort=lateness", 2),)
TOPIC = (
    ("/topics/{topic}", 2),
    ("/history?series=done,failed,busy,dead,due&step=300&topic={topic}", 10),
    ("/topics/{topic}/forecast?hours=6&step=300", 30),
)
WORKERS = (("/workers", 2),)
PAGES = (OVERVIEW, TOPICS, OVERVIEW, TOPIC, OVERVIEW, WORKERS, OVERVIEW, TOPIC, OVERVIEW, TOPICS)
"""The pages of ten consoles: the calls of each, and how often it makes them (s)."""


async def open_consoles(url: str, consoles: int, topics: list[str], seconds: float) -> dict[str, Any]:
    """Keep so many consoles open for some seconds; return how many calls they made and how long these took (ms)."""
    times: list[float] = []
    ends_at = time.monotonic() + seconds
    draw = random.Random(0)

    async def repeat(session: aiohttp.ClientSession, path: str, every_s: float) -> None:
        await asyncio.sleep(draw.random() * min(every_s, seconds))
        while (started := time.monotonic()) < ends_at:
            async with session.get(f"{url}{path}") as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{path}: {body.decode()}")
            times.append((time.monotonic() - started) * 1000)
            await asyncio.sleep(min(every_s, max(ends_at - time.monotonic(), 0)))

    async def open_console(calls: tuple[tuple[str, int], ...], topic: str) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for path, every_s in calls:
                group.create_task(repeat(session, path.format(topic=quote(topic, safe="")), every_s))

    async with asyncio.TaskGroup() as group:
        for calls, topic in zip(islice(cycle(PAGES), consoles), cycle(topics), strict=False):
            group.create_task(open_console(calls, topic))
    return {"times": times}


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(open_consoles(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
