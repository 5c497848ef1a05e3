"""The forward proxy through which all callbacks are called, if there is one."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes, urlsplit

from later.core.address_guard import PROXY, Refusal
from later.core.origin import DEFAULT_PORTS, Origin
from later.core.reply import Reply
from later.core.reply_headers import has_proxy_error
from later.delivery.http_client import OWN_ERRNOS, READ_BYTES, AddressRefused, LocalFault, ProxyFailed

MAX_ANSWER_BYTES = 16_384
"""The longest answer to CONNECT, with interim responses; each read of it counts besides its bytes."""
NO_CONNECTION_IN_TIME = "there was no connection through it in time"
NO_TUNNEL = "no answer to CONNECT"
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?\r\n")
_SMOKESCREEN_ERROR_LINE = re.compile(rb"\r\nx-smokescreen-error[ \t]*:", re.IGNORECASE)
SMOKESCREEN_ERROR = "X-Smokescreen-Error"
PROXY_AUTHENTICATION_REQUIRED = 407


class ProxyStream(Protocol):
    """The bytes of a connection to a proxy, before it is one to an origin."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError."""

    async def receive(self) -> bytes:
        """Return what comes next; nothing when the connection has ended. Raises OSError."""


class TcpStream:
    """The stream on a connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connected, data)

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self._connected, MAX_ANSWER_BYTES)


class TlsStream(asyncio.Protocol):
    """The stream on a connection by TLS, whose protocol it is until the call takes the connection over."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._has_ended = False
        self._error: Exception | None = None
        self._has_news = asyncio.Event()

    async def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def receive(self) -> bytes:
        await self._has_news.wait()
        if self._error is not None:
            raise self._error
        received, self._received = self._received, b""
        if not self._has_ended:
            self._has_news.clear()
        return received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._has_news.set()

    def eof_received(self) -> None:
        self._has_ended = True
        self._has_news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended, self._error = True, exc
        self._has_news.set()


@dataclass(frozen=True, slots=True)
class Proxy:
    """A forward proxy, by http or https. `authorization` is the value of Proxy-Authorization, None without a user."""

    origin: Origin
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Return the proxy of a URL such as http://user:password@proxy.internal:3128.

        Raises:
            ValueError: it is no such URL.
        """
        split = urlsplit(url)
        userinfo, at, address = split.netloc.rpartition("@")
        if not at:
            return cls(Origin.of(url))
        user, _, password = userinfo.partition(":")
        credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
        return cls(Origin.of(f"{split.scheme}://{address}"), f"Basic {b64encode(credentials).decode()}")

    @property
    def authorization_line(self) -> bytes:
        """The header line of the credentials; empty without them."""
        return b"" if self.authorization is None else f"Proxy-Authorization: {self.authorization}\r\n".encode()

    async def open_tunnel(self, stream: ProxyStream, origin: Origin) -> None:
        """Make a connection to the proxy one to `origin`.

        Raises:
            AddressRefused: it refuses the address of the origin.
            ProxyFailed: it opens no tunnel.
            LocalFault: this machine had no memory for the request.
        """
        target = (
            origin.authority if origin.port != DEFAULT_PORTS[origin.scheme] else f"{origin.authority}:{origin.port}"
        )
        request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n".encode() + self.authorization_line + b"\r\n"
        head, answer, heard_bytes, status = b"", b"", 0, b""
        try:
            await stream.send(request)
            while not status or (status.startswith(b"1") and status != b"101"):  # interim responses may come before it
                while _END_OF_HEAD not in answer:
                    more = await stream.receive()
                    answer += more
                    heard_bytes += len(more) + READ_BYTES
                    if not more or heard_bytes > MAX_ANSWER_BYTES:
                        raise ProxyFailed(f"{NO_TUNNEL}: {'it is too long' if more else 'the connection was closed'}")
                status_line = _STATUS_LINE.match(answer)
                if status_line is None:
                    raise ProxyFailed(f"{NO_TUNNEL}: it is not HTTP")
                status, (head, _, answer) = status_line[1], answer.partition(_END_OF_HEAD)
        except OSError as error:
            if error.errno in OWN_ERRNOS:
                raise LocalFault(os.strerror(error.errno)) from error
            raise ProxyFailed(f"{NO_TUNNEL}: {error.strerror or type(error).__name__}") from error
        if is_refusal(int(status), _SMOKESCREEN_ERROR_LINE.search(head) is not None):
            raise AddressRefused(Refusal(PROXY))
        if not status.startswith(b"2"):
            raise ProxyFailed(f"it answered {status.decode()} to CONNECT")
        if answer:  # the origin says nothing before it is greeted
            raise ProxyFailed(f"{NO_TUNNEL}: there is more than one")


def check_answer(reply: Reply) -> None:
    """Check who answered an http call through a proxy.

    Raises:
        AddressRefused: the proxy, because it refuses the address of the origin.
        ProxyFailed: the proxy, which did not pass the request on.
    """
    if is_refusal(reply.status, reply.smokescreen_error is not None):
        raise AddressRefused(Refusal(PROXY))
    if is_answer_of_proxy(reply):
        raise ProxyFailed(f"it answered {reply.status}")


def is_refusal(status: int, has_smokescreen_error: bool) -> bool:
    """Return True if a proxy answered that it refuses the address of an origin, as Smokescreen does."""
    return status == PROXY_AUTHENTICATION_REQUIRED and has_smokescreen_error


def is_answer_of_proxy(reply: Reply) -> bool:
    """Return True if an http call was answered by the proxy itself, as far as its answer says so.

    407 is a proxy's answer only. Others say it by `Proxy-Status` (RFC 9209), `X-Squid-Error` or `X-Smokescreen-Error`.
    """
    if reply.status == PROXY_AUTHENTICATION_REQUIRED:
        return True
    if 200 <= reply.status < 300:
        return False
    errors = (reply.squid_error, reply.smokescreen_error)
    return any(error is not None for error in errors) or has_proxy_error(reply.proxy_status or "")
