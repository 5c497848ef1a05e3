"""The connections of an HTTP server: how many may be open, and how long each may take over what it sends and reads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from ssl import SSLContext
from typing import Protocol, cast

import structlog

log = structlog.get_logger()

FIRST_HEAD_S = 10.0
"""How long a new connection may take until the head of its first request is there, the handshake of TLS included."""
GOODBYE_S = 1.0
"""How long a client that was idle may take to answer the goodbye of TLS."""
UNREAD_ANSWER_S = 30.0
"""How long a client may leave an answer unread that does not fit into the buffers of its connection."""
DEFAULT_IDLE_S = 75.0
MAX_CONNECTIONS = 10_000
RESERVED_DESCRIPTORS = 256
"""Descriptors that are kept for everything but connections of clients and deliveries: the store, files, the log."""
LOG_REFUSED_EVERY_S = 60.0


def connection_limit(descriptors: int, slots: int) -> int:
    """Return how many connections of clients a process may have by default.

    Each delivery slot needs a descriptor for its call, and one for an idle connection. A quarter of the descriptors is
    the least, where there are not enough for all: calls then wait for each other instead of for the clients.
    """
    return min(MAX_CONNECTIONS, max(descriptors - 2 * slots - RESERVED_DESCRIPTORS, descriptors // 4))


class Certificate(Protocol):
    """A certificate of the server, which may be replaced while it serves."""

    @property
    def context(self) -> SSLContext:
        """The context of new connections."""


class ServerConnections:
    """The open connections of a server, at most `most`, each closed after `idle_s` without a request."""

    def __init__(
        self,
        *,
        most: int = sys.maxsize,
        idle_s: float = DEFAULT_IDLE_S,
        count_refused: Callable[[], None] = lambda: None,
        certificate: Certificate | None = None,
    ) -> None:
        """Without a certificate, connections are plain TCP."""
        self.idle_s = idle_s
        self.certificate = certificate
        self.handshakes: set[asyncio.Task[None]] = set()
        self._most = most
        self.count_refused = count_refused
        self.count = 0
        """How many are open."""
        self._refusal_logged_at: float | None = None

    def admit(self) -> bool:
        """Count a new connection; return False if there are as many as may be."""
        if self.count < self._most:
            self.count += 1
            return True
        self.count_refused()
        now = asyncio.get_running_loop().time()
        if self._refusal_logged_at is None or now >= self._refusal_logged_at + LOG_REFUSED_EVERY_S:
            self._refusal_logged_at = now
            log.warning("connections refused", connections=self._most)
        return False

    def release(self) -> None:
        """Count a connection that was admitted as closed."""
        self.count -= 1


class AcceptedConnection(asyncio.Protocol):
    """A connection until the HTTP protocol takes it over: at once, or after the handshake of TLS.

    One too many is closed at once: deliveries need descriptors, too. `build` makes the HTTP protocol, which counts the
    connection as closed at its end; it takes the time (of the event loop) at which the first head must be there.
    """

    def __init__(self, connections: ServerConnections, build: Callable[[float], asyncio.Protocol]) -> None:
        self._connections = connections
        self._build = build

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tcp = cast(asyncio.Transport, transport)
        if not self._connections.admit():
            tcp.close()
            return
        loop = asyncio.get_running_loop()
        head_until = loop.time() + FIRST_HEAD_S
        if self._connections.certificate is None:
            tcp.set_write_buffer_limits(high=0)  # or the end of an answer could be left unread for ever
            protocol = self._build(head_until)
            tcp.set_protocol(protocol)
            protocol.connection_made(tcp)
            return
        # uvloop's `start_tls` would miss a hello that comes in this moment; an accepted socket has no such moment
        try:
            accepted = socket.socket(fileno=os.dup(tcp.get_extra_info("socket").fileno()))
        except OSError:  # no descriptor is left
            self._connections.release()
            return
        finally:
            tcp.abort()
        handshake = loop.create_task(self._shake_hands(accepted, self._connections.certificate.context, head_until))
        self._connections.handshakes.add(handshake)
        handshake.add_done_callback(self._connections.handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, context: SSLContext, head_until: float) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._build(head_until),
                accepted,
                ssl=context,
                ssl_handshake_timeout=FIRST_HEAD_S,
                ssl_shutdown_timeout=UNREAD_ANSWER_S,  # the end of an answer is sent in this time, too
            )
        except BaseException as error:
            accepted.close()
            self._connections.release()
            if not isinstance(error, OSError):  # a handshake that fails, or takes too long, is the client's
                raise
