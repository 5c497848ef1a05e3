"""Calls between a supervisor and a child process, in both directions: one JSON object a line on a socket pair.

The channel is the child's lifeline, too: whatever happens to one process, the kernel closes its end, and the other
process notices.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from later import __version__
from later.address_types import Address
from later.config import Config
from later.core.errors import LaterError
from later.metrics import MetricSamples

log = structlog.get_logger("later.processes")

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_UNREAD_BYTES = 1024 * 1024
"""Bytes that may wait for a peer that reads nothing; beyond them, no further call is sent to it."""

Handlers = Mapping[str, Callable[[Any], Awaitable[Any]]]
"""The methods of one end. A handler gets the call's parameters as they are decoded from JSON."""


class RpcError(LaterError):
    """A call without a result: the peer is gone, is too busy, or reports an error."""


class _Message(msgspec.Struct, omit_defaults=True):
    """A call (`method` is set) or the answer to the call of the same number: `data`, or the `error` if it failed."""

    number: int
    method: str | None = None
    data: Any = None
    error: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Message).decode


async def open_channel(end: socket.socket) -> Channel:
    """Return a channel on one end of a socket pair; the channel owns the socket from now on."""
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=MAX_LINE_BYTES)
    return Channel(reader, writer)


class Channel:
    """One end of the channel. It reads nothing before `serve`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers: asyncio.Future[Handlers] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        """Our calls that wait for an answer."""
        self._handling: set[asyncio.Task[None]] = set()
        """The peer's calls that are being handled."""
        self.messages_read = 0
        """How many messages the peer has sent. An answer counts even if its caller waits no longer."""
        self.closed = asyncio.create_task(self._read())
        """Done when the peer is gone, or when this end was closed."""

    def serve(self, handlers: Handlers) -> None:
        """Handle the peer's calls from now on, and read its answers."""
        self._handlers.set_result(handlers)

    async def call(self, method: str, params: object = None, *, timeout_s: float = 1.0) -> Any:
        """Return the peer's answer.

        Raises:
            RpcError: there is no answer within `timeout_s`, or there never will be one.
        """
        if self.closed.done() or self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise RpcError(f"the other process is gone or reads nothing: {method}")
        number = next(self._numbers)
        self._pending[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send(_Message(number, method=method, data=params))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RpcError(f"no answer within {timeout_s:g} s: {method}") from None
        finally:
            del self._pending[number]

    def close(self) -> None:
        """Close this end; the peer will notice."""
        self.closed.cancel()
        self._writer.close()

    async def _read(self) -> None:
        """Read messages until the peer is gone. Then no call waits for an answer any more, and no handler runs on."""
        try:
            handlers = await self._handlers
            while (line := await self._reader.readline()).endswith(b"\n"):
                message = _decode(line)
                self.messages_read += 1
                if message.method is None:
                    self._resolve(message)
                else:
                    task = asyncio.create_task(self._handle(handlers, message.method, message))
                    self._handling.add(task)
                    task.add_done_callback(self._handling.discard)
        except OSError:
            pass  # the peer is gone, and has not read everything
        except (ValueError, msgspec.MsgspecError):
            log.exception("channel failed")
        finally:
            self._writer.close()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(RpcError("the other process is gone"))
            for task in self._handling:
                task.cancel()

    def _resolve(self, message: _Message) -> None:
        answer = self._pending.get(message.number)
        if answer is None or answer.done():
            return  # the caller waits no longer
        if message.error is None:
            answer.set_result(message.data)
        else:
            answer.set_exception(RpcError(message.error))

    async def _handle(self, handlers: Handlers, method: str, call: _Message) -> None:
        try:
            self._send(_Message(call.number, data=await handlers[method](call.data)))
        except LaterError as error:
            self._send(_Message(call.number, error=str(error)))
        except Exception:
            log.exception("call failed", method=method)
            self._send(_Message(call.number, error=f"internal error: {method}"))

    def _send(self, message: _Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encode(message) + b"\n")


class StoreSnapshot(msgspec.Struct):
    """Samples of the store's metrics, by metric, as one process shows them; `failure` says why most are missing.

    `age_s` is the age of the snapshot that they are from. They are read again after `again_in_ms`.
    """

    samples: dict[str, MetricSamples]
    age_s: float
    again_in_ms: int | None = None
    failure: str | None = None


class ExitReport(msgspec.Struct):
    """The last samples of a process that exits; with a `failure`, why it cannot work, and whether no other could."""

    samples: MetricSamples
    failure: str | None = None
    fatal_for_all: bool = False


def encode_startup(config: Config, addresses: Sequence[Address]) -> dict[str, Any]:
    """Return the configuration of a child process: it must not be on a command line, which other users can read.

    `addresses` are numeric: a child does not look up a name, which might mean something else by then.
    """
    return {"version": __version__, "config": msgspec.to_builtins(config, enc_hook=str), "addresses": list(addresses)}


def decode_startup(startup: dict[str, Any]) -> tuple[Config, list[Address]]:
    """Return the configuration and the addresses to listen on.

    Raises:
        RpcError: the supervisor runs another version: this one was installed while it ran.
    """
    if startup["version"] != __version__:
        raise RpcError(f"the supervisor is later {startup['version']}, this process {__version__}: restart them all")
    config = msgspec.convert(startup["config"], Config, dec_hook=lambda kind, text: Path(text))
    return config, msgspec.convert(startup["addresses"], list[Address])
