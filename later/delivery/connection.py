"""One HTTP/1.1 connection to a receiver, which makes one call at a time: a request in one write, and its reply."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import cast

from later.core.origin import Origin
from later.core.reply import Reply
from later.delivery.deadlines import Deadlines, TimedCall
from later.delivery.http_client import LINGER_S, MAX_AGE_S, OWN_ERRNOS, BrokenReply, LocalFault
from later.delivery.large_reads import PIECE_BYTES, LargeReads
from later.delivery.reply_parser import ReplyParser

MAX_COPIED_BYTES = 65_536
"""The longest body that is copied to make one piece with its head."""


class ConnectionLost(BrokenReply):
    """A connection that ended before the first byte of an answer."""


class Connection(asyncio.Protocol):
    """A connection to an origin. `on_idle` gets it after each reply that leaves it usable, `on_closed` at its end."""

    __slots__ = (
        "_call_deadline", "_calls_of_step", "_deadlines", "_large_reads", "_lingers", "_loop", "_on_closed", "_on_idle",
        "_parser", "_reply", "_transport", "_unread", "idle_since", "keep_until", "origin",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        deadlines: Deadlines,
        large_reads: LargeReads,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.origin = origin
        self._loop = asyncio.get_running_loop()
        self.keep_until = self._loop.time() + MAX_AGE_S
        self.idle_since = 0.0
        self._deadlines = deadlines
        self._large_reads = large_reads
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        """The reply that the call under way waits for."""
        self._calls_of_step: set[TimedCall] = set()
        self._call_deadline = 0.0
        self._lingers = False
        self._unread = memoryview(b"")
        """Bytes that were read and are not parsed yet: nothing more is read before they are."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, deadline: float, *, decided_by_status: bool) -> Reply:
        """Send a request on this open connection and return the reply; `deadline` is a time of the event loop (s).

        If it is cancelled when the status has already decided the outcome, it returns that.

        Raises:
            TimeoutError: there was no complete reply in time.
            ConnectionLost: the connection ended before an answer began.
            BrokenReply: the reply cannot be read, or is not complete.
            LocalFault: the connection was ended by `fail`, or this machine had no memory for the request.
        """
        assert self._transport is not None
        self._parser.start(decided_by_status=decided_by_status)
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._reply = reply
        self._call_deadline = deadline
        self._lingers = False
        self._calls_of_step = self._deadlines.add(self, deadline)
        if len(body) <= MAX_COPIED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])
        try:
            return await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled() and not isinstance(reply.exception(), ConnectionLost):
                return reply.result()  # it came in the same turn of the event loop
            self._parse_unread()
            self._reply = None
            self._calls_of_step.discard(self)
            self.abort()
            decided = self._parser.reply or self._parser.decisive_reply
            if decided is not None:
                return decided
            raise
        finally:
            del reply  # it has the error, whose traceback has this frame: only the garbage collector would free them

    def fail(self, error: Exception) -> None:
        """Close the connection at once. A call under way raises `error`, unless its outcome is decided."""
        self.abort()
        reply, self._reply = self._reply, None
        self._calls_of_step.discard(self)
        if reply is None or reply.done():
            return
        if self._parser.decisive_reply is not None:
            reply.set_result(self._parser.decisive_reply)
        else:
            reply.set_exception(error)

    def close(self) -> None:
        """Close the connection, with a goodbye over TLS."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def tls_object(self) -> ssl.SSLObject | None:
        """Return the object of the TLS session; None over plain TCP."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    def on_deadline(self) -> None:
        self.fail(TimeoutError())

    # The callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._reply is None:  # nobody asked: the next call would take it for its reply
            self.abort()
            return
        if len(data) > PIECE_BYTES:
            self._unread = memoryview(data)
            self._large_reads.add(self)
            if self._unread and self._transport is not None:
                self._transport.pause_reading()
            return
        parser = self._parser
        try:
            parser.feed(data)
        except BrokenReply as error:
            self.fail(BrokenReply(str(error)))  # the traceback of this one would keep `data` in memory
            return
        if parser.reply is not None:
            self._finish(parser.reply)
        elif parser.decisive_reply is not None and not self._lingers:
            self._linger()

    def parse_piece(self) -> bool:
        """Parse the next piece of what has come. Return True if more is left for the call under way."""
        piece, self._unread = bytes(self._unread[:PIECE_BYTES]), self._unread[PIECE_BYTES:]
        if self._reply is not None:
            self.data_received(piece)
        if self._unread:
            if self._reply is not None:
                return True
            self._unread = memoryview(b"")
            self.abort()  # the rest would be taken for the reply of the next call
        elif (transport := self._transport) is not None and not (transport.is_closing() or transport.is_reading()):
            transport.resume_reading()
        return False

    def eof_received(self) -> None:
        if self._reply is not None:
            self._end_with_connection(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed(self)
        if self._reply is not None:
            self._end_with_connection(exc)
        self._parser.close()

    def _end_with_connection(self, exc: Exception | None) -> None:
        """End the call because the connection has ended: some replies are complete then."""
        self._parse_unread()
        if self._reply is None:
            return
        if isinstance(exc, OSError) and exc.errno in OWN_ERRNOS:
            self.fail(LocalFault(os.strerror(exc.errno)))
            return
        try:
            if exc is not None:
                raise BrokenReply(_explain_broken_connection(exc))
            self._parser.end()
        except BrokenReply as error:
            self.fail(error if self._parser.heard else ConnectionLost(str(error)))
        else:
            assert self._parser.reply is not None
            self._finish(self._parser.reply)

    def _parse_unread(self) -> None:
        """Parse what has come to its end, because the call ends now."""
        while self._unread:
            self.parse_piece()

    def _linger(self) -> None:
        """Give the body of a reply that its status has decided a moment, instead of the rest of the deadline."""
        self._lingers = True
        self._calls_of_step.discard(self)
        soon = min(self._loop.time() + LINGER_S, self._call_deadline)
        self._calls_of_step = self._deadlines.add(self, soon)

    def _finish(self, answer: Reply) -> None:
        reply, self._reply = self._reply, None
        transport = self._transport
        assert reply is not None
        self._calls_of_step.discard(self)
        if reply.cancelled():  # its caller closes the connection
            return
        reply.set_result(answer)
        if transport is None:
            return
        if transport.get_write_buffer_size():
            # A receiver that answers before it has the whole request may never read the rest, or take it for another.
            transport.abort()
        elif self._parser.is_reusable and not transport.is_closing():
            self._on_idle(self)
        else:
            transport.close()


def _explain_broken_connection(error: Exception) -> str:
    match error:
        case ssl.SSLError():
            return f"TLS failed: {error.reason or 'no reason given'}"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return "the connection was closed"
