"""Receivers of callbacks and name servers whose behavior the tests choose."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from later.core.address_guard import AddressGuard
from later.core.policy import Policy
from later.core.retry import Outcome
from later.core.signing import KeyRing
from later.core.task import Task
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.client_settings import ClientSettings
from later.delivery.http_client import HttpClient
from later.delivery.own_client import OwnClient
from later.delivery.proxy import Proxy
from later.delivery.refusals import RefusalReport
from later.delivery.sender import Sender
from later.delivery.signer import Signer
from tests.builders import NO_GUARD, NOW, a_task

DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + b'{"code": 100}'
BUSY = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + b'{"code": 101}'
LONG_TIMEOUT_MS = 60_000
"""A timeout that no test reaches."""
SHORT_TIMEOUT_MS = 150
"""A timeout that a test waits for."""

CLIENTS: dict[str, type[OwnClient] | type[AiohttpClient]] = {"aiohttp": AiohttpClient, "own": OwnClient}
"""The HTTP client of each name."""
client_name = "own"
"""The HTTP client with which `a_sender` sends."""


class Connection:
    """A receiver's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read_head(self) -> str:
        """Return the request line and the headers of the next request."""
        return (await self._reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")

    async def read_request(self) -> tuple[str, bytes]:
        """Return head and body of the next request."""
        head = await self.read_head()
        return head, await self._reader.readexactly(int(parse_headers(head)["content-length"]))

    async def read_some(self) -> bytes:
        """Return what arrives next."""
        return await self._reader.read(65_536)

    def has_resumed_session(self) -> bool | None:
        """Return True if the TLS session is that of an earlier connection; None without TLS."""
        tls = self._writer.get_extra_info("ssl_object")
        return None if tls is None else bool(tls.session_reused)

    async def write(self, answer: bytes) -> None:
        self._writer.write(answer)
        await self._writer.drain()

    async def wait_closed(self) -> None:
        """Wait until the sender has closed its end."""
        while await self._reader.read(65_536):
            pass

    def close(self) -> None:
        """Close with a FIN."""
        self._writer.close()

    def half_close(self) -> None:
        """Send a FIN, and go on reading."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Close with a RST."""
        linger = struct.pack("ii", 1, 0)
        with suppress(OSError):  # the sender was faster
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()


Behavior = Callable[[Connection], Awaitable[Any]]


def parse_headers(head: str) -> dict[str, str]:
    """Return the headers of a request, with names in lower case."""
    pairs = (line.partition(": ") for line in head.split("\r\n")[1:])
    return {name.lower(): value for name, _, value in pairs}


class Receiver:
    """A server with one behavior for each connection; the last one repeats."""

    def __init__(self, *behaviors: Behavior) -> None:
        self._behaviors = behaviors
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def listen(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()
            for task in self._connection_tasks:
                task.cancel()
            await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    async def wait_no_connection(self) -> None:
        """Wait until no connection is open."""
        await asyncio.gather(*self._connection_tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connection_tasks.add(task)
        behavior = self._behaviors[min(self.connections, len(self._behaviors) - 1)]
        self.connections += 1
        try:
            await behavior(Connection(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the sender has closed the connection, or the test is over
        finally:
            writer.transport.abort()


def answers(*replies: bytes) -> Behavior:
    """Answer one request after the other; then wait until the sender closes the connection."""

    async def behavior(connection: Connection) -> None:
        for reply in replies:
            await connection.read_request()
            await connection.write(reply)
        await connection.wait_closed()

    return behavior


def answers_and_closes(*replies: bytes) -> Behavior:
    async def behavior(connection: Connection) -> None:
        for reply in replies:
            await connection.read_request()
            await connection.write(reply)
        connection.close()

    return behavior


async def never_answers(connection: Connection) -> None:
    await connection.wait_closed()


class PolicySender:
    """A sender with one policy for all calls."""

    def __init__(self, sender: Sender, policy: Policy) -> None:
        self.sender = sender
        self._policy = policy

    async def send(self, task: Task, attempt: int, now: int, *, failures: int = 0) -> Outcome:
        return await self.sender.send(task, attempt, failures, now, self._policy)

    async def close(self) -> None:
        await self.sender.close()


@asynccontextmanager
async def a_sender(
    timeout_ms: int = LONG_TIMEOUT_MS,
    max_lookups: int = 8,
    client: HttpClient | None = None,
    proxy: Proxy | None = None,
    guard: AddressGuard = NO_GUARD,
    on_refused: Callable[[str], None] = lambda why: None,
    key_ring: Callable[[], KeyRing] = KeyRing,
    **policy: Any,
) -> AsyncIterator[PolicySender]:
    """Start a sender with `client`, by default that of `client_name`, which looks up `max_lookups` names at a time."""
    client = client or CLIENTS[client_name](
        ClientSettings(max_lookups=max_lookups, max_idle=64, guard=guard, proxy=proxy)
    )
    sender = Sender(
        client,
        Signer(key_ring),
        user_agent="later/0.1",
        guard=guard,
        refusals=RefusalReport(on_refused),
        has_proxy=proxy is not None,
    )
    await sender.start()
    try:
        yield PolicySender(sender, Policy(timeout_ms=timeout_ms, **policy))
    finally:
        await sender.close()


async def deliver_to(
    *behaviors: Behavior, timeout_ms: int = LONG_TIMEOUT_MS, calls: int = 1, **changes: Any
) -> Outcome:
    """Return the outcome of the last of `calls` calls to a receiver of these behaviors."""
    async with Receiver(*behaviors).listen() as receiver, a_sender(timeout_ms) as sender:
        for _ in range(calls):
            outcome = await sender.send(a_task(callback=receiver.url, **changes), 1, NOW)
        return outcome


def reply_with_body(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class FakeNameServers:
    """A replacement for `getaddrinfo`: a lookup of `hang…` waits for `answer`, `dead…` fails, others are 127.0.0.1."""

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self._answer = threading.Event()

    def getaddrinfo(self, host: str, port: int, *_args: object, **_named: object) -> list[Any]:
        self.lookups.append(host)
        if host.startswith("hang"):
            self._answer.wait()
        if host.startswith("dead"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    def answer(self) -> None:
        """Let the lookups of `hang…` go on, and wait until they have ended."""
        self._answer.set()
        for thread in self.threads():
            thread.join()

    def threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("lookup of")]
