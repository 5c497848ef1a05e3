"""The wire to the store: pipelines on redis-py's connections, without its client in between.

redis-py's pipeline takes three times as long for the same bytes (its pool's locks, its packing in Python, its records
of each command); its connections know how to connect, to authenticate and to read, and that is what we need of it.
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

CONNECTIONS = 16
"""Connections per process: more would only wait in the store, which serves one command at a time."""

LARGE_BYTES = 65_536


class Connections:
    """At most `CONNECTIONS` to one store. Each is one pipeline's at a time, and kept for the next."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._reads: Mapping[Any, Any] = redis.response_callbacks
        """How redis-py reads the answers of some commands, by their name."""
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[AbstractConnection] = []
        self._closed = False

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Each command's answer, or the error that the store answered, in order.

        Raises:
            RedisError, OSError: the connection failed; whether the commands were made is not known.
        """
        async with self._turns:
            connection = self._idle.pop() if self._idle else self._made()
            try:
                await _ready(connection)
                await connection.send_packed_command(_packed(commands), check_health=False)
                answers = [await self._answer(connection, command) for command in commands]
            except RuntimeError as error:  # how uvloop says that a transport was reset meanwhile
                await connection.disconnect(nowait=True)
                raise errors.ConnectionError(str(error)) from error
            except BaseException:
                await connection.disconnect(nowait=True)  # or the next pipeline would read this one's answers
                raise
            await self._keep(connection)
        return answers

    async def drop_idle(self) -> None:
        """Close those that nobody uses now: the next ones may find another server at the same address, or this one

        where it has let all of them go without a word.
        """
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close them all, those in use as soon as they are free."""
        self._closed = True
        await self.drop_idle()

    async def _keep(self, connection: AbstractConnection) -> None:
        self._idle.append(connection)
        if self._closed:
            await self.drop_idle()

    def _made(self) -> AbstractConnection:
        made: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's own
        return made

    async def _answer(self, connection: AbstractConnection, command: Command) -> Any:
        try:
            answer = await connection.read_response()
        except errors.ResponseError as error:
            return error
        read = self._reads.get(command[0])
        return answer if read is None else read(answer)


def _packed(commands: Sequence[Command]) -> bytes | list[bytes]:
    """In one piece where that is small; large ones are copied once too often already."""
    pieces = [pack_command(command) for command in commands]
    return pieces if sum(map(len, pieces)) > LARGE_BYTES else b"".join(pieces)


async def _ready(connection: AbstractConnection) -> None:
    """Connect, also where the other side has closed meanwhile, or said something that nobody asked for."""
    if connection.is_connected and not await _is_spoilt(connection):
        return
    await connection.disconnect()
    await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's own


async def _is_spoilt(connection: AbstractConnection) -> bool:
    reader = connection._reader
    if isinstance(reader, asyncio.StreamReader) and reader.exception() is not None:
        return True  # it was reset, which redis-py does not ask for
    try:
        return await connection.can_read()
    except (errors.ConnectionError, errors.TimeoutError, OSError):
        return True
