"""The HTTP clients that a sender can use: what they do, and what they raise."""

from __future__ import annotations

import errno
from typing import Protocol

from later.core.address_guard import Refusal
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.request import CallbackRequest

MAX_REPLY_BYTES = 65_536
"""How much of a reply's body is read."""
MAX_HEARD_BYTES = 262_144
"""How much is heard of a reply in all: interim responses, blank lines, headers, the framing of chunks, trailers.

Later's own client counts each read besides its bytes.
"""
READ_BYTES = 32
"""The bytes that each read of the socket counts besides its own: a segment of one byte costs as much as a long one."""
LINGER_S = 0.1
"""How long to wait for the body of a reply that its status has decided: reading it only saves the connection."""
MAX_IDLE_S = 4.0
"""How long an idle connection is kept: shorter than the five seconds after which Node.js closes it."""

MAX_AGE_S = 600.0
"""How old a connection is kept at most. One in constant use would otherwise outlive every change of its host's name,
and of what the address guard said of it."""

CLOSED = "the client was closed"
UNREADABLE = "it is not HTTP, or its headers are too long"

OWN_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of this machine: a call to any receiver would have met them."""


class HttpClient(Protocol):
    """A client that calls receivers, any number at a time."""

    async def start(self) -> None:
        """Prepare the client for the running event loop."""

    async def close(self) -> None:
        """Close every connection, if there are any; calls in flight raise `LocalFault`."""

    async def post(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        """Send `request`, and return the reply within `timeout_s`: lookup, connect, TLS, the request and the reply.

        If it is cancelled when the receiver's status has already decided the outcome, it returns that.

        Raises:
            TimeoutError: there was no complete reply in time.
            AddressRefused: no connection may be opened, or the proxy says so.
            NoConnection: no connection could be opened.
            BrokenReply: the reply is not HTTP, or the connection ended before the reply did.
            ProxyFailed: a proxy did not pass the request on.
            LocalFault: this machine or this process could not make the call.
        """


class NoConnection(Exception):
    """A connection that could not be opened. Its text says why, without a word of the URL."""


class AddressRefused(Exception):
    """A connection that was not opened, because the guard refuses every address of the host."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class BrokenReply(Exception):
    """A reply that cannot be read, or is not complete. Its text says why, without a word of the reply or the URL."""


class ProxyFailed(Exception):
    """A proxy that did not pass a request on. Its text says why, without a word of the URL."""


class LocalFault(Exception):
    """A call that could not be made for a reason of this machine or process. It says nothing about the receiver."""
