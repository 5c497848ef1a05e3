"""TLS on a connection to a receiver, without what it does not need of the event loops' own.

`start_tls` of uvloop takes 24 µs of a call on a kept connection, twice as much as the rest of the client. This takes 6:
it does not buffer what OpenSSL buffers, or look for another record after each one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from later.delivery.http_client import MAX_HEARD_BYTES
from later.delivery.tls import TlsClient

MAX_RECORD_BYTES = 16_384
"""The longest content of a record of TLS (RFC 8446, section 5.1). No read returns more."""
WRITE_BYTES = 65_536
"""How much is encrypted at once: a buffer of OpenSSL keeps the size that it once had."""

Buffer = bytes | bytearray | memoryview


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of `protocol`, and itself the protocol of a TCP transport.

    `handshake` comes first: `protocol` must not write before it has returned.
    """

    __slots__ = (
        "_error", "_handshake", "_incoming", "_is_established", "_is_paused", "_outgoing", "_overhead_bytes",
        "_protocol", "_tcp", "_tls",
    )  # fmt: skip

    def __init__(self, client: TlsClient, host: str, protocol: asyncio.Protocol) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = client.wrap(host, self._incoming, self._outgoing)
        super().__init__({"ssl_object": self._tls})
        self._protocol = protocol
        self._tcp: asyncio.Transport
        self._handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake has ended, well or not."""
        self._is_established = False
        """True if it has ended well."""
        self._is_paused = False
        self._overhead_bytes = 0
        """How much has come since the last write that is not for `protocol`: handshakes, session tickets, framing."""
        self._error: Exception | None = None
        """Why the connection ends, until it is raised or handed on: its traceback refers to this object."""

    async def handshake(self) -> None:
        """Shake hands with the receiver. If this is cancelled, the connection is closed.

        Raises:
            OSError: it failed: an `ssl.SSLError`, or the error of the TCP connection.
        """
        self._shake_hands()
        self._send()
        try:
            await self._handshake
        except asyncio.CancelledError:
            self.abort()
            raise
        if not self._is_established:
            raise self._take_error() or ConnectionResetError

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Make another protocol the one of this established connection.

        Raises:
            OSError: the connection has ended.
        """
        if self._tcp.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._protocol = protocol
        protocol.connection_made(self)

    # The transport of `protocol`

    def write(self, data: Buffer) -> None:
        self._overhead_bytes = 0
        try:
            if len(data) <= WRITE_BYTES:
                self._tls.write(data)
                self._send()
                return
            for start in range(0, len(data), WRITE_BYTES):
                self._tls.write(data[start : start + WRITE_BYTES])
                self._send()
        except ssl.SSLError as error:  # for example when the receiver has begun another handshake
            self._fail(error)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        """Decrypt and read nothing more until `resume_reading`."""
        self._is_paused = True
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Hand what came before the pause to `protocol` at once: the next call must not take it for its reply."""
        self._is_paused = False
        if self._incoming.pending and not self._tcp.is_closing():
            self._read()
            if self._outgoing.pending:
                self._send()
        # Not before: the outer one of TLS in TLS hands on at once what it has, perhaps the end of the connection.
        if not (self._is_paused or self._tcp.is_closing()):
            self._tcp.resume_reading()

    def is_closing(self) -> bool:
        return self._tcp.is_closing()

    def close(self) -> None:
        """Say goodbye, and close the connection without waiting for the receiver's goodbye (RFC 8446, section 6.1)."""
        if not self._tcp.is_closing():
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._send()
            self._tcp.close()

    def abort(self) -> None:
        self._tcp.abort()

    # The protocol of the TCP transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        self._overhead_bytes += len(data)
        if not self._is_established:
            self._shake_hands()
        if self._is_established:
            self._read()
        if self._outgoing.pending:
            self._send()
        if self._overhead_bytes > MAX_HEARD_BYTES and not self._is_paused:
            self._fail(OSError(errno.EPROTO, os.strerror(errno.EPROTO)))

    def eof_received(self) -> None:
        """End the connection as without TLS: a body that ends with it is complete. Many receivers say no goodbye."""
        self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_established:
            self._protocol.connection_lost(self._take_error() or exc)
        else:
            self._protocol.connection_lost(exc)
            self._end_handshake(exc)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self._fail(error)
        else:
            self._is_established = True
            self._end_handshake(None)

    def _read(self) -> None:
        """Hand what has come to `protocol`; after the receiver's goodbye, close the connection."""
        try:
            while data := self._tls.read(MAX_RECORD_BYTES):
                self._overhead_bytes -= len(data)
                self._protocol.data_received(data)
                if not self._incoming.pending or self._is_paused or self._tcp.is_closing():
                    return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._protocol.eof_received()
            self.close()

    def _send(self) -> None:
        """Send what OpenSSL has to say."""
        if not self._tcp.is_closing():
            self._tcp.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        """Close the connection because of `error`: in the handshake with an alert, if OpenSSL has one."""
        if self._is_established:
            self._error = error
            self._tcp.abort()
        else:
            self._end_handshake(error)
            self._send()
            self._tcp.close()

    def _end_handshake(self, error: Exception | None) -> None:
        if not self._handshake.done():
            self._error = error
            self._handshake.set_result(None)

    def _take_error(self) -> Exception | None:
        error, self._error = self._error, None
        return error
