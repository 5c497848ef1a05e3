"""The client: pipelines with a deadline, and redis-py's errors as later's own.

redis-py's own retries are off: it cannot know whether a command that failed was run, and only the caller of a verb
knows whether it may be run again.

Of redis-py only the connections are used: they can connect, authenticate and read. Its own pipeline takes three times
as long for the same bytes: its pool's locks, its packing in Python, its records of each command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import hiredis
import msgspec
import redis.exceptions as errors
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection

from later.core.clock import Clock
from later.core.errors import STORE_FULL_REASON, LaterError, StoreDown, StoreFault, StoreFull, StoreMismatch
from later.regular_file import read_regular_file
from later.store.schema import Execute, parse_info, run_id
from later.store.scripts import BY_SHA, Command

pack_command: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub means a tuple of one

MAX_CONNECTIONS = 16
"""Connections per process: more would only wait in the store, which serves one command at a time."""
MAX_JOINED_BYTES = 65_536
"""Larger pipelines are sent command by command: joining would copy large bodies once more."""


UNAVAILABLE = (
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "READONLY",
)
"""Error codes of a store that is up, but does not accept commands, or writes, for now."""

READING_VERBS = frozenset((
    "audit_trail", "count", "dead", "due_schedules", "due_topics", "explain", "job", "list", "open", "ping", "policies",
    "query", "read", "read_history", "refresh", "schedules", "signing", "snapshot", "split", "stats",
))  # fmt: skip
"""Verbs that change nothing in the store: whether they were carried out does not matter."""

REASONS: list[tuple[tuple[type[Exception], ...], str]] = [
    ((errors.AuthenticationError, errors.NoPermissionError), "the store refuses this user: {error}"),
    ((errors.BusyLoadingError,), "the store is loading its data"),
    ((errors.ReadOnlyError,), "the store is a read-only replica"),
    ((errors.ConnectionError, errors.TimeoutError, OSError), "the store cannot be reached: {error}"),
    ((errors.ClusterDownError, errors.TryAgainError), "the store takes no commands: {error}"),
]
"""redis-py's errors that are not later's fault, and the reason to report; the first match counts."""


def connect(url: str, clock: Clock, timeout_s: float) -> Redis:
    """Return a redis-py client. Each of its new connections first reads the store's clock.

    The address behind a URL may lead to another server with the next connection, and to another clock.

    Raises:
        StoreMismatch: redis-py does not understand the URL, or a file that it names cannot be read.
    """

    async def read_clock(connection: AbstractConnection) -> None:
        await connection.on_connect()
        sent, wall_ahead = clock.monotonic(), clock.wall_ahead()
        await connection.send_command("TIME", check_health=False)
        seconds, micros = await connection.read_response()
        clock.observe(int(seconds) * 1_000_000 + int(micros), sent, clock.monotonic(), wall_ahead)

    try:
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            redis_connect_func=read_clock,
            client_name="later",
            driver_info=None,
            protocol=2,
            retry=None,
        )
    except ValueError as error:
        scheme, separator, rest = url.partition("://")
        raise StoreMismatch(f"--redis {scheme}{separator}{rest.rpartition('@')[2]}: {error}") from None
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        file = pool.connection_kwargs.get(name)
        try:
            if file is not None:
                read_regular_file(file)  # each connection would read it, and wait for a FIFO
        except OSError as error:
            raise StoreMismatch(f"--redis: {name} {file}: cannot be read: {error.strerror}") from None
    return Redis.from_pool(pool)


class StoreClient:
    """Runs pipelines: without MULTI, with an answer for each command, never longer than the timeout.

    `check` runs before the first command on a server, and again until it passes: nothing may be written before. It
    returns the server's run id. After a failover the same address leads to another server.
    `observer(verb)` returns what is called with the seconds of each round trip of that verb.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Clock,
        *,
        timeout_s: float,
        observer: Callable[[str], Callable[[float], None]] = lambda verb: lambda seconds: None,
        check: Callable[[Execute], Awaitable[str]] | None = None,
    ) -> None:
        self._redis = redis
        self._connections = Connections(redis)
        self.timeout_s = timeout_s
        self._clock = clock
        self._observer = observer
        self._observers: dict[str, Callable[[float], None]] = {}
        self._check = check
        self._checking = asyncio.Lock()
        self._checked: set[str] = set()
        """Run ids of the servers that have passed the check."""

    async def open(self) -> None:
        """Check the store, unless that has been done.

        Raises:
            StoreMismatch: the store cannot serve this configuration.
            StoreDown: the store cannot be asked.
        """
        await self._check_unless(lambda: bool(self._checked))

    def new_connection(self) -> AbstractConnection:
        """Return a connection of its own, not yet connected, for what no pipeline can do: listen."""
        return self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call,no-any-return]  # redis-py's

    async def execute(self, verb: str, command: Command) -> Any:
        """Return one command's answer.

        Raises:
            StoreDown: the store cannot be reached, or refuses the command; whether it was run is not known.
        """
        return (await self.execute_all(verb, [command]))[0]

    async def execute_all(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers, in order, from one round trip. Raise the first error among them.

        Raises:
            StoreDown: as above.
        """
        return _raise_error(await self.execute_each(verb, commands))

    async def execute_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers as `execute_all` does, and measure the store's time in the same round trip."""
        return _raise_error(await self.execute_each_timed(verb, commands))

    async def execute_each_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers as `execute_each` does, and measure the store's time in the same round trip.

        Raises:
            LaterError: the time could not be measured.
        """
        sent, wall_ahead = self._clock.monotonic(), self._clock.wall_ahead()
        time, *answers = await self.execute_each(verb, [("TIME",), *commands])
        seconds, micros = _raise_error([time])[0]
        self._clock.observe(int(seconds) * 1_000_000 + int(micros), sent, self._clock.monotonic(), wall_ahead)
        return answers

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers, in order, from one round trip. A command that failed has its error as answer.

        Raises:
            StoreDown: there was no answer; whether the commands were run is not known.
        """
        if not commands:
            return []
        if self._check is None:
            return await self._execute(verb, commands)
        if not self._checked:
            await self.open()
        try:
            return await self._execute(verb, commands, self._checked)
        except UncheckedServer as error:
            found = error.run_id
        await self._connections.drop_all()  # those that are still open lead to the server before
        await self._check_unless(lambda: found in self._checked, {found})
        return await self._execute(verb, commands, self._checked)

    async def aclose(self) -> None:
        await self._connections.aclose()
        await self._redis.aclose()

    async def _check_unless(self, is_done: Callable[[], bool], servers: Container[str] | None = None) -> None:
        """Check one of some servers, by their run ids (None: any), unless that has been done."""
        try:
            async with asyncio.timeout(self.timeout_s), self._checking:  # within the timeout, as callers queue for it
                if self._check is not None and not is_done():
                    self._checked.add(await self._check(partial(self._execute, servers=servers)))
        except TimeoutError:
            raise self._timeout_error() from None

    async def _execute(
        self, verb: str, commands: Sequence[Command], servers: Container[str] | None = None
    ) -> list[Any]:
        started = self._clock.monotonic()
        round_trip = RoundTrip(servers)
        try:
            async with asyncio.timeout(self.timeout_s):
                answers = await self._connections.pipeline(commands, round_trip)
                failed = [i for i, answer in enumerate(answers) if isinstance(answer, Exception)]
                missing = [i for i in failed if isinstance(answers[i], errors.NoScriptError)] if failed else []
                if missing:  # the store has lost scripts (a restart, a failover); NOSCRIPT has changed nothing
                    sources = {BY_SHA[str(commands[i][1])].source for i in missing}
                    loads: list[Command] = [("SCRIPT", "LOAD", source) for source in sources]
                    again = await self._connections.pipeline([*loads, *(commands[i] for i in missing)], round_trip)
                    for i, answer in zip(missing, again[len(sources) :], strict=True):
                        answers[i] = answer
        except TimeoutError:
            await self._connections.drop_idle()
            raise self._timeout_error(round_trip.is_sent and verb not in READING_VERBS) from None
        except (errors.RedisError, OSError) as error:
            await self._connections.drop_idle()  # an event that ended one connection has often ended all
            raise translate(error, round_trip.is_sent and verb not in READING_VERBS) from error
        finally:
            if verb not in self._observers:
                self._observers[verb] = self._observer(verb)
            self._observers[verb](self._clock.monotonic() - started)
        if not failed:
            return answers
        if any(isinstance(answer, errors.ReadOnlyError) for answer in answers):
            await self._connections.drop_idle()  # the server was demoted: a new connection may find the new primary
        return [translate(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def _timeout_error(self, unknown: bool = False) -> StoreDown:
        return StoreDown(f"the store did not answer within {self.timeout_s:g} s", unknown=unknown)


def _raise_error(answers: list[Any]) -> list[Any]:
    """Raise the first error among answers, or return them."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers


def translate(error: Exception, unknown: bool = False) -> LaterError:
    """Return redis-py's error as later's: `StoreDown` with the reason, or `StoreFault` if later itself is at fault.

    `unknown` is true if no answer came, and the commands may have been run all the same.
    """
    if isinstance(error.__cause__, errors.RedisError):
        # redis-py wraps the errors of a new connection, such as a wrong password
        return translate(error.__cause__, unknown)
    if isinstance(error, errors.OutOfMemoryError):
        return StoreFull(STORE_FULL_REASON)
    for kinds, reason in REASONS:
        if isinstance(error, kinds):
            return StoreDown(reason.format(error=error), unknown=unknown)
    if str(error).startswith(UNAVAILABLE):
        return StoreDown(f"the store takes no commands: {error}")
    return StoreFault(f"the store answered an error: {error}")


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
    """At most `MAX_CONNECTIONS` to one store. Each serves one pipeline at a time, and is kept for the next."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._parsers: Mapping[Any, Any] = redis.response_callbacks
        """How redis-py parses the answers of some commands, by the command's name."""
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[tuple[AbstractConnection, str | None]] = []
        """Connections, and the run ids of their servers, if they were asked for."""
        self._drops = 0
        """How often all connections were dropped."""
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

    async def aclose(self) -> None:
        """Close all connections, also those that are opened from now on."""
        self._closed = True
        await self.drop_all()

    async def _read_run_id(self, connection: AbstractConnection) -> str:
        command: Command = ("INFO", "server")
        await connection.send_packed_command(pack_command(command), check_health=False)
        answer = await self._read_answer(connection, command)
        if isinstance(answer, Exception):
            raise answer
        return run_id(parse_info(answer))

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
