"""The examples of docs/python-handlers.md run: each application takes a call, and what it creates is created."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest
from aiohttp import web
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from fastapi import FastAPI
from flask import Flask

from later import Later
from later.core.clock import Clock
from later.testing import virtual_clock
from tests.client.api_servers import ApiServer, api_server
from tests.frameworks.requests import Request, over_asgi, over_http, over_wsgi
from tests.receiver.calls import build_call

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python-handlers.md").read_text()
FIRST_PAGE = (DOCS / "python.md").read_text()
URL = "http://127.0.0.1:8080"
"""The daemon's address on the page."""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


@pytest.fixture
def examples(api: ApiServer) -> Iterator[dict[str, ModuleType]]:
    """Each example of the page as a module, by the title of its section; several of one section are numbered."""
    modules: dict[str, ModuleType] = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)):
            module = modules[f"{title} {number}" if number else title] = ModuleType(f"example_{len(modules)}")
            sys.modules[module.__name__] = module  # dataclasses look for it
            exec(compile(code.replace(URL, api.url), "python-handlers.md", "exec"), module.__dict__)
    yield modules
    for module in modules.values():
        del sys.modules[module.__name__]


def request_to(module: ModuleType) -> Request:
    app = getattr(module, "app", None)
    if isinstance(app, FastAPI):
        return over_asgi(app)
    if isinstance(app, web.Application):
        return over_http(app)
    if isinstance(app, Flask):
        return over_wsgi(app)
    return over_wsgi(WSGIHandler())


async def test_the_application_of_the_first_page_reminds(
    api: ApiServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    application, of_the_test = re.findall(r"^```python\n(.*?)^```$", FIRST_PAGE, re.MULTILINE | re.DOTALL)[:2]
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(application.replace(URL, api.url), "python.md", "exec"), shop.__dict__)
    request, tasks = over_asgi(shop.app), shop.tasks
    async with tasks:
        answers = [await request("PUT", "/carts/17", {}, b"") for _ in range(2)]
        id = shop.remind.id_of("17")
        assert [json.loads(body) for _, _, body in answers] == [{"reminder": id}] * 2
        assert (await tasks.get(id)).content == '{"cart":17}'
        assert (await request("POST", "/later", *build_call("remind", '{"cart":17}')))[0] == 200
        assert [json.loads((await request("DELETE", "/carts/17", {}, b""))[2]) for _ in range(2)] == [
            {"cancelled": True}, {"cancelled": False},
        ]  # fmt: skip
    assert capsys.readouterr().out.endswith("cart 17 waits for you (attempt 1)\n")
    names: dict[str, Any] = {}
    exec(compile(of_the_test, "python.md", "exec"), names)
    with virtual_clock(tasks) as clock:
        await names["test_a_reminder_comes_after_a_quarter_of_a_minute"](clock)


async def test_each_hello_world_greets(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], api: ApiServer
) -> None:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        django.setup()
    found = [module for title, module in examples.items() if title.startswith("Hello, world")]
    assert len(found) == 4
    for module in found:
        capsys.readouterr()
        with override_settings(ROOT_URLCONF=module.__name__):
            status, _, body = await request_to(module)("POST", "/later", *build_call("greet", '"world"'))
        assert (status, body) == (200, b'{"code":100}')
        assert capsys.readouterr().out == "hello world\n"


async def test_the_views_of_the_hello_worlds_create_tasks(examples: dict[str, ModuleType]) -> None:
    modules = [module for title, module in examples.items() if title.startswith("Hello, world")]
    for module in (each for each in modules if hasattr(each, "create_greeting")):
        status, _, body = await request_to(module)("POST", "/greetings/world", {}, b"")
        tasks: Later = module.tasks
        info = await asyncio.to_thread(tasks.get_sync, body.decode().strip('"'))
        assert (status, info.topic, info.content) == (200, "greet", '"world"')
        async with tasks:  # to leave it closes the connections
            pass


async def test_tasks_are_created_as_the_page_says(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    await examples["Creating tasks"].create()
    assert capsys.readouterr().out.endswith("True True 3\nTrue delay\n")


async def test_the_other_handlers_of_the_page_run(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    async def call(section: str, topic: str, content: str, **headers: Any) -> tuple[int, dict[str, str]]:
        async with examples[section].tasks as tasks:
            asgi = over_asgi(tasks.asgi())
            status, answered, _ = await asgi("POST", "/later", *build_call(topic, content, **headers))
        return status, answered

    assert (await call("What a handler takes", "shop/reminder", '{"order":17}', later_attempt="2"))[0] == 200
    assert capsys.readouterr().out.endswith("order 17 attempt 2 of task t1\n")
    answers = [
        await call("What it says", "pay", content, later_attempt=attempt)
        for content, attempt in (("-1", "1"), ("0", "1"), ("1", "1"), ("1", "2"))
    ]
    assert [(status, headers.get("later-after")) for status, headers in answers] == [
        (410, None), (503, "3600.000"), (500, "2.000"), (200, None),
    ]  # fmt: skip
    assert (await call("Signatures", "greet", '"world"'))[0] == 401
    assert (await call("Modules", "shop/remind", "17"))[0] == 200
    assert capsys.readouterr().out.endswith("order 17\n")
    assert (await call("Context, middlewares and dependencies", "greet", '"world"'))[0] == 200
    assert capsys.readouterr().out == (
        "begin greet none\nhello world with a session of a pool of connections\nthe session is closed\nend greet\n"
    )


async def test_policies_are_applied_as_the_page_says(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    await examples["Policies"].deploy()
    assert capsys.readouterr().out == "shop/order retry 3 -> 5\nshop/order rate 0 -> 50\nshop/order timeout 15 -> 30\n"


async def test_the_handler_of_dead_tasks_on_the_page_gets_one_from_the_daemon(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    module = examples["Dead tasks"]
    tasks: Later = module.tasks
    async with tasks:
        await tasks.client.set_policy("shop/invoice", {"deliver": "pull"})
        assert [change.field for change in await tasks.apply_policies()] == ["on_dead", "deliver"]
        worker = asyncio.create_task(tasks.work())
        await module.invoice.enqueue(17)
        printed = ""
        async with asyncio.timeout(60):
            while "order 17 died: no such order\n" not in printed:  # the daemon's log is there, too
                await asyncio.sleep(0.01)
                printed += capsys.readouterr().out
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def test_the_worker_of_the_page_does_pulled_tasks(
    examples: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    module = examples["Without HTTP inwards"]
    tasks: Later = module.tasks
    await tasks.client.set_policy("greet", {"deliver": "pull"})
    await module.main()
    await tasks.client.unset_policy("greet")
    await tasks.client.aclose()
    assert capsys.readouterr().out.endswith("hello world\n")
