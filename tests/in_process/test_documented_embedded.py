"""The examples of docs/python-embedded.md run, each on a store of its own."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.in_process.embedded import new_prefix, until

PAGE = (Path(__file__).parents[2] / "docs" / "python-embedded.md").read_text()


async def is_printed(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Wait until a line was printed."""
    printed: list[str] = []

    def is_there() -> bool:
        printed.append(capsys.readouterr().out)
        return line in "".join(printed).splitlines()

    await until(is_there)


def run_example(number: int, server_url: str) -> dict[str, Any]:
    """Run an example, with a server that is there in place of a directory, and return the names that it has made."""
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[number]
    assert '"./later-data"' in code
    code = code.replace('"./later-data"', f'"{server_url}", prefix="{new_prefix()}"').replace("15s", "15ms")
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "python-embedded.md", "exec"), names)
    return names


async def test_the_first_application_greets(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    worker = asyncio.create_task(run_example(0, server_url)["main"]())
    await is_printed(capsys, "hello world")
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_worker_brings_the_store(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example(1, server_url)
    worker = asyncio.create_task(names["main"]())
    await until(lambda: names["tasks"].url is not None)
    await names["remind"].enqueue(17)
    await is_printed(capsys, "order 17")
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert names["tasks"].url is None


async def test_a_web_application_works_while_it_is_served(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example(2, server_url)
    async with names["lifespan"](None):
        await names["resize"].enqueue("cat.jpg")
        await is_printed(capsys, "resized cat.jpg")
