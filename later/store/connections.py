"""Connections to the store.

Of redis-py only the connections are used: they can connect, authenticate and read. Its own pipeline takes three times
as long for the same bytes: its pool's locks, its packing in Python, its records of each command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import hiredis
import msgspec
import redis.exceptions as errors
import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection

from later.address_types import Address, mask_url, split_sentinel_url
from later.core.clock import Clock
from later.core.errors import StoreDown, StoreMismatch
from later.regular_file import read_regular_file
from later.store.primary import PrimaryLookup, PrimaryPool
from later.store.schema import parse_info, run_id
from later.store.scripts import Command

log = structlog.get_logger("later.connections")

pack_command: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub means a tuple of one

MAX_CONNECTIONS = 16
"""Connections per process: more would only wait in the store, which serves one command at a time."""
MAX_JOINED_BYTES = 65_536
"""Larger pipelines are sent command by command: joining would copy large bodies once more."""

JUMP_S = 0.1
"""Where the clock of a new primary differs by more, it is logged: tasks are early or late by as much."""


def connect(
    url: str, clock: Clock, timeout_s: float, note_jump: Callable[[float], None] = lambda seconds: None
) -> Redis:
    """Return a redis-py client. Each of its new connections first reads the store's clock.

    The address behind a URL may lead to another server with the next connection, and to another clock. A URL of
    sentinels leads to the primary that they name, which must say itself that it is one. `note_jump` is called after
    each failover with the seconds by which the clock of the new primary is ahead of that before it.

    Raises:
        StoreMismatch: redis-py does not understand the URL, or a file that it names cannot be read.
    """
    options = connection_options(clock, timeout_s, note_jump=note_jump)

    async def distrust_clock(before: Address, now: Address) -> None:
        clock.distrust()

    try:
        sentinel_url = split_sentinel_url(url)
        if sentinel_url is None:
            pool = ConnectionPool.from_url(url, **options)
        else:
            pool = PrimaryPool(sentinel_url, timeout_s=timeout_s, **options)
            pool.sentinels.on_failover.append(distrust_clock)
    except ValueError as error:
        raise StoreMismatch(f"--redis {mask_url(url)}: {error}") from None
    check_tls_files(pool)
    return Redis.from_pool(pool)


def connection_options(
    clock: Clock,
    timeout_s: float,
    *,
    server: Hashable = None,
    note_jump: Callable[[float], None] = lambda seconds: None,
) -> dict[str, Any]:
    """Return the options of every connection to a server, which the clock knows by that name.

    A new one first reads the server's time. `note_jump` is as in `connect`.
    """

    async def read_clock(connection: AbstractConnection) -> None:
        await connection.on_connect()
        if isinstance(connection, PrimaryLookup):
            await connection.confirm_primary()
        await _measure_time(connection, clock, server, note_jump)

    return {
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "redis_connect_func": read_clock,
        "client_name": "later",
        "driver_info": None,
        "protocol": 2,
        "retry": None,
    }


def check_tls_files(pool: ConnectionPool) -> None:
    """Check that the files for TLS can be read. Raises StoreMismatch."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        file = pool.connection_kwargs.get(name)
        try:
            if file is not None:
                read_regular_file(file)  # each connection would read it, and wait for a FIFO
        except OSError as error:
            raise StoreMismatch(f"--redis: {name} {file}: cannot be read: {error.strerror}") from None


async def _measure_time(
    connection: AbstractConnection, clock: Clock, server: Hashable, note_jump: Callable[[float], None]
) -> None:
    """Read a server's time on a new connection. If it has just become the primary, tell how far its clock differs."""
    sent, wall_ahead = clock.monotonic(), clock.wall_ahead()
    await connection.send_command("TIME", check_health=False)
    seconds, micros = await connection.read_response()
    time_us, received = int(seconds) * 1_000_000 + int(micros), clock.monotonic()
    jump_s = clock.jump_s(time_us, sent, received)
    clock.observe(time_us, sent, received, wall_ahead, server=server)
    if jump_s is not None:
        tell_jump(jump_s, note_jump)


def tell_jump(jump_s: float, note_jump: Callable[[float], None]) -> None:
    """Tell how far the clock of a new primary is ahead of that before it."""
    note_jump(jump_s)
    if abs(jump_s) > JUMP_S:
        log.warning("store clock jumped", by_s=round(jump_s, 3))


class UncheckedServer(StoreDown):
    """The environment's fault: the address leads to a server that has not passed the check. Nothing was sent to it."""

    def __init__(self, run_id: str) -> None:
        super().__init__("the store is another server than before, which is not checked yet")
        self.run_id = run_id


class RoundTrip(msgspec.Struct):
    """A round trip to one of some servers, by their run ids (None: to any).

    If the commands got no answer, `is_sent` is true if the store may have read them.
    """

    servers: Container[str] | None = None
    is_sent: bool = False


class Connections:
    """At most so many connections to one store. Each serves one pipeline at a time, and is kept for the next."""

    def __init__(self, redis: Redis, most: int = MAX_CONNECTIONS) -> None:
        self._pool = redis.connection_pool
        self.sentinels = self._pool.sentinels if isinstance(self._pool, PrimaryPool) else None
        """The sentinels that name the primary, if the store has any."""
        if self.sentinels is not None:
            self.sentinels.on_failover.append(self._leave)
        self._parsers: Mapping[Any, Any] = redis.response_callbacks
        """How redis-py parses the answers of some commands, by the command's name."""
        self.max_connections = most
        self._slots = asyncio.Semaphore(most)
        self._idle: list[tuple[AbstractConnection, str | None]] = []
        """Connections, and the run ids of their servers, if they were asked for."""
        self.server_changes = 0
        """How often a pipeline went to another server than the one before it."""
        self._last_server: str | None = None
        self._drops = 0
        """How often all connections were dropped."""
        self._listeners: WeakSet[AbstractConnection] = WeakSet()
        self._closed = False

    async def pipeline(self, commands: Sequence[Command], round_trip: RoundTrip) -> list[Any]:
        """Return each command's answer, or the error that the store returned for it, in order.

        Raises:
            RedisError, OSError: the connection failed; whether the commands were run is not known.
            UncheckedServer: the connection leads to another server than those of the round trip.
        """
        async with self._slots:
            server: str | None = None
            drops = self._drops
            if self._idle:
                connection, server = self._idle.pop()
            else:
                connection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
            try:
                if not await _is_usable(connection):
                    await connection.disconnect()
                    await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                    server = None
                if round_trip.servers is not None:
                    server = await self._read_run_id(connection) if server is None else server
                    if server not in round_trip.servers:
                        raise UncheckedServer(server)
                    if server != self._last_server:
                        self.server_changes += self._last_server is not None
                        self._last_server = server
                packed = [pack_command(command) for command in commands]
                data = packed if sum(map(len, packed)) > MAX_JOINED_BYTES else b"".join(packed)
                round_trip.is_sent = True
                await connection.send_packed_command(data, check_health=False)
                answers = [await self._read_answer(connection, command) for command in commands]
            except RuntimeError as error:  # uvloop raises it if the transport was reset meanwhile
                await connection.disconnect(nowait=True)
                raise errors.ConnectionError(str(error)) from error
            except BaseException:
                await connection.disconnect(nowait=True)  # otherwise the next pipeline would read this one's answers
                raise
            if self._closed or drops != self._drops:
                await connection.disconnect(nowait=True)
            else:
                self._idle.append((connection, server))
        return answers

    async def drop_idle(self) -> None:
        """Close all idle connections.

        After a failover the address may lead to another server, and one that restarted has dropped them silently.
        """
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.disconnect(nowait=True)

    async def drop_all(self) -> None:
        """Close all connections, those in use as soon as they are free."""
        self._drops += 1
        await self.drop_idle()

    def doubt_primary(self) -> None:
        """Let the sentinels be asked which server is the primary: something failed at the one that was."""
        if self.sentinels is not None:
            self.sentinels.doubt()

    @property
    def address(self) -> str:
        """The server's address: `HOST:PORT`, or the path of its socket."""
        if self.sentinels is not None:
            return str(self.sentinels.used)
        options = self._pool.connection_kwargs
        return str(options.get("path") or Address(options.get("host", "localhost"), options.get("port", 6379)))

    @property
    def why_no_primary(self) -> Exception | None:
        """Why the sentinels led to no primary; None if they did, or if there are none."""
        return None if self.sentinels is None else self.sentinels.why_not_found

    def new_listener(self) -> AbstractConnection:
        """Return a connection of its own, not yet connected. It is closed when another server becomes the primary."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
        self._listeners.add(connection)
        return connection

    async def _leave(self, before: Address, now: Address) -> None:
        """Leave a server that is the primary no more. It counts as a change, also if it is the primary again soon."""
        self.server_changes += 1
        await self.drop_all()
        for listener in list(self._listeners):
            await listener.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close all connections, also those that are opened from now on."""
        self._closed = True
        await self.drop_all()
        if self.sentinels is not None:
            await self.sentinels.aclose()

    async def _read_run_id(self, connection: AbstractConnection) -> str:
        command: Command = ("INFO", "server")
        await connection.send_packed_command(pack_command(command), check_health=False)
        answer = await self._read_answer(connection, command)
        if isinstance(answer, Exception):
            raise answer
        return run_id(parse_info(answer))

    async def _read_answer(self, connection: AbstractConnection, command: Command) -> Any:
        try:  # the caller closes a connection that fails; redis-py would also close one to a store that loads its data
            answer = await connection.read_response(disconnect_on_error=False)
        except (errors.ResponseError, errors.BusyLoadingError) as error:
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
