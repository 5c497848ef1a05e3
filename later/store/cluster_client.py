"""The client of a store in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Hashable, Sequence
from typing import Any

import msgspec
import redis.exceptions as errors
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection

from later.address_types import Address, ClusterUrl, mask_url, split_cluster_url
from later.core.clock import Clock
from later.core.errors import LaterError, NodeDown, StoreDown, StoreMismatch, WriteRefused
from later.core.hash_slots import key_slot
from later.store.client import IMPATIENT_VERBS, READING_VERBS, REPEATED_VERBS, StoreClient, raise_error, translate
from later.store.connections import check_tls_files, connect, connection_options
from later.store.node import NODE_CONNECTIONS
from later.store.node_clocks import NodeClocks
from later.store.nodes import Nodes, Patience
from later.store.schema import Execute
from later.store.scripts import Command
from later.store.settings import StoreSettings

TRIES_SHARE = 0.8
"""How much of the timeout commands are tried again for: the last error can then still be told."""
WRITE_REFUSALS = ("MISCONF", "NOREPLICAS")
"""Error codes of a node that may be read, but takes no writes: its disk fails, or it has lost its replicas."""
LATE_SHARE = 0.075
"""How much of the timeout an impatient call waits for one node longer than for the first: 150 ms of 2 s."""

CHECK_SHARE = 0.25
"""How much of the timeout the first check waits for primaries besides the one that it needs."""

Observer = Callable[[str], Callable[[float], None]]
Check = Callable[[Execute], Awaitable[str]]


class ClusterClient(StoreClient):
    """Does as `StoreClient`, with the nodes of a cluster.

    Where a node is away, the commands to its shards have `StoreDown` as answer, and the others have their answers.
    """

    def __init__(
        self,
        url: ClusterUrl,
        clock: Clock,
        *,
        timeout_s: float,
        observer: Observer = lambda verb: lambda seconds: None,
        check: Check | None = None,
        count_failover: Callable[[], None] = lambda: None,
        note_jump: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        def new_redis(node: Address) -> Redis:
            pool = ConnectionPool.from_url(url.server_url, **connection_options(clock, timeout_s, server=node))
            pool.connection_kwargs |= {"host": node.host, "port": node.port}
            return Redis.from_pool(pool)

        seed = new_redis(url.seeds[0])
        check_tls_files(seed.connection_pool)

        async def check_all(execute: Execute) -> str:
            await self._check_primaries()
            assert check is not None
            return await check(execute)

        checks = None if check is None else check_all
        super().__init__(seed, clock, timeout_s=timeout_s, observer=observer, check=checks)
        self._clocks = NodeClocks(clock, self._ask_time, count_failover=count_failover, note_jump=note_jump)
        self.nodes = Nodes(url.seeds, new_redis, self._clocks.use_map, uses_tls=url.uses_tls, checks=check is not None)

    @property
    def is_cluster(self) -> bool:
        return True

    @property
    def max_connections(self) -> int:
        return NODE_CONNECTIONS

    def refresh_map(self) -> None:
        self.nodes.map.start_reading()

    def new_connection(self, key: bytes) -> AbstractConnection:
        return self.nodes.new_listener(key)

    async def execute_each_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers as `execute_each` does. The time is measured each second besides.

        Raises:
            LaterError: the time had to be measured, and no node answered.
        """
        if not commands or not self._clock.is_steady():
            await self._measure_time(verb)
        return await self.execute_each(verb, commands)

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers, in order. A command that failed has its error as answer.

        Raises:
            StoreDown: no node could be asked.
        """
        if not commands:
            return []
        if self._check is not None and not self._checked:
            await self._open_for_commands()
        return await self._execute(verb, commands)

    async def execute_on_each_server(self, verb: str, commands: Sequence[Command]) -> list[tuple[str, list[Any]]]:
        if self._check is not None and not self._checked:
            await self.open()
        patience = self._patience(verb)
        try:
            answers = await self.nodes.execute_on_each(commands, patience)
        except (errors.RedisError, OSError, TimeoutError) as error:
            raise self._translate_failure(error) from error
        return [(str(node), self._translate_all(some)) for node, some in answers]

    async def execute_at(self, verb: str, key: bytes, command: Command) -> Any:
        if self._check is not None and not self._checked:
            await self.open()
        return raise_error(await self._execute(verb, [command], slots=[key_slot(key)]))[0]

    def node_of(self, key: bytes) -> Hashable:
        return self.nodes.node_of(key)

    def is_away(self, key: bytes) -> bool:
        return self.nodes.is_away(key)

    @property
    def is_any_away(self) -> bool:
        return super().is_any_away or self.nodes.is_any_away

    async def aclose(self) -> None:
        await self._clocks.aclose()
        await self.nodes.aclose()
        await super().aclose()

    async def _execute(
        self,
        verb: str,
        commands: Sequence[Command],
        servers: Container[str] | None = None,
        wait_s: float = 0.0,
        slots: Sequence[int | None] | None = None,
    ) -> list[Any]:
        started = self._clock.monotonic()
        try:
            answers = await self.nodes.execute(commands, self._patience(verb), slots)
        except (errors.RedisError, OSError, TimeoutError) as error:
            raise self._translate_failure(error) from error
        finally:
            self._observe(verb, self._clock.monotonic() - started)
        has_failed = any(isinstance(answer, Exception) for answer in answers)
        if has_failed:
            answers = self._translate_all(answers)
        if has_failed or self.away_tags:
            self.away_tags.note(commands, answers)
        if has_failed and all(isinstance(answer, StoreDown) for answer in answers) and self.nodes.are_all_away:
            raise StoreDown(str(answers[0]), unknown=answers[0].unknown)  # which is no error of one node
        return answers

    async def _check_primaries(self) -> None:
        """Check the server of each primary that answers. Later, one that cannot serve is away: the others go on.

        Raises:
            StoreMismatch: one of them cannot serve.
            StoreDown: no node could be asked.
        """
        patience = self._patience("open")
        soon = msgspec.structs.replace(patience, ends_at=patience.ends_at - (1 - CHECK_SHARE) * self.timeout_s)
        try:
            answers = await self.nodes.execute_on_each([("PING",)], soon)
        except (errors.RedisError, OSError, TimeoutError) as error:
            raise self._translate_failure(error) from error
        for _, (answer,) in answers:
            if isinstance(answer, StoreMismatch):
                raise answer

    async def _measure_time(self, verb: str) -> None:
        """Measure the time of each primary. Raises LaterError."""
        if self._check is not None and not self._checked:
            await self.open()
        try:
            await self.nodes.know_map(self._patience(verb))
            await self._clocks.measure()
        except (errors.RedisError, OSError, TimeoutError) as error:
            raise self._translate_failure(error) from error

    async def _ask_time(self, node: Address) -> tuple[bytes, bytes]:
        return await self.nodes.ask_time(node)

    def _patience(self, verb: str) -> Patience:
        now = asyncio.get_running_loop().time()

        def lost(error: Exception) -> LaterError:
            return translate(error, verb not in READING_VERBS)

        return Patience(
            tries_until=now + TRIES_SHARE * self.timeout_s,
            ends_at=now + self.timeout_s,
            lost=lost,
            late_s=self._late_s(verb),
        )

    def _late_s(self, verb: str) -> float | None:
        """Return how much longer than for the first node a call waits for another (s); None: it tries again, too."""
        if verb in IMPATIENT_VERBS:
            return LATE_SHARE * self.timeout_s
        return self.timeout_s if verb in REPEATED_VERBS else None

    def _translate_failure(self, error: Exception) -> LaterError:
        return self._timeout_error() if isinstance(error, TimeoutError) else translate(error)

    def _translate_all(self, answers: Sequence[Any]) -> list[Any]:
        return [_of_node(answer) if isinstance(answer, Exception) else answer for answer in answers]


def _of_node(answer: Exception) -> LaterError:
    """Return an error of one node: if it is away, takes no commands, or cannot serve, others may all the same."""
    error = translate(answer)
    if str(answer).startswith(WRITE_REFUSALS):
        return WriteRefused(str(error))
    if isinstance(error, StoreMismatch):
        return NodeDown(str(error))
    if type(error) is not StoreDown:
        return error
    return NodeDown(str(error), unknown=error.unknown)


def connect_client(
    settings: StoreSettings,
    clock: Clock,
    *,
    observer: Observer = lambda verb: lambda seconds: None,
    check: Check | None = None,
    count_failover: Callable[[], None] = lambda: None,
    note_jump: Callable[[float], None] = lambda seconds: None,
) -> StoreClient:
    """Return the client of a store, which need not be running yet.

    Raises:
        StoreMismatch: the URL is wrong, or a file that it names cannot be read.
    """
    try:
        cluster_url = split_cluster_url(settings.url)
        if cluster_url is not None:
            return ClusterClient(
                cluster_url,
                clock,
                timeout_s=settings.timeout_s,
                observer=observer,
                check=check,
                count_failover=count_failover,
                note_jump=note_jump,
            )
    except ValueError as error:
        raise StoreMismatch(f"--redis {mask_url(settings.url)}: {error}") from None
    redis = connect(settings.url, clock, settings.timeout_s, note_jump)
    return StoreClient(redis, clock, timeout_s=settings.timeout_s, observer=observer, check=check)


def is_cluster(url: str) -> bool:
    """Return True if a store's URL is that of a cluster."""
    return url.startswith(("redis+cluster://", "rediss+cluster://"))
