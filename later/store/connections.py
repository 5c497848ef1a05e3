"""Pipelines on redis-py's connections, without its client in between.

redis-py's own pipeline takes three times as long for the same bytes: its pool's locks, its packing in Python, its
records of each command. Its connections can connect, authenticate and read, and no more is needed of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from later.store.scripts import Command

pack_command: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub means a tuple of one

MAX_CONNECTIONS = 16
"""Connections per process: more would only wait in the store, which serves one command at a time."""
MAX_JOINED_BYTES = 65_536
"""Larger pipelines are sent command by command: joining would copy large bodies once more."""


class Connections:
    """At most `MAX_CONNECTIONS` to one store. Each serves one pipeline at a time, and is kept for the next."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._parsers: Mapping[Any, Any] = redis.response_callbacks
        """How redis-py parses the answers of some commands, by the command's name."""
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[AbstractConnection] = []
        self._closed = False

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Return each command's answer, or the error that the store returned for it, in order.

        Raises:
            RedisError, OSError: the connection failed; whether the commands were run is not known.
        """
        async with self._slots:
            connection: AbstractConnection = (
                self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
            )
            try:
                if not await _is_usable(connection):
                    await connection.disconnect()
                    await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                packed = [pack_command(command) for command in commands]
                data = packed if sum(map(len, packed)) > MAX_JOINED_BYTES else b"".join(packed)
                await connection.send_packed_command(data, check_health=False)
                answers = [await self._read_answer(connection, command) for command in commands]
            except RuntimeError as error:  # uvloop raises it if the transport was reset meanwhile
                await connection.disconnect(nowait=True)
                raise errors.ConnectionError(str(error)) from error
            except BaseException:
                await connection.disconnect(nowait=True)  # otherwise the next pipeline would read this one's answers
                raise
            self._idle.append(connection)
            if self._closed:
                await self.drop_idle()
        return answers

    async def drop_idle(self) -> None:
        """Close all idle connections.

        After a failover the address may lead to another server, and one that restarted has dropped them silently.
        """
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close all connections, those in use as soon as they are free."""
        self._closed = True
        await self.drop_idle()

    async def _read_answer(self, connection: AbstractConnection, command: Command) -> Any:
        try:
            answer = await connection.read_response()
        except errors.ResponseError as error:
            return error
        parse = self._parsers.get(command[0])
        return answer if parse is None else parse(answer)


async def _is_usable(connection: AbstractConnection) -> bool:
    """Return True if the connection is open, and the store has neither closed it nor sent something unasked."""
    if not connection.is_connected:
        return False
    reader = stream_reader(connection)
    if reader is not None and reader.exception() is not None:
        return False  # it was reset, which redis-py does not check
    try:
        return not await connection.can_read()
    except (errors.ConnectionError, errors.TimeoutError, OSError):
        return False


def stream_reader(connection: AbstractConnection) -> asyncio.StreamReader | None:
    """Return the reader of an open connection, which redis-py keeps private; None for a connection in memory."""
    reader = connection._reader
    return reader if isinstance(reader, asyncio.StreamReader) else None
