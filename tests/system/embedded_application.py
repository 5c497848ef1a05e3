"""An application without a daemon, as a process: `embedded_application STORE RUNS`. It notes what runs in a file.

It prints a line when it works. SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from later import Later, StoreClaims, Task

STORE, RUNS = sys.argv[1:]
tasks = Later(StoreClaims(STORE, lease=3), patience=60)


@tasks.handler(concurrency=20)
async def note(name: str, task: Task[None]) -> None:
    """Note the beginning and the end of a run, which takes a moment."""
    write(f"begun {name} {task.attempt} {task.failures} {os.getpid()}")
    await asyncio.sleep(0.05)
    write(f"done {name} {task.attempt} {task.failures} {os.getpid()}")


def write(line: str) -> None:
    with open(RUNS, "a", encoding="ascii") as file:
        file.write(f"{line}\n")  # one write of a short line, which others cannot interleave


async def main() -> None:
    async with tasks:
        worker = asyncio.create_task(tasks.work())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.cancel)
        print("works", flush=True)
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
