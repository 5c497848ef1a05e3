"""Jobs of other task libraries: `peer_jobs PEER SOCKET COUNT` adds jobs, then runs all in one worker in this process.

It prints how long the worker took for them, from its start to the end of the last job, and its CPU time. Each job does
nothing but note its number: all must have run, and none twice. Each library is used as its documentation says for many
short jobs, with more of them at a time where it can. It runs with the packages of the peer and without later's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

AT_A_TIME = 500
THREADS = 8
TIMEOUT_S = 240
"""How long a worker may take."""


class Runs:
    """The jobs that have run, and the time that they took."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.numbers: list[int] = []
        self.all_done = threading.Event()
        self.on_done: Callable[[], object] = lambda: None
        self.seconds = self.cpu_s = 0.0
        self._started = self._cpu_before_s = 0.0

    def start(self) -> None:
        self._started, self._cpu_before_s = time.perf_counter(), time.process_time()

    def note(self, number: int) -> None:
        self.numbers.append(number)
        if len(self.numbers) == self.count:
            self.seconds = time.perf_counter() - self._started
            self.cpu_s = time.process_time() - self._cpu_before_s
            self.all_done.set()
            self.on_done()

    def result(self) -> dict[str, float]:
        if sorted(self.numbers) != list(range(self.count)):
            raise SystemExit(f"{len(self.numbers)} runs of {len(set(self.numbers))} of {self.count} jobs")
        return {"seconds": self.seconds, "cpu_s": self.cpu_s}


def run_arq(socket: str, runs: Runs) -> None:
    from arq.connections import RedisSettings, create_pool
    from arq.worker import Worker, func

    settings = RedisSettings(unix_socket_path=socket)

    async def note(context: dict[str, Any], number: int) -> None:
        runs.note(number)

    async def work() -> None:
        pool = await create_pool(settings)
        for start in range(0, runs.count, 50):
            some = range(start, min(start + 50, runs.count))
            await asyncio.gather(*(pool.enqueue_job("note", number) for number in some))
        await pool.aclose()
        worker = Worker(
            functions=[func(note, name="note", keep_result=0)],
            redis_settings=settings,
            burst=True,
            max_jobs=AT_A_TIME,
            poll_delay=0.01,
            handle_signals=False,
        )
        runs.start()
        await worker.main()
        await worker.close()

    run_in_uvloop(work())


def run_taskiq(socket: str, runs: Runs) -> None:
    from taskiq.api import run_receiver_task
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(f"unix://{socket}")

    async def run(number: int) -> None:
        runs.note(number)

    note = broker.task(task_name="note")(run)

    async def work() -> None:
        broker.is_worker_process = True
        await broker.startup()
        for start in range(0, runs.count, 50):
            await asyncio.gather(*(note.kiq(number) for number in range(start, min(start + 50, runs.count))))
        done = asyncio.Event()
        runs.on_done = done.set
        runs.start()
        receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=AT_A_TIME))
        async with asyncio.timeout(TIMEOUT_S):
            await done.wait()
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)

    run_in_uvloop(work())


def run_dramatiq(socket: str, runs: Runs) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=f"unix://{socket}")
    dramatiq.set_broker(broker)
    note = dramatiq.actor(runs.note, actor_name="note")
    for number in range(runs.count):
        note.send(number)
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    runs.start()
    worker.start()
    runs.all_done.wait(TIMEOUT_S)
    worker.stop()


def run_huey(socket: str, runs: Runs) -> None:
    from huey import RedisHuey

    huey = RedisHuey("bench", url=f"unix://{socket}", results=False)
    note = huey.task(name="note")(runs.note)
    for number in range(runs.count):
        note(number)
    consumer = huey.create_consumer(workers=THREADS, worker_type="thread", periodic=False)
    runs.start()
    consumer.start()
    runs.all_done.wait(TIMEOUT_S)
    consumer.stop(graceful=True)


def run_celery(socket: str, runs: Runs, pool: str) -> None:
    from celery import Celery
    from celery.worker import state

    app = Celery("bench", broker=f"redis+socket://{socket}")
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=AT_A_TIME, worker_redirect_stdouts=False)

    def run(number: int) -> None:  # not the method itself, whose first argument Celery would ask for
        runs.note(number)

    note = app.task(name="note")(run)
    for number in range(runs.count):
        note.delay(number)
    worker = app.Worker(
        pool=pool, concurrency=THREADS if pool == "threads" else 1,
        without_gossip=True, without_mingle=True, without_heartbeat=True, loglevel="ERROR",
    )  # fmt: skip
    runs.on_done = partial(setattr, state, "should_stop", 0)  # the exit status with which its loop ends
    runs.start()
    with suppress(SystemExit):
        worker.start()


def run_in_uvloop(coroutine: Any) -> None:
    """Run a coroutine on uvloop, whose event loop is the fastest one."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


PEERS: dict[str, Callable[[str, Runs], None]] = {
    "arq": run_arq,
    "taskiq": run_taskiq,
    "dramatiq": run_dramatiq,
    "huey": run_huey,
    "celery-solo": lambda socket, runs: run_celery(socket, runs, "solo"),
    "celery-threads": lambda socket, runs: run_celery(socket, runs, "threads"),
}


def main() -> None:
    peer, socket, count = sys.argv[1:]
    runs = Runs(int(count))
    PEERS[peer](socket, runs)
    print(json.dumps(runs.result()), flush=True)


if __name__ == "__main__":
    main()
