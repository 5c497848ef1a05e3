"""Calls over ASGI: Starlette, FastAPI and every other application of that kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from later.receiver.callback import MAX_BODY_BYTES
from later.receiver.receiver import Receiver

Message = MutableMapping[str, Any]


class AsgiReceiver:
    """An ASGI application for the calls of later. An instance is an endpoint of Starlette's `Route`.

    `Mount` would not do: it answers 307 to its path without a slash at the end, which later does not follow.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"calls of later come over HTTP, not over {scope['type']}")
        try:
            body = await _read(receive)
        except ConnectionResetError:
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        answer = await self._receiver.answer(scope["method"], headers, body)
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        encoded.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await send({"type": "http.response.body", "body": answer.body})


async def _read(receive: Callable[[], Awaitable[Message]]) -> bytes | None:
    """Read a body; None if it is too large.

    Raises:
        ConnectionResetError: the client has gone.
    """
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            return None
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
