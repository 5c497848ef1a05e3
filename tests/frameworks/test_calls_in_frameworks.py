"""Calls in applications of each framework, sync and async handlers, with and without a slash at the path's end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import django
import pytest
from aiohttp import web
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette

from later.handlers.control import Busy, Dead, Hold, Retry
from later.handlers.registry import Handlers
from later.receiver.asgi import AsgiReceiver
from later.receiver.callback import MAX_BODY_BYTES
from later.receiver.frameworks import add_receiver, django_view
from later.receiver.receiver import Receiver
from later.receiver.wsgi import WsgiReceiver
from tests.cases import each_case
from tests.frameworks.requests import Request, over_asgi, over_http, over_wsgi
from tests.receiver.calls import build_call, build_receiver

THREADS: set[int] = set()
urlpatterns: list[Any] = []


def build_handlers() -> Handlers:
    handlers = Handlers()

    @handlers.handler
    async def on_the_loop(number: int) -> None:
        assert number == 7

    @handlers.handler
    def in_a_thread(number: int) -> None:
        assert number == 7
        THREADS.add(threading.get_ident())

    return handlers


def added(app: Any, receiver: Receiver) -> Any:
    add_receiver(app, "/later", receiver)
    return app


def django_app(receiver: Receiver) -> Any:
    if not settings.configured:
        middleware = ["django.middleware.csrf.CsrfViewMiddleware"]
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", MIDDLEWARE=middleware)
        django.setup()
    urlpatterns[:] = [django_path(each, django_view(receiver)) for each in ("later", "later/")]
    return WSGIHandler()


FRAMEWORKS: dict[str, Callable[[Receiver], Request]] = {
    "fastapi": lambda receiver: over_asgi(added(FastAPI(), receiver)),
    "starlette": lambda receiver: over_asgi(added(Starlette(), receiver)),
    "asgi": lambda receiver: over_asgi(AsgiReceiver(receiver)),
    "aiohttp": lambda receiver: over_http(added(web.Application(), receiver)),
    "flask": lambda receiver: over_wsgi(added(Flask("app"), receiver)),
    "django": lambda receiver: over_wsgi(django_app(receiver)),
    "wsgi": lambda receiver: over_wsgi(WsgiReceiver(receiver)),
}


@each_case("framework", FRAMEWORKS)
async def test_each_framework_takes_calls(framework: str) -> None:
    handlers = build_handlers()
    for path in ("/later", "/later/"):
        for topic in ("on_the_loop", "in_a_thread"):
            request = FRAMEWORKS[framework](build_receiver(handlers))
            status, headers, body = await request("POST", path, *build_call(topic, "7"))
            assert (status, body) == (200, b'{"code":100}'), (path, topic)
            assert headers["content-type"] == "application/json"


@each_case("framework", FRAMEWORKS)
async def test_each_framework_says_the_reason_of_a_failure(framework: str) -> None:
    request = FRAMEWORKS[framework](build_receiver(build_handlers()))
    status, headers, _ = await request("POST", "/later", *build_call("in_a_thread", "8"))
    assert (status, headers["later-reason"][:14]) == (500, "AssertionError")


ENDS: list[tuple[object, int, dict[str, str]]] = [
    (None, 200, {}),
    (False, 200, {}),
    (KeyError("amount"), 500, {"later-reason": "KeyError%3A%20%27amount%27"}),
    (Retry("locked", after="5m"), 500, {"later-reason": "locked", "later-after": "300.000"}),
    (Busy("full", after=1.5), 503, {"later-reason": "full", "later-after": "1.500"}),
    (Hold("90s"), 503, {"later-reason": "hold", "retry-after": "90"}),
    (Dead("no such order"), 410, {"later-reason": "no such order"}),
]
"""The ends of a handler, and the answers that say them."""


@each_case("framework", FRAMEWORKS)
async def test_each_framework_says_every_end_of_a_handler(framework: str) -> None:
    handlers = Handlers()

    def end(number: int) -> object:
        result = ENDS[number][0]
        if isinstance(result, Exception):
            raise result
        return result

    async def hang() -> None:
        await asyncio.Event().wait()

    handlers.handler("in_a_thread")(end)
    handlers.handler("strict", strict=True)(end)
    handlers.handler("hang", timeout=0.01)(hang)
    build = FRAMEWORKS[framework]
    request = build(build_receiver(handlers)) if framework != "aiohttp" else None

    async def call(topic: str, content: str) -> tuple[int, dict[str, str]]:
        own = request or build(build_receiver(handlers))  # aiohttp's applications serve once
        status, headers, _ = await own("POST", "/later", *build_call(topic, content))
        return status, {
            name: value.replace(" ", "%20") if "%" in value else value
            for name, value in headers.items()
            if name in ("later-reason", "later-after", "retry-after")
        }

    for number, (_, status, headers) in enumerate(ENDS):
        assert await call("in_a_thread", str(number)) == (status, headers), number
    assert await call("strict", "0") == (500, {"later-reason": "returned None"})
    assert await call("hang", "") == (500, {"later-reason": "not done within 0.01 s"})
    assert await call("unknown", "") == (503, {"later-reason": "no handler for unknown in this app"})
    status, headers = await call("in_a_thread", "garbage")
    assert (status, "malformed" in headers["later-reason"]) == (500, True)


@each_case("framework", FRAMEWORKS)
async def test_each_framework_refuses_other_calls(framework: str) -> None:
    build = FRAMEWORKS[framework]
    handlers = build_handlers()
    status, headers, _ = await build(build_receiver(handlers))("GET", "/later", {}, b"")
    assert (status, headers["allow"]) == (405, "POST")
    headers, body = build_call("on_the_loop", "7")
    assert (await build(build_receiver(handlers))("POST", "/later", headers, body + b" "))[0] == 401
    large = b" " * (MAX_BODY_BYTES + 1)
    assert (await build(build_receiver(handlers))("POST", "/later", headers, large))[0] == 413
    whole = body + b" " * (MAX_BODY_BYTES - len(body))
    assert (await build(build_receiver(handlers, signed=False))("POST", "/later", headers, whole))[0] == 200


async def test_under_wsgi_a_function_runs_in_the_thread_of_its_request() -> None:
    THREADS.clear()
    handlers = build_handlers()
    threads: set[int] = set()
    wsgi = WsgiReceiver(build_receiver(handlers))

    def app(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return wsgi(*arguments)

    await over_wsgi(app)("POST", "/later", *build_call("in_a_thread", "7"))
    assert threads == THREADS


@each_case("length", ["-1", "x", "99999999999"])
def test_under_wsgi_a_length_that_is_none_is_refused(length: str) -> None:
    started: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": None}
    WsgiReceiver(build_receiver(Handlers()))(environ, lambda *answer: started.append(answer))
    assert started[0][0].startswith("413")


async def test_a_client_that_leaves_while_it_sends_is_no_error() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pytest.fail(f"sent {message}")

    await AsgiReceiver(build_receiver(Handlers()))({"type": "http"}, receive, send)


@each_case(
    "app, path, error",
    [(object(), "/later", TypeError), (FastAPI(), "later", ValueError), (Flask("x"), "/", ValueError)],
)
def test_applications_and_paths_that_are_not_known_are_refused(app: Any, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        add_receiver(app, path, build_receiver(Handlers()))
