"""A Python application whose handlers a real daemon calls."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from later import Busy, Dead, Handler, Later, Retry, Signed, Task
from tests.system.api_client import call
from tests.system.daemons import run_up, secret_of


async def wait_until_true(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await ask():
                return
            await asyncio.sleep(0.02)


def test_an_application_works_on_pulled_tasks_without_being_called(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        for topic in ("remind", "shop/mail", "refuse"):
            path = f"/topics/{topic.replace('/', '%2F')}/policy"
            assert call(up.url, "PATCH", path, {"deliver": "pull"}).status == 200
        asyncio.run(_work_on_tasks(up.url))


async def _work_on_tasks(url: str) -> None:
    tasks = Later(url)
    seen: list[tuple[str, Any, int]] = []
    remind, mail, refuse = _register(tasks, seen)
    worker = asyncio.create_task(tasks.work(drain=0))
    await asyncio.gather(*(remind.enqueue(n) for n in range(100)), mail.enqueue({"to": "x"}))
    dead = await refuse.enqueue(None)
    delayed = await remind.enqueue(100, delay=1)

    async def all_are_seen() -> bool:
        return len(seen) == 104

    async def is_dead() -> bool:
        return (await tasks.get(dead.id)).state == "dead"

    async def has_ended() -> bool:
        return not await tasks.cancel(delayed.id)

    for condition in (all_are_seen, is_dead, has_ended):
        await wait_until_true(condition)
    last_error = (await tasks.get(dead.id)).last_error
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await tasks.client.aclose()
    assert Counter(order for topic, order, _ in seen if topic == "remind") == Counter(range(101))
    assert [attempt for topic, _, attempt in seen if topic == "shop/mail"] == [1, 2, 3]
    assert last_error is not None
    assert (last_error.reason, last_error.message) == ("rejected", "no such order")


def test_the_handlers_of_an_application_do_their_tasks(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        keys = [secret_of(data), secret_of(data, "--namespace", "shop")]
        asyncio.run(_use_handlers(up.url, Signed(keys)))


async def _use_handlers(url: str, signed: Signed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        callback = f"http://127.0.0.1:{listener.getsockname()[1]}/later"
        tasks = Later(url, callback=callback, signed=signed)
        seen: list[tuple[str, Any, int]] = []
        remind, mail, refuse = _register(tasks, seen)
        async with _serve(tasks, listener):
            done = await remind.enqueue(17, delay=0.5)
            await asyncio.gather(*(remind.enqueue(n) for n in range(100)))
            await mail.enqueue({"to": "größe@example.org"})
            dead = await refuse.enqueue(None)

            async def all_are_seen() -> bool:
                return len(seen) == 104

            async def is_dead() -> bool:
                return (await tasks.get(dead.id)).state == "dead"

            async def has_ended() -> bool:
                return not await tasks.cancel(done.id)

            for condition in (all_are_seen, is_dead, has_ended):
                await wait_until_true(condition)
            last_error = (await tasks.get(dead.id)).last_error
    assert Counter(order for topic, order, _ in seen if topic == "remind") == Counter([17, *range(100)])
    assert [attempt for topic, _, attempt in seen if topic == "shop/mail"] == [1, 2, 3]
    assert last_error is not None
    assert (last_error.reason, last_error.message) == ("gone", "no such order")


def _register(tasks: Later, seen: list[tuple[str, Any, int]]) -> tuple[Handler[int], Handler[Any], Handler[None]]:
    @tasks.handler
    async def remind(order: int, task: Task[Any]) -> None:
        seen.append((task.topic, order, task.attempt))

    @tasks.handler("shop/mail")
    def mail(to: dict[str, str], task: Task[Any]) -> None:
        seen.append((task.topic, to, task.attempt))
        if task.attempt == 1:
            raise Retry("no connection", after=0.1)
        if task.attempt == 2:
            raise Busy(after=0.1)

    @tasks.handler
    async def refuse() -> None:
        raise Dead("no such order")

    return remind, mail, refuse


@asynccontextmanager
async def _serve(tasks: Later, listener: socket.socket) -> AsyncIterator[None]:
    app = web.Application()
    app.cleanup_ctx.append(tasks.aiohttp_ctx)
    tasks.receive(app, "/later")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield
    finally:
        await runner.cleanup()
