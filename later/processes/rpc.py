"""What a supervisor and its child have between them: either may ask the other, one JSON object a line.

It is the child's lifeline, too: whatever becomes of the other end, the kernel closes the channel, and it is known here.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from later.core.errors import LaterError

log = structlog.get_logger("later.processes")

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_UNREAD_BYTES = 1024 * 1024
"""How many bytes may wait for an end that reads nothing; it is asked no more then."""

Handlers = Mapping[str, Callable[[Any], Awaitable[Any]]]
"""What an end can be asked. An answer is awaited with what came with the question, as it is read from JSON."""


class RpcError(LaterError):
    """The other end did not answer: it is gone, is busy with something else, or says itself that it cannot."""


class _Message(msgspec.Struct, omit_defaults=True):
    """A question (`ask`) or an answer, by its number: with `no`, the reason why there is none."""

    number: int
    ask: str | None = None
    about: Any = None
    no: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Message).decode


async def open_channel(end: socket.socket, answers: Handlers) -> Channel:
    """On one end of a socket pair, which is the channel's from now on."""
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=MAX_LINE_BYTES)
    return Channel(reader, writer, answers)


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Handlers) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.closed = asyncio.create_task(self._read())
        """Done when the other end is gone, or this one was closed."""

    async def call(self, method: str, params: object = None, *, timeout_s: float = 1.0) -> Any:
        """The other end's answer. Raises NoAnswer: there is none within that time, or there never will be."""
        if self.closed.done() or self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise RpcError(f"nobody is there to answer: {method}")
        number = next(self._numbers)
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send(_Message(number, ask=method, about=params))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RpcError(f"no answer within {timeout_s:g} s: {method}") from None
        finally:
            del self._asked[number]

    def close(self) -> None:
        """The other end will know."""
        self.closed.cancel()
        self._writer.close()

    async def _read(self) -> None:
        try:
            while (line := await self._reader.readline()).endswith(b"\n"):
                self._take(_decode(line))
        except OSError:
            pass  # it is gone, and has not read all that was said to it
        except (ValueError, msgspec.MsgspecError):
            log.exception("channel failed")
        finally:
            self._end()

    def _end(self) -> None:
        """Nobody waits for what will not come."""
        self._writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(RpcError("the other end is gone"))
        for task in self._answering:
            task.cancel()

    def _take(self, line: _Message) -> None:
        if line.ask is not None:
            task = asyncio.create_task(self._answer(line.number, line.ask, line.about))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        answer = self._asked.get(line.number)
        if answer is None or answer.done():
            return  # whoever asked waits no longer
        if line.no is None:
            answer.set_result(line.about)
        else:
            answer.set_exception(RpcError(line.no))

    async def _answer(self, number: int, what: str, about: object) -> None:
        try:
            self._send(_Message(number, about=await self._answers[what](about)))
        except LaterError as error:
            self._send(_Message(number, no=str(error)))
        except Exception:
            log.exception("question failed", question=what)
            self._send(_Message(number, no=f"this is a fault of later's own: {what}"))

    def _send(self, line: _Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encode(line) + b"\n")
