"""The examples of docs/python-workers.md run."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from later.core.clock import Clock
from tests.client.api_servers import ApiServer, api_server

PAGE = (Path(__file__).parents[2] / "docs" / "python-workers.md").read_text()
URL = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


async def test_the_examples_do_what_they_say(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hello, within = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for code in (hello.replace("delay=2", "delay=0"), within):
        names: dict[str, Any] = {"__name__": "shop"}
        exec(compile(code.replace(URL, api.url), "python-workers.md", "exec"), names)
        printed, ended = list[tuple[object, ...]](), asyncio.Event()

        def note(*words: object, flush: bool = False, ended: asyncio.Event = ended, printed: Any = printed) -> None:
            printed.append(words)
            ended.set()

        names["print"] = note
        async with names["tasks"]:
            await names["tasks"].client.set_policy("greet", {"deliver": "pull"})
        await run_example(names, ended)
        assert printed == [("hello", "world")]


async def run_example(names: dict[str, Any], ended: asyncio.Event) -> None:
    """Create a task, and let the example's worker do it."""
    async with asyncio.timeout(60):
        if "lifespan" in names:
            async with names["lifespan"](None):
                await names["greet"].enqueue("world")
                await ended.wait()
        else:
            await names["create"]()
            worker = asyncio.create_task(names["tasks"].work())
            await ended.wait()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
