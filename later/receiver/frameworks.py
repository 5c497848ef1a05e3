"""Calls in the applications of frameworks. Each framework is imported when its application is given."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from later.receiver.asgi import AsgiReceiver
from later.receiver.callback import MAX_BODY_BYTES
from later.receiver.receiver import Receiver
from later.receiver.wsgi import WsgiReceiver, answer_blocking, read_headers


def add_receiver(app: Any, path: str, receiver: Receiver) -> None:
    """Let an application take calls at a path, with and without a slash at its end.

    Raises:
        ValueError: the path does not begin with a slash, or is no more than that.
        TypeError: the application is of no framework that is known here; the text says which are.
    """
    path = path.rstrip("/")
    if not path.startswith("/"):
        raise ValueError(f"expected a path such as /later, got {path!r}")
    modules = {part.__module__.partition(".")[0] for part in type(app).__mro__}
    add = next((add for name, add in _FRAMEWORKS.items() if name in modules), None)
    if add is None:
        raise TypeError(
            f"receive knows applications of FastAPI, Starlette, aiohttp and Flask, not {type(app).__qualname__}: "
            "add asgi(), wsgi() or django() to it yourself"
        )
    add(app, path, receiver)


def aiohttp_handler(receiver: Receiver) -> Callable[[Any], Any]:
    """Return a handler of aiohttp's for the calls."""
    web = import_module("aiohttp.web")

    async def handle(request: Any) -> Any:
        chunks, size = [], 0
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                break
            chunks.append(chunk)
        body = None if size > MAX_BODY_BYTES else b"".join(chunks)
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = await receiver.answer(request.method, headers, body)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    return handle


def django_view(receiver: Receiver) -> Callable[[Any], Any]:
    """Return a view of Django's for the calls; its protection against forged forms does not concern them."""
    http = import_module("django.http")

    def view(request: Any) -> Any:
        length = request.META.get("CONTENT_LENGTH") or "0"
        is_too_large = not length.isdecimal() or int(length) > MAX_BODY_BYTES
        body = None if is_too_large else request.body
        answer = answer_blocking(receiver, request.method, read_headers(request.META), body)
        return http.HttpResponse(answer.body, status=answer.status, headers=answer.headers)

    view.csrf_exempt = True  # type: ignore[attr-defined]  # how Django's decorator marks a view
    return view


def _add_to_starlette(app: Any, path: str, receiver: Receiver) -> None:
    route = import_module("starlette.routing").Route
    app.router.routes.extend(route(each, AsgiReceiver(receiver)) for each in (path, f"{path}/"))


def _add_to_aiohttp(app: Any, path: str, receiver: Receiver) -> None:
    for each in (path, f"{path}/"):
        app.router.add_route("*", each, aiohttp_handler(receiver))


def _add_to_flask(app: Any, path: str, receiver: Receiver) -> None:
    flask = import_module("flask")
    wsgi = WsgiReceiver(receiver)

    def view() -> Any:
        return flask.Response.from_app(wsgi, flask.request.environ)

    for each in (path, f"{path}/"):
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        app.add_url_rule(each, endpoint=f"later {each}", view_func=view, methods=methods, strict_slashes=True)


_FRAMEWORKS: dict[str, Callable[[Any, str, Receiver], None]] = {
    "starlette": _add_to_starlette,
    "aiohttp": _add_to_aiohttp,
    "flask": _add_to_flask,
}
"""The function for the applications of each framework; FastAPI's are Starlette's, too."""
