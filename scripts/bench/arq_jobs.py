"""Jobs of arq: `seed` adds them, `finish` claims and finishes all, doing nothing for each, and prints how long it took.

It runs with the packages of arq, so it imports nothing of later.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop
from arq.connections import RedisSettings, create_pool
from arq.worker import Worker

CONSUMERS = 64
ADDED_AT_ONCE = 50
POLL_DELAY_S = 0.01
"""Its default of half a second would limit it to 640 jobs a second."""


async def order(context: dict[str, Any], topic: str, content: str) -> None:
    """Do nothing."""


async def seed(socket: str, count: int) -> dict[str, Any]:
    pool = await create_pool(RedisSettings(unix_socket_path=socket))
    for start in range(0, count, ADDED_AT_ONCE):
        some = range(start, min(start + ADDED_AT_ONCE, count))
        await asyncio.gather(*(pool.enqueue_job(order.__name__, "jobs", "hello") for _ in some))
    await pool.aclose()
    return {}


async def finish(socket: str, count: int) -> dict[str, Any]:
    worker = Worker(
        functions=[order],
        redis_settings=RedisSettings(unix_socket_path=socket),
        burst=True,
        max_jobs=CONSUMERS,
        poll_delay=POLL_DELAY_S,
        keep_result=0,
        handle_signals=False,
    )
    started, cpu_before_s = time.perf_counter(), time.process_time()
    await worker.main()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before_s
    await worker.close()
    if worker.jobs_complete != count:
        raise SystemExit(f"{worker.jobs_complete} of {count} jobs were finished")
    return {"seconds": seconds, "cpu_s": cpu_s}


COMMANDS = {"seed": seed, "finish": finish}


def main() -> None:
    command, socket, count = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(COMMANDS[command](socket, int(count)))))


if __name__ == "__main__":
    main()
