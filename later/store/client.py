"""The client: pipelines with a deadline, and redis-py's errors as later's own.

redis-py's own retries are off: it cannot know whether a command that failed was run, and only the caller of a verb
knows whether it may be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Hashable, Sequence
from functools import partial
from typing import Any

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from later.address_types import Address
from later.core.clock import Clock
from later.core.errors import STORE_FULL_REASON, LaterError, NodeDown, StoreDown, StoreFault, StoreFull
from later.store.away_tags import AwayTags
from later.store.connections import Connections, RoundTrip, UncheckedServer
from later.store.schema import Execute
from later.store.scripts import BY_SHA, Command
from later.store.sentinels import Sentinels

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

CUT_OFF = ("NOREPLICAS", "MASTERDOWN")
"""Those of a server that has lost its replicas, or its primary: another one may be the primary by now."""

IMPATIENT_VERBS = frozenset((
    "census", "due_schedules", "due_topics", "expire", "expiring", "explain", "heartbeat", "hold", "keys_since", "look",
    "notice", "permit", "ping", "policies", "read_history", "refresh", "release", "session_secret", "signing",
    "snapshot", "stats", "sweep", "time", "trim",
))  # fmt: skip
"""Verbs of loops, which come again soon, and of looks that take what is there: in a cluster they do not wait for a node
that is away."""

REPEATED_VERBS = frozenset(("claim", "give_back", "settle"))
"""Verbs that their callers repeat. In a cluster they wait for a node that is slow, because a claim whose answer is lost
would wait for the end of its lease; but not for one that is away, because those of other nodes are in the same call."""

READING_VERBS = frozenset((
    "audit_trail", "count", "dead", "due_schedules", "due_topics", "explain", "job", "list", "open", "ping", "policies",
    "query", "read", "read_history", "refresh", "schedules", "signing", "snapshot", "split", "stats",
))  # fmt: skip
"""Verbs that change nothing in the store: whether they were carried out does not matter."""

TAKES_NO_COMMANDS = "the store takes no commands: {error}"
NOT_PERMITTED = "the store refuses this user: {error}: give it the rules that deploy/redis.conf of this version has"
"""The reason if a user may not run a command, as after an upgrade to a version that needs another one."""
NOT_PERMITTED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't run this command")
"""How the store's error begins if the command is one of a script, in newer servers and in Redis 7.0."""

REASONS: list[tuple[tuple[type[Exception], ...], str]] = [
    ((errors.NoPermissionError,), NOT_PERMITTED),
    ((errors.AuthenticationError,), "the store refuses this user: {error}"),
    ((errors.BusyLoadingError,), "the store is loading its data"),
    ((errors.ReadOnlyError,), "the store is a read-only replica"),
    ((errors.ConnectionError, errors.TimeoutError, OSError), "the store cannot be reached: {error}"),
    ((errors.ClusterDownError, errors.TryAgainError, errors.NoScriptError), TAKES_NO_COMMANDS),
    ((errors.AskError,), "the cluster's nodes do not agree on who serves a slot: {error}"),
]
"""redis-py's errors that are not later's fault, and the reason to report; the first match counts."""


class LayoutChanged(StoreDown):
    """Nobody's fault: the store's data has other hash tags than was expected, which is known only now.

    Commands that were made before would write other keys. Those that are made now are right.
    """

    def __init__(self) -> None:
        super().__init__("the layout of the store's data was not known until now")


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
        self._layout_changes = 0
        """How often the check has found another layout than that which commands were made for."""
        self._checked: set[str] = set()
        """Run ids of the servers that have passed the check."""
        self.away_tags = AwayTags()
        if self._connections.sentinels is not None:
            self._connections.sentinels.on_failover.append(self._forget_checks)

    async def open(self) -> None:
        """Check the store, unless that has been done.

        Raises:
            StoreMismatch: the store cannot serve this configuration.
            StoreDown: the store cannot be asked.
        """
        await self._check_unless(lambda: bool(self._checked))

    @property
    def is_cluster(self) -> bool:
        """True if the store is a cluster, whose nodes have a part of the shards each."""
        return False

    def node_of(self, key: bytes) -> Hashable:
        """Return what tells the server of a key from others; None if there is only one, or if it is not known."""
        return None

    def is_away(self, key: bytes) -> bool:
        """Return True if the node of a cluster that has a key did not answer when it was asked last."""
        return False

    @property
    def is_any_away(self) -> bool:
        """True if any node did not answer when it was asked last, or any hash tag is away."""
        return bool(self.away_tags)

    def refresh_map(self) -> None:
        """Begin to read anew which node of a cluster has which shards."""

    def new_connection(self, key: bytes) -> AbstractConnection:
        """Return a connection of its own, not yet connected, to the server of a key, for listening."""
        return self._connections.new_listener()

    @property
    def max_connections(self) -> int:
        """How many connections this process opens to a server at most."""
        return self._connections.max_connections

    @property
    def sentinels(self) -> Sentinels | None:
        """The sentinels that name the primary; None if the store's address is fixed."""
        return self._connections.sentinels

    @property
    def server_changes(self) -> int:
        """How often commands went to another server than those before them.

        While it stays the same, no write was lost by a failover or a restart.
        """
        return self._connections.server_changes

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
        return raise_error(await self.execute_each(verb, commands))

    async def execute_available(self, verb: str, commands: Sequence[Command], missing: Any) -> list[Any]:
        """Return the commands' answers as `execute_all` does, with `missing` for each one whose node is away.

        Raises:
            StoreDown: as above, or the nodes of all commands are away.
        """
        return replace_missing(await self.execute_each(verb, commands), missing)

    async def execute_optional(self, verb: str, commands: Sequence[Command], missing: Any) -> list[Any]:
        """Return the commands' answers as `execute_available` does, also if the nodes of all of them are away.

        Those are a part of what is asked for, perhaps only that of one node.
        """
        answers = await self.execute_each(verb, commands)
        return raise_error([missing if isinstance(answer, NodeDown) else answer for answer in answers])

    async def execute_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers as `execute_all` does, and measure the store's time in the same round trip."""
        return raise_error(await self.execute_each_timed(verb, commands))

    async def execute_available_timed(self, verb: str, commands: Sequence[Command], missing: Any) -> list[Any]:
        """Return the commands' answers as `execute_available` does, and measure the store's time, too."""
        return replace_missing(await self.execute_each_timed(verb, commands), missing)

    async def execute_each_timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers as `execute_each` does, and measure the store's time in the same round trip.

        Raises:
            LaterError: the time could not be measured.
        """
        sent, wall_ahead = self._clock.monotonic(), self._clock.wall_ahead()
        time, *answers = await self.execute_each(verb, [("TIME",), *commands])
        seconds, micros = raise_error([time])[0]
        self._clock.observe(int(seconds) * 1_000_000 + int(micros), sent, self._clock.monotonic(), wall_ahead)
        return answers

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers, in order, from one round trip. A command that failed has its error as answer.

        Raises:
            StoreDown: there was no answer; whether the commands were run is not known.
        """
        return await self._execute_checked(verb, commands) if commands else []

    async def execute_waiting(self, verb: str, commands: Sequence[Command], wait_s: float) -> list[Any]:
        """Return answers as `execute_each` does. The commands wait in the store for `wait_s`, besides its timeout."""
        return await self._execute_checked(verb, commands, wait_s)

    async def execute_on_each_server(self, verb: str, commands: Sequence[Command]) -> list[tuple[str, list[Any]]]:
        """Return each server that takes writes, by its address, with its answers to commands that name no keys.

        A command that failed has its error as answer.

        Raises:
            StoreDown: there was no answer of any server.
        """
        return [(self._connections.address, await self.execute_each(verb, commands))]

    async def execute_at(self, verb: str, key: bytes, command: Command) -> Any:
        """Return the answer to a command that names no key, such as SCAN, of the server that has `key`.

        Raises:
            StoreDown: as `execute`.
        """
        return await self.execute(verb, command)

    async def aclose(self) -> None:
        await self._connections.aclose()
        await self._redis.aclose()

    async def _execute_checked(self, verb: str, commands: Sequence[Command], wait_s: float = 0.0) -> list[Any]:
        """Run commands on a server that has passed the check."""
        if self._check is None:
            return await self._execute(verb, commands, wait_s=wait_s)
        if not self._checked:
            await self._open_for_commands()
        try:
            return await self._execute(verb, commands, self._checked, wait_s)
        except UncheckedServer as error:
            found = error.run_id
        await self._connections.drop_all()  # those that are still open lead to the server before
        await self._check_unless(lambda: found in self._checked, {found})
        return await self._execute(verb, commands, self._checked, wait_s)

    async def _forget_checks(self, before: Address, now: Address) -> None:
        """Check the new primary, also if it was one before: its settings may have changed meanwhile."""
        self._checked.clear()

    async def _open_for_commands(self) -> None:
        """Check the store. Raises as `open` does, and LayoutChanged if the commands were made for another layout."""
        changes = self._layout_changes
        await self.open()
        if changes != self._layout_changes:
            raise LayoutChanged

    async def _check_unless(self, is_done: Callable[[], bool], servers: Container[str] | None = None) -> None:
        """Check one of some servers, by their run ids (None: any), unless that has been done."""
        try:
            async with asyncio.timeout(self.timeout_s), self._checking:  # within the timeout, as callers queue for it
                if self._check is not None and not is_done():
                    self._checked.add(await self._check(partial(self._execute, servers=servers)))
        except LayoutChanged:
            self._layout_changes += 1
            raise
        except TimeoutError:
            raise self._unsent_error() from None

    async def _execute(
        self, verb: str, commands: Sequence[Command], servers: Container[str] | None = None, wait_s: float = 0.0
    ) -> list[Any]:
        started = self._clock.monotonic()
        round_trip = RoundTrip(servers)
        try:
            async with asyncio.timeout(self.timeout_s + wait_s):
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
            await self._give_up_connections()
            if not round_trip.is_sent:
                raise self._unsent_error() from None
            raise self._timeout_error(verb not in READING_VERBS) from None
        except (errors.RedisError, OSError) as error:
            await self._give_up_connections()  # an event that ended one connection has often ended all
            raise translate(error, round_trip.is_sent and verb not in READING_VERBS) from error
        finally:
            self._observe(verb, self._clock.monotonic() - started)
        if self.away_tags or failed:
            self.away_tags.note(commands, answers)
        return await self._translate(answers, failed) if failed else answers

    async def _translate(self, answers: list[Any], failed: Sequence[int]) -> list[Any]:
        """Return the answers, of which some are errors, with later's own errors."""
        if any(isinstance(answer, errors.ReadOnlyError) for answer in answers):
            await self._give_up_connections()  # the server was demoted: a new connection may find the new primary
        elif any(str(answers[i]).startswith(CUT_OFF) for i in failed):
            self._connections.doubt_primary()
        return [translate(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def _observe(self, verb: str, seconds: float) -> None:
        if verb not in self._observers:
            self._observers[verb] = self._observer(verb)
        self._observers[verb](seconds)

    async def _give_up_connections(self) -> None:
        """Close idle connections, and look for the primary anew."""
        self._connections.doubt_primary()
        await self._connections.drop_idle()

    def _unsent_error(self) -> LaterError:
        """Return why a command could not be sent in time: the sentinels may have led to no primary."""
        why = self._connections.why_no_primary
        return self._timeout_error() if why is None else translate(why)

    def _timeout_error(self, unknown: bool = False) -> StoreDown:
        return StoreDown(f"the store did not answer within {self.timeout_s:g} s", unknown=unknown)


def raise_error(answers: list[Any]) -> list[Any]:
    """Raise the first error among answers, or return them."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers


def replace_missing(answers: list[Any], missing: Any) -> list[Any]:
    """Return the answers, with `missing` for each one whose node is away.

    Raises:
        StoreDown: the nodes of all are away.
        LaterError: the first error among the others.
    """
    if all(isinstance(answer, NodeDown) for answer in answers):
        return raise_error(answers)
    return raise_error([missing if isinstance(answer, NodeDown) else answer for answer in answers])


def translate(error: Exception, unknown: bool = False) -> LaterError:
    """Return redis-py's error as later's: `StoreDown` with the reason, or `StoreFault` if later itself is at fault.

    One that is later's already stays as it is.

    `unknown` is true if no answer came, and the commands may have been run all the same.
    """
    if isinstance(error, LaterError):
        return error
    if isinstance(error.__cause__, errors.RedisError):
        # redis-py wraps the errors of a new connection, such as a wrong password
        return translate(error.__cause__, unknown)
    if isinstance(error, errors.OutOfMemoryError):
        return StoreFull(STORE_FULL_REASON)
    for kinds, reason in REASONS:
        if isinstance(error, kinds):
            return StoreDown(reason.format(error=error), unknown=unknown)
    for starts, reason in ((NOT_PERMITTED_IN_SCRIPT, NOT_PERMITTED), (UNAVAILABLE, TAKES_NO_COMMANDS)):
        if str(error).startswith(starts):
            return StoreDown(reason.format(error=error))
    return StoreFault(f"the store answered an error: {error}")
