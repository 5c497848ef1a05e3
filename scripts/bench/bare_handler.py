"""The smallest possible handlers: what aiohttp and uvloop alone need for requests like those of later's API."""

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


class ClaimBody(msgspec.Struct):
    """The body of a claim."""

    topic: str
    max: int


class LeasesBody(msgspec.Struct):
    """The body of an ack."""

    leases: list[str]


class ClaimedTask(msgspec.Struct):
    """A claimed task, as long as later's."""

    id: str
    topic: str
    content: str = "hello"
    headers: dict[str, str] = {}  # msgspec copies a mutable default
    attempt: int = 1
    due_at: str = "2017-09-09T05:17:10.000Z"
    created_at: str = "2017-09-09T05:17:00.000Z"
    last_error: None = None
    failures: int = 0
    max_retry: int = 3
    context: None = None
    lease: str = "AQAAAAAAAAAAAAAAAAAAAAAAAABqb2JzAAAAAAAAAAAAAAAAAAAA"
    lease_until: str = "2017-09-09T05:17:40.000Z"


class ClaimAnswer(msgspec.Struct):
    """The answer to a claim."""

    tasks: list[ClaimedTask]
    lost: list[str] = []


class AckAnswer(msgspec.Struct):
    """The answer to an ack."""

    acked: int
    lost: list[str] = []


_encode = msgspec.json.Encoder().encode
_decode_create = msgspec.json.Decoder(CreateBody).decode
_decode_query = msgspec.json.Decoder(QueryBody).decode
_decode_claim = msgspec.json.Decoder(ClaimBody).decode
_decode_leases = msgspec.json.Decoder(LeasesBody).decode


async def create(request: web.Request) -> web.Response:
    _decode_create(await request.read())
    return web.Response(body=_encode(CreateAnswer(str(uuid.uuid4()))), content_type="application/json")


async def query(request: web.Request) -> web.Response:
    body = _decode_query(await request.read())
    return web.Response(body=_encode(QueryAnswer(body.id)), content_type="application/json")


async def claim(request: web.Request) -> web.Response:
    body = _decode_claim(await request.read())
    tasks = [ClaimedTask(str(uuid.uuid4()), body.topic) for _ in range(body.max)]
    return web.Response(body=_encode(ClaimAnswer(tasks)), content_type="application/json")


async def ack(request: web.Request) -> web.Response:
    body = _decode_leases(await request.read())
    return web.Response(body=_encode(AckAnswer(len(body.leases))), content_type="application/json")


HANDLERS = {"create": create, "query": query, "claim": claim, "ack": ack}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("answers", choices=HANDLERS, nargs="+")
    options = parser.parse_args()
    app = web.Application()
    for answer in options.answers:
        app.router.add_post(f"/{answer}", HANDLERS[answer])
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
