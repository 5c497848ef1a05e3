"""The smallest possible handler: what aiohttp and uvloop alone need for requests like /create and /query."""

from __future__ import annotations

import argparse
import uuid

import msgspec
import uvloop
from aiohttp import web


class CreateBody(msgspec.Struct):
    """The body of a create."""

    topic: str
    callback: str
    content: str
    delay: float
    retry: int


class QueryBody(msgspec.Struct):
    """The body of a query."""

    id: str


class CreateAnswer(msgspec.Struct):
    """The answer to a create."""

    id: str


class QueryAnswer(msgspec.Struct):
    """The answer to a query, as long as later's."""

    id: str
    topic: str = "order"
    execute_time: int = 1504934230
    max_retry: int = 3
    has_retry: int = 0
    callback: str = "http://127.0.0.1:8888/success"
    content: str = "hello"
    creat_time: int = 1504934220
    state: str = "delay"
    due_at: str = "2017-09-09T05:17:10.000Z"
    attempts: int = 0
    last_error: None = None


_encode = msgspec.json.Encoder().encode
_decode_create = msgspec.json.Decoder(CreateBody).decode
_decode_query = msgspec.json.Decoder(QueryBody).decode


async def create(request: web.Request) -> web.Response:
    _decode_create(await request.read())
    return web.Response(body=_encode(CreateAnswer(str(uuid.uuid4()))), content_type="application/json")


async def query(request: web.Request) -> web.Response:
    body = _decode_query(await request.read())
    return web.Response(body=_encode(QueryAnswer(body.id)), content_type="application/json")


HANDLERS = {"create": create, "query": query}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("answer", choices=HANDLERS)
    options = parser.parse_args()
    app = web.Application()
    app.router.add_post(f"/{options.answer}", HANDLERS[options.answer])
    web.run_app(
        app,
        host="127.0.0.1",
        port=options.port,
        reuse_port=True,
        print=None,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
