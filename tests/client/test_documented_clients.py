"""The examples of the documents of the Python library run, one after the other, on the API."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from later.client import AsyncClient, Client
from later.core.clock import Clock
from tests.client.api_servers import ApiServer, api_server

DOCUMENTS = Path(__file__).parents[2] / "docs"
URL = "http://127.0.0.1:8080"
"""The daemon's address in the documents."""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


def run_examples(document: str, api: ApiServer, *, after: str = "") -> list[dict[str, Any]]:
    """Run each example of a document, from a heading on, by itself, and return the names that they have made."""
    text = (DOCUMENTS / document).read_text().partition(after or "# ")[2].replace(URL, api.url)
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: list[dict[str, Any]] = []
    for example in examples:
        names.append({"__name__": "example"})
        exec(compile(example, document, "exec"), names[-1])
    assert names
    return names


def test_the_first_examples_run(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_examples("python.md", api, after="## Without handlers")
    printed = capsys.readouterr().out
    assert " is due at " in printed
    assert "100 tasks in one request\n" in printed
    assert printed.endswith("doing cat.jpg for the 1 time\n")
    (application,) = [found for found in names if "lifespan" in found]
    asyncio.run(put_into_cart_twice(application))


async def put_into_cart_twice(application: dict[str, Any]) -> None:
    later: AsyncClient = application["later"]
    async with application["lifespan"](None):
        first, second = [await application["put_into_cart"](17) for _ in range(2)]
        assert first == second == {"reminder": "remind:17"}
        assert (await later.query("remind:17")).content == "cart 17"


def test_the_examples_of_schedules_run(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    application = run_examples("schedules.md", api)[-1]
    created, task, listed = capsys.readouterr().out.splitlines()
    assert (created.split()[0], task, listed) == ("True", "True", "['report']")
    asyncio.run(application["deploy"]())
    printed = capsys.readouterr().out.splitlines()
    assert "sync every None -> 3600.0" in printed
    assert "cleanup-all content None -> 365" in printed
    assert printed[-1] == "[]"
    with Client(api.url) as client:
        assert {found.id for found in client.schedules()} == {"sync", "shop:report", "cleanup", "cleanup-all"}


def test_the_examples_of_the_clients_run(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("python-client.md", api)
    printed = capsys.readouterr().out.splitlines()
    assert "1000 created, 0 failed" in printed
    assert "delay Exceeds max allowed delivery delay of 900000 milliseconds" in printed
    assert any(line.startswith("due in ") for line in printed)
    assert "30 s, set by the topic" in printed
    assert printed[-1] == "doing resize cat.jpg"
