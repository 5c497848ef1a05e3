"""One process of `later run`: it waits for later, works until it is to stop, and lets what runs end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from later.application import Later
from later.client.backend import NETWORK
from later.client.call import read
from later.client.connection_settings import ConnectionSettings
from later.client.consumer_calls import extend
from later.core.errors import Unavailable
from later.daemon.lifecycle import Lifecycle
from later.handlers.handler import Handler
from later.run.supervisor_link import SupervisorLink

log = logging.getLogger("later.worker")

ANSWER_S = 10.0
"""How long an answer of later may take."""
RETRY_S = 1.0
"""The pause before later is asked again."""
THREADS_NAME = "later-to-thread"
"""The begin of the names of the threads that the application's own calls of `asyncio.to_thread` take."""
IDLE_THREADS_S = 0.2
"""How long threads that do nothing may take to end."""


class RunOptions(NamedTuple):
    """The options of a worker: its handlers, and how long it waits for later at the start, None for any time."""

    only: Sequence[Handler[Any]]
    drain_s: float
    lease_s: float
    wait_s: float | None


class ApplicationWorker:
    """The pull worker of an application, and its lifecycle. `channel` is the descriptor of the supervisor's link."""

    def __init__(self, application: Later, options: RunOptions, channel: int | None = None) -> None:
        self._application = application
        self._options = options
        self._channel = channel
        self._lifecycle = Lifecycle(force_exit=lambda: None)

    async def run(self) -> int:
        """Work until a signal, or the supervisor, stops this process; return the exit status.

        Raises:
            LaterError: later refuses the key; or it does not answer within the time that was given.
            Exception: the application's lifespan failed.
        """
        loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix=THREADS_NAME)
        loop.set_default_executor(executor)
        try:
            return await self._run()
        finally:  # the loop would wait for its threads when it closes
            executor.shutdown(wait=False, cancel_futures=True)
            loop.set_default_executor(ThreadPoolExecutor())

    async def _run(self) -> int:
        if self._channel is None:
            return await self._lifecycle.run(self._work, self._stop_nothing)
        link = await SupervisorLink.open(self._channel)
        closed = asyncio.create_task(link.wait_closed())
        closed.add_done_callback(lambda _: self._lifecycle.request_stop())

        async def work() -> None:
            await self._work(link)

        try:
            return await self._lifecycle.run(work, self._stop_nothing)
        finally:
            closed.cancel()
            link.close()

    async def _work(self, link: SupervisorLink | None = None) -> None:
        connection, options = self._application.connection, self._options
        await wait_for_later(connection, options.wait_s)
        handlers = ", ".join(f"{handler.topic} ({handler.concurrency} at a time)" for handler in options.only)
        log.info("working on tasks of %s: %s", connection.url, handlers)
        if link is not None:
            link.report_working()
        try:
            await self._application.work(only=options.only, drain=options.drain_s, lease=options.lease_s)
        finally:
            log.info("stopped")

    async def _stop_nothing(self) -> None:
        """The work itself lets what runs end, when it is cancelled."""


def count_busy_threads() -> int:
    """Return how many calls of `asyncio.to_thread` a worker has left behind, which has ended."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS_NAME)]
    give_up_at = time.monotonic() + IDLE_THREADS_S
    for thread in threads:
        thread.join(max(give_up_at - time.monotonic(), 0))
    return sum(thread.is_alive() for thread in threads)


async def wait_for_later(connection: ConnectionSettings, wait_s: float | None) -> None:
    """Wait until later answers, and takes the key for that of a consumer.

    Raises:
        Unavailable: it does not answer within `wait_s`.
        LaterError: it refuses the key; or something else answers.
    """
    started = time.monotonic()
    call = extend([], None)  # changes nothing, and needs what a claim needs
    is_waiting = False
    session = NETWORK.open_session(connection)
    try:
        while True:
            try:
                reply = await session.exchange(call, ANSWER_S)
                read(call, reply.status, reply.retry_after, reply.body, NETWORK.wall_ms())
                break
            except Unavailable as error:
                if wait_s is not None and time.monotonic() - started + RETRY_S > wait_s:
                    raise
                if not is_waiting:
                    log.warning("waiting for later: %s", error)
                is_waiting = True
            await asyncio.sleep(RETRY_S)
    finally:
        await session.close()
