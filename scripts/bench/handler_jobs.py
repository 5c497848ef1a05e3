"""Empty handlers of a Python application: `handler_jobs URL COUNT` creates tasks, then lets one worker run all.

For the URL of a store, the application is one without a daemon; for that of an API, its worker is that of `later run`.
It prints how long the worker took, from its start to the end of the last handler, and its CPU time. Each handler notes
its number: all must have run, and none twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from later import Later, StoreClaims

AT_A_TIME = 500
"""As many as the asynchronous peers run at a time."""


async def run(where: str, count: int) -> dict[str, float]:
    tasks = Later(where) if where.startswith("http:") else Later(StoreClaims(where))
    numbers: list[int] = []
    done = asyncio.Event()

    @tasks.handler(concurrency=AT_A_TIME)
    async def note(number: int) -> None:
        numbers.append(number)
        if len(numbers) == count:
            done.set()

    async with tasks:
        if where.startswith("http:"):
            await tasks.client.set_policy(note.topic, {"deliver": "pull"})
        results = await tasks.enqueue_many([note.item(number) for number in range(count)])
        if refused := [result for result in results if isinstance(result, Exception)]:
            raise refused[0]
        started, cpu_before_s = time.perf_counter(), time.process_time()
        worker = asyncio.create_task(tasks.work())
        await done.wait()
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before_s
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    if sorted(numbers) != list(range(count)):
        raise SystemExit(f"{len(numbers)} runs of {len(set(numbers))} of {count} tasks")
    return {"seconds": seconds, "cpu_s": cpu_s}


def main() -> None:
    where, count = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run(where, int(count)))), flush=True)


if __name__ == "__main__":
    main()
