"""The wire to the store: pipelines with a deadline, and errors in words of the house.

redis-py's own retries are off: it cannot know whether a command that failed was made, and only the caller of a verb
knows whether it may be made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.exceptions as errors
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection

from later.core.clock import Clock
from later.core.errors import LaterError, StoreDown, StoreFault, StoreMismatch
from later.store.connections import Connections
from later.store.schema import Execute
from later.store.scripts import BY_SHA, Command

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
"""Error codes of a store that is there, but takes no (such) commands for now."""

REASONS: list[tuple[tuple[type[Exception], ...], str]] = [
    ((errors.OutOfMemoryError,), "the store's memory is full (maxmemory)"),
    ((errors.AuthenticationError, errors.NoPermissionError), "the store refuses this user: {error}"),
    ((errors.BusyLoadingError,), "the store is loading its data"),
    ((errors.ReadOnlyError,), "the store is a read-only replica"),
    ((errors.ConnectionError, errors.TimeoutError, OSError), "the store cannot be reached: {error}"),
    ((errors.ClusterDownError, errors.TryAgainError), "the store takes no commands: {error}"),
]
"""What redis-py raises of the world's faults, and the reason to give; the first that matches counts."""


def connect(url: str, clock: Clock, timeout_s: float) -> Redis:
    """A client on a pool whose every new connection starts by reading the store's clock.

    The address behind a URL may be another server by the next connection, with another clock.

    Raises:
        StoreMismatch: the URL is none that redis-py understands.
    """

    async def read_clock(connection: AbstractConnection) -> None:
        await connection.on_connect()
        sent = clock.monotonic()
        await connection.send_command("TIME", check_health=False)
        seconds, micros = await connection.read_response()
        clock.observe(int(seconds) * 1_000_000 + int(micros), sent, clock.monotonic())

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
        raise StoreMismatch(f"--redis {_without_password(url)}: {error}") from None
    return Redis.from_pool(pool)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]


class Client:
    """Runs pipelines: without MULTI, with an answer for each command, never longer than the timeout.

    `check` is made before the first command, again and again until it passes: until then nothing may be written.
    `observer(verb)` returns what is called with the seconds of each round trip of that verb.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Clock,
        *,
        timeout_s: float,
        observer: Callable[[str], Callable[[float], None]] = lambda verb: lambda seconds: None,
        check: Callable[[Execute], Awaitable[None]] | None = None,
    ) -> None:
        self._redis = redis
        self._connections = Connections(redis)
        self.timeout_s = timeout_s
        self._clock = clock
        self._observer = observer
        self._observers: dict[str, Callable[[float], None]] = {}
        self._check = check
        self._checking = asyncio.Lock()

    async def open(self) -> None:
        """Check the store, if that was not done yet.

        Raises:
            StoreMismatch: it cannot serve this configuration.
            StoreDown: it cannot be asked.
        """
        try:
            async with asyncio.timeout(self.timeout_s), self._checking:  # or whoever comes last waits for all others
                if self._check is not None:
                    await self._check(self._run)
                    self._check = None
        except TimeoutError:
            raise self._too_late() from None

    async def execute(self, verb: str, command: Command) -> Any:
        """One command's answer.

        Raises:
            StoreDown: the store cannot be reached, or does not take it; whether it was made is not known.
        """
        return (await self.execute_all(verb, [command]))[0]

    async def execute_all(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """The commands' answers, in order, from one round trip; the first error among them is raised.

        Raises:
            StoreDown: as above.
        """
        answers = await self.execute_each(verb, commands)
        for answer in answers:
            if isinstance(answer, LaterError):
                raise answer
        return answers

    async def execute_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers, and measure the store's time in the same round trip. Raises StoreDown."""
        sent = self._clock.monotonic()
        (seconds, micros), *answers = await self.execute_all(verb, [("TIME",), *commands])
        self._clock.observe(int(seconds) * 1_000_000 + int(micros), sent, self._clock.monotonic())
        return answers

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """The commands' answers, in order, from one round trip. A command that failed answers its error.

        Raises:
            StoreDown: nothing came back; whether the commands were made is not known.
        """
        if not commands:
            return []
        if self._check is not None:
            await self.open()
        return await self._run(verb, commands)

    async def aclose(self) -> None:
        await self._connections.aclose()
        await self._redis.aclose()

    async def _run(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                answers = await self._connections.pipeline(commands)
                await self._run_missing_scripts(commands, answers)
        except TimeoutError:
            await self._connections.drop_idle()
            raise self._too_late() from None
        except (errors.RedisError, OSError) as error:
            await self._connections.drop_idle()  # what ended one has often ended all: not each is to be a failure
            raise translate(error) from error
        finally:
            if verb not in self._observers:
                self._observers[verb] = self._observer(verb)
            self._observers[verb](self._clock.monotonic() - started)
        return await self._translated(answers)

    def _too_late(self) -> StoreDown:
        return StoreDown(f"the store did not answer within {self.timeout_s:g} s")

    async def _run_missing_scripts(self, commands: Sequence[Command], answers: list[Any]) -> None:
        """Once more for those whose script the store has lost (a restart, a failover): NOSCRIPT changed nothing."""
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, errors.NoScriptError)]
        if not missing:
            return
        sources = {BY_SHA[str(commands[i][1])].source for i in missing}
        again = await self._connections.pipeline(
            [*(("SCRIPT", "LOAD", source) for source in sources), *(commands[i] for i in missing)]
        )
        for i, answer in zip(missing, again[len(sources) :], strict=True):
            answers[i] = answer

    async def _translated(self, answers: list[Any]) -> list[Any]:
        if any(isinstance(answer, errors.ReadOnlyError) for answer in answers):
            # This server was demoted: the next connection may find the new primary.
            await self._connections.drop_idle()
        return [translate(answer) if isinstance(answer, Exception) else answer for answer in answers]


def translate(error: Exception) -> LaterError:
    """A redis error in words of the house: `StoreDown` with the reason, or `StoreFault` where it is our own fault."""
    if isinstance(error.__cause__, errors.RedisError):
        return translate(error.__cause__)  # redis-py wraps what a new connection is answered, a wrong password too
    for kinds, reason in REASONS:
        if isinstance(error, kinds):
            return StoreDown(reason.format(error=error))
    if str(error).startswith(UNAVAILABLE):
        return StoreDown(f"the store takes no commands: {error}")
    return StoreFault(f"the store answered an error: {error}")
