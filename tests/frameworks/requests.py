"""Requests to applications of each kind, without a server where that is possible."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

Request = Callable[[str, str, dict[str, str], bytes], Awaitable[tuple[int, dict[str, str], bytes]]]


def over_asgi(app: Any) -> Request:
    async def request(
        method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        half = len(body) // 2
        incoming: list[Any] = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:]},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return incoming.pop(0) if incoming else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "server": ("app", 80),
            "headers": [(name.title().encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        await app(scope, receive, send)
        answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])

    return request


def over_wsgi(app: Any) -> Request:
    async def request(
        method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        environ: dict[str, Any] = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        environ |= {
            "REQUEST_METHOD": method, "PATH_INFO": path, "SCRIPT_NAME": "", "QUERY_STRING": "", "SERVER_NAME": "app",
            "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(),
            "CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json", "wsgi.input": io.BytesIO(body),
        }  # fmt: skip
        started: list[Any] = []

        def call() -> bytes:
            chunks = app(environ, lambda status, headers, exc_info=None: started.extend((status, headers)))
            return b"".join(chunks)

        answer = await asyncio.to_thread(call)
        return int(started[0][:3]), {name.lower(): value for name, value in started[1]}, answer

    return request


def over_http(app: web.Application) -> Request:
    async def request(
        method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        async with (
            TestServer(app) as server,
            ClientSession() as session,
            session.request(method, server.make_url(path), headers=headers, data=io.BytesIO(body)) as answer,
        ):
            answered = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, answered, await answer.read()

    return request
