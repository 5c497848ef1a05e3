"""The wire to a cluster: one pipeline to each node, all nodes at the same time, and redirects followed.

A command that a node refused (MOVED, ASK, TRYAGAIN, …) was not carried out, so it is sent again. One whose connection
was lost, or that was not answered in time, may have been: it is never sent again here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from later.address_types import Address
from later.core.errors import LaterError, StoreDown, StoreMismatch
from later.core.hash_slots import key_slot
from later.store.cluster_map import READ_WHILE_AWAY_S, ClusterMap
from later.store.connections import RoundTrip
from later.store.node import Node
from later.store.scripts import BY_SHA, Command
from later.store.slot_map import SlotMap, command_slot, node_address

TRY_AGAIN_S = 0.02
"""Pause before a command is sent again of whose keys some have moved, and some have not."""
RETRY_S = (0.05, 0.1)
"""Pause before a command is sent again whose node serves nobody for now: between these."""
MOST_REDIRECTS = 5
"""Redirects of a call that are followed at once. Nodes that disagree could send a command to and fro."""

_NOT_CARRIED_OUT = (
    errors.AskError,  # and MovedError
    errors.TryAgainError,
    errors.ClusterDownError,  # and MasterDownError
    errors.ReadOnlyError,
    errors.BusyLoadingError,
    errors.NoScriptError,
)
"""Answers of a node that has refused a command: it may be sent again."""
_REDIRECTS = (errors.AskError, errors.NoScriptError)
"""Those after which it may be sent at once."""
_REFUSED_USER = (errors.AuthenticationError, errors.NoPermissionError)
_ASKING: Command = ("ASKING",)


class Patience(msgspec.Struct, frozen=True):
    """How long (s, by the event loop's clock) a call may take.

    Nothing is tried again after `tries_until`, but redirects are followed then, too. Answers are waited for until
    `ends_at`. With `late_s`, the call is impatient: it does not pause before another try, does not ask nodes that are
    away, and waits so long at most after the first node's answers for those of others. `lost` makes the answer to a
    command that may have been carried out.
    """

    tries_until: float
    ends_at: float
    lost: Callable[[Exception], LaterError]
    late_s: float | None = None


class _ClusterCall(msgspec.Struct):
    """Commands, their slots (None: any), and their answers so far."""

    commands: Sequence[Command]
    slots: Sequence[int | None]
    patience: Patience
    answers: list[Any]


class _NodeCommands(msgspec.Struct):
    """Those commands of a call, by position, that go to one node.

    `asks` is true for commands to a slot that the node is about to get, `loads` for scripts that it does not know.
    """

    node: Address
    positions: Sequence[int]
    asks: bool = False
    loads: bool = False


class Nodes:
    """The nodes of a cluster. With `checks`, each server is checked before the first command to it.

    `on_map` is called with the map before, if there is one, and each new one, before that is used.
    """

    def __init__(
        self,
        seeds: Iterable[Address],
        new_redis: Callable[[Address], Redis],
        on_map: Callable[[SlotMap | None, SlotMap], Awaitable[None]],
        *,
        uses_tls: bool,
        checks: bool = False,
    ) -> None:
        self._new_redis = new_redis
        self._on_map = on_map
        self.checks = checks
        self._nodes: dict[Address, Node] = {}
        self.map = ClusterMap(seeds, self._ask_for_map, self._use_map, uses_tls=uses_tls)

    async def execute(
        self, commands: Sequence[Command], patience: Patience, slots: Sequence[int | None] | None = None
    ) -> list[Any]:
        """Return each command's answer, or the error that is its answer, in order.

        Raises:
            RedisError, OSError, TimeoutError: no node could be asked.
            StoreMismatch: the server is not in a cluster.
        """
        await self.know_map(patience)
        call = _ClusterCall(
            commands, slots or [command_slot(command) for command in commands], patience, [None] * len(commands)
        )
        parts = self._split(call, range(len(commands)))
        if len(parts) == 1:
            await self._carry_out(call, parts[0])
        elif patience.late_s is None:
            await asyncio.gather(*(self._carry_out(call, part) for part in parts))
        else:
            await self._carry_out_impatiently(call, parts, patience.late_s)
        return call.answers

    async def execute_on_each(self, commands: Sequence[Command], patience: Patience) -> list[tuple[Address, list[Any]]]:
        """Return each primary with its answers to the commands, which name no keys. Raises as `execute` does."""
        await self.know_map(patience)
        calls = [
            (node, _ClusterCall(commands, [None] * len(commands), patience, [None] * len(commands)))
            for node in self.map.primaries
        ]
        everything = range(len(commands))
        await asyncio.gather(*(self._send(call, _NodeCommands(node, everything)) for node, call in calls))
        return [(node, call.answers) for node, call in calls]

    def node_of(self, key: bytes) -> Address | None:
        """Return the node that serves a key; None if it is not known, or not yet."""
        if self.map.current is None:
            self.map.start_reading()
            return None
        return self.map.owners[key_slot(key)]

    def is_away(self, key: bytes) -> bool:
        """Return True if the node that serves a key did not answer when it was asked last."""
        owner = self.node_of(key)
        return owner is not None and self._node(owner).is_away

    @property
    def is_any_away(self) -> bool:
        """True if any node that serves slots did not answer when it was asked last."""
        return self.map.current is not None and any(self._node(address).is_away for address in self.map.primaries)

    @property
    def are_all_away(self) -> bool:
        """True if no node that serves slots answered when it was asked last."""
        return all(self._node(address).is_away for address in self.map.primaries)

    def new_listener(self, key: bytes) -> AbstractConnection:
        """Return a connection of its own, not yet connected, to the node that serves a key. Raises StoreDown."""
        owner = self.node_of(key)
        if owner is None:
            raise StoreDown("which node serves a slot is not known")
        return self._node(owner).connections.new_listener()

    async def ask_time(self, address: Address) -> tuple[bytes, bytes]:
        """Return a node's answer to TIME. If there is none, the map is read: another one may have its slots.

        Raises:
            RedisError, OSError: the node does not answer.
        """
        try:
            answer = (await self._ask_for_map(address, (("TIME",),)))[0]
        except BaseException:
            self.map.start_reading()
            raise
        if isinstance(answer, Exception):
            raise answer
        seconds, micros = answer
        return seconds, micros

    async def aclose(self) -> None:
        """Close all connections, also those that are opened from now on."""
        await self.map.aclose()
        for node in list(self._nodes.values()):
            await node.connections.aclose()

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(self._new_redis(address))
        return node

    # The map

    async def know_map(self, patience: Patience) -> None:
        if self.map.current is None:
            async with asyncio.timeout_at(patience.ends_at):
                await self.map.read()
        else:
            self.map.read_if_old()

    async def _ask_for_map(self, address: Address, commands: tuple[Command, ...]) -> list[Any]:
        node = self._node(address)
        try:
            answers = await node.connections.pipeline(commands, RoundTrip())
        except BaseException:
            node.is_away = True
            raise
        node.is_away = False
        return answers

    async def _use_map(self, newest: SlotMap) -> None:
        """Check nodes anew that become primaries, and close the connections to those that have left."""
        before = self.map.current
        for address in newest.primaries:
            if before is not None and address not in before.primaries:
                self._node(address).checked.clear()
        for address in self._nodes.keys() - set(newest.nodes):
            await self._nodes.pop(address).connections.aclose()
        await self._on_map(before, newest)

    def _split(self, call: _ClusterCall, positions: Iterable[int]) -> list[_NodeCommands]:
        """Return the commands at some positions by the nodes that serve their slots."""
        by_node: dict[Address, list[int]] = {}
        anywhere: list[int] = []
        owners, slots = self.map.owners, call.slots
        for position in positions:
            slot = slots[position]
            node = None if slot is None else owners[slot]
            if node is None:
                anywhere.append(position)
            else:
                by_node.setdefault(node, []).append(position)
        if anywhere:
            by_node.setdefault(next(iter(by_node), None) or self._any_primary(), []).extend(anywhere)
        return [_NodeCommands(node, at) for node, at in by_node.items()]

    def _any_primary(self) -> Address:
        primaries = self.map.primaries
        return next((address for address in primaries if not self._node(address).is_away), primaries[0])

    # Commands

    async def _carry_out_impatiently(self, call: _ClusterCall, parts: Sequence[_NodeCommands], late_s: float) -> None:
        """Do not wait much longer for one node than for the first one: the others' commands are answered then."""
        tasks = {asyncio.create_task(self._carry_out(call, part)): part for part in parts}
        try:
            late = set(tasks)
            is_first = True
            while late and is_first:  # one that is away is no measure of how long others may take
                done, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
                is_first = all(self._node(tasks[task].node).is_away for task in done)
            if late:
                _, late = await asyncio.wait(late, timeout=late_s)
        except BaseException:
            late = set(tasks)
            raise
        finally:
            for task in late:
                task.cancel()
        if late:
            await asyncio.wait(late)
            self.map.start_reading()
        for task, part in tasks.items():
            if task.cancelled():
                self._node(part.node).is_away = True
                error = call.patience.lost(errors.TimeoutError(f"{part.node} answers later than others"))
                for position in part.positions:
                    call.answers[position] = error
            else:
                task.result()

    async def _carry_out(self, call: _ClusterCall, part: _NodeCommands) -> None:
        """Send commands, and send those again that were refused, to the nodes that they should go to."""
        redirects = 0
        parts = [part]
        while parts:
            refused = [
                (answered, position)
                for answered, positions in zip(parts, await self._send_all(call, parts), strict=True)
                for position in positions
            ]
            redirects += any(isinstance(call.answers[position], _REDIRECTS) for _, position in refused)
            parts = await self._parts_after(call, refused, redirects) if refused else []

    async def _send_all(self, call: _ClusterCall, parts: Sequence[_NodeCommands]) -> list[list[int]]:
        if len(parts) == 1:
            return [await self._send(call, parts[0])]
        return await asyncio.gather(*(self._send(call, part) for part in parts))

    async def _parts_after(
        self, call: _ClusterCall, refused: Sequence[tuple[_NodeCommands, int]], redirects: int
    ) -> list[_NodeCommands]:
        """Wait as long as the answers to refused commands ask for, and return where they go next.

        Those that need a pause go nowhere if it is too late for that. Redirects are followed all the same: the last try
        may find a node that has just become the primary, and does not know the script.
        """
        named: dict[tuple[Address, bool, bool], list[int]] = {}
        moved: list[int] = []
        delayed: list[int] = []
        is_to_and_fro = redirects > MOST_REDIRECTS
        pause, needs_map = TRY_AGAIN_S if is_to_and_fro else 0.0, False
        for part, position in refused:
            answer = call.answers[position]
            if isinstance(answer, errors.NoScriptError):  # which has changed nothing
                named.setdefault((part.node, part.asks, True), []).append(position)
            elif isinstance(answer, errors.MovedError):  # of which redis-py makes a kind of AskError
                self._note_moved(call.slots[position], node_address(answer.host, answer.port, part.node))
                moved.append(position)
            elif isinstance(answer, errors.AskError):
                target = node_address(answer.host, answer.port, part.node)
                named.setdefault((target, True, False), []).append(position)
            else:
                is_split = isinstance(answer, errors.TryAgainError)
                pause = max(pause, TRY_AGAIN_S if is_split else random.uniform(*RETRY_S))
                needs_map = needs_map or not is_split
                delayed.append(position)
        is_patient, latest = call.patience.late_s is None, call.patience.tries_until
        if pause and not (is_patient and asyncio.get_running_loop().time() + pause < latest):
            if is_to_and_fro:
                return []
            delayed, pause, needs_map = [], 0.0, False
        if pause:
            await asyncio.sleep(pause)
        if needs_map:
            await self._read_map_until(latest)
        return [
            *self._split(call, [*moved, *delayed]),
            *(_NodeCommands(node, at, asks, loads) for (node, asks, loads), at in named.items()),
        ]

    def _note_moved(self, slot: int | None, owner: Address) -> None:
        if slot is not None:
            self.map.note_moved(slot, owner)

    async def _read_map_until(self, latest: float) -> None:
        """Read the map. If that fails, the one that is known is used on."""
        with suppress(errors.RedisError, OSError, TimeoutError, StoreMismatch):
            async with asyncio.timeout_at(latest):
                await self.map.read()

    async def _send(self, call: _ClusterCall, part: _NodeCommands) -> list[int]:
        """Send commands to a node, and note the answers. Return the positions of those that may be sent again."""
        node = self._node(part.node)
        if node.is_away and call.patience.late_s is not None:
            self.map.read_if_old(READ_WHILE_AWAY_S)
            return self._answer_all(call, part, StoreDown(f"{part.node} is away"))
        round_trip = RoundTrip(node.checked if self.checks else None)
        try:
            async with asyncio.timeout_at(call.patience.ends_at):
                got = await node.pipeline(self._commands_of(call, part), round_trip)
        except StoreMismatch as error:
            node.note_unfit(part.node, str(error))
            return self._answer_all(call, part, StoreMismatch(f"{part.node}: {error}"))
        except LaterError as error:
            return self._answer_all(call, part, error)
        except (errors.RedisError, OSError, TimeoutError) as error:
            return await self._answer_failure(call, part, error, round_trip)
        node.is_away = False
        if part.loads or part.asks:
            got = got[-len(part.positions) * (1 + part.asks) :][part.asks :: 1 + part.asks]
        again: list[int] = []
        for position, answer in zip(part.positions, got, strict=True):
            call.answers[position] = answer
            if isinstance(answer, Exception) and isinstance(answer, _NOT_CARRIED_OUT):
                again.append(position)
        return again

    def _commands_of(self, call: _ClusterCall, part: _NodeCommands) -> list[Command]:
        commands = [call.commands[position] for position in part.positions]
        if not part.asks and not part.loads:
            return commands
        sources = {BY_SHA[str(command[1])].source for command in commands} if part.loads else ()
        sent = [two for command in commands for two in (_ASKING, command)] if part.asks else commands
        return [*(("SCRIPT", "LOAD", source) for source in sources), *sent]

    async def _answer_failure(
        self, call: _ClusterCall, part: _NodeCommands, error: Exception, round_trip: RoundTrip
    ) -> list[int]:
        """Answer commands to which no answer came. Return the positions of those that may be sent again."""
        if isinstance(error, errors.ReadOnlyError):  # the check has found a replica
            self._answer_all(call, part, error)
            return list(part.positions)
        node = self._node(part.node)
        node.is_away = True
        self.map.start_reading()
        await node.connections.drop_idle()  # an event that ended one connection has often ended all
        if isinstance(error, TimeoutError):
            error = errors.TimeoutError(f"{part.node} does not answer in time")
        if round_trip.is_sent:
            return self._answer_all(call, part, call.patience.lost(error))
        self._answer_all(call, part, error)
        return [] if is_refused_user(error) else list(part.positions)

    def _answer_all(self, call: _ClusterCall, part: _NodeCommands, answer: Exception) -> list[int]:
        """Give all commands of a part the same answer. Return the positions to send again: none."""
        for position in part.positions:
            call.answers[position] = answer
        return []


def is_refused_user(error: BaseException) -> bool:
    """Return True if the store refuses this user. redis-py wraps the errors of a new connection."""
    cause = error.__cause__
    return isinstance(error, _REFUSED_USER) or (isinstance(cause, errors.RedisError) and is_refused_user(cause))
