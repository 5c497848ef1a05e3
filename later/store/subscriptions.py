"""Subscriptions: connections on which the store sends what others publish.

On one server there is one. In a cluster each node sends what is published under the tags of its own shards, so there is
one connection to each node, whatever the number of shards; it follows the slots that move to another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import NoReturn

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from later.core.errors import LaterError
from later.store.client import StoreClient, translate
from later.store.connections import pack_command

log = structlog.get_logger("later.due_notices")

CHECK_EVERY_S = 5.0
"""How long a connection may be silent before the store is asked whether it is still there."""
RETRY_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses before a subscription is made again; the last one repeats."""
REGROUP_EVERY_S = 0.25
"""How often it is looked whether slots have moved to another node."""


class SlotMoved(LaterError):
    """Nobody's fault: another node has the slot of a channel now."""

    def __init__(self) -> None:
        super().__init__("a slot has moved to another node")


class Subscription:
    """A subscription to some channels, over one connection. In a cluster they are those of one node's shards.

    `on_text` is called with each text that is published there, `on_subscribed` after each connection was made: earlier
    texts were not received. `on_lost` is called after a connection has ended.
    """

    def __init__(
        self,
        client: StoreClient,
        channels: Sequence[bytes],
        *,
        on_text: Callable[[bytes], None],
        on_subscribed: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._channels = channels
        self._on_text = on_text
        self._on_subscribed = on_subscribed
        self._on_lost = on_lost
        self._verb, self._message = ("SSUBSCRIBE", b"smessage") if client.is_cluster else ("SUBSCRIBE", b"message")
        self._failures = 0

    async def keep(self) -> NoReturn:
        """Subscribe, and again whenever the connection fails, until cancelled."""
        while True:
            try:
                await self._listen_once()
            except SlotMoved as error:
                log.debug("due notices not heard", reason=str(error))
            except (RedisError, OSError, LaterError) as error:
                reason = error if isinstance(error, LaterError) else translate(error)
                if self._failures:
                    log.debug("due notices still not heard", reason=str(reason))
                else:
                    log.warning("due notices not heard", reason=str(reason))
            self._client.refresh_map()
            await asyncio.sleep(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
            self._failures += 1

    async def _listen_once(self) -> None:
        """Subscribe, and pass texts on until the connection fails, is silent, or a slot moves."""
        connection = self._client.new_connection(self._channels[0])
        try:
            async with asyncio.timeout(self._client.timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                # a command for each: channels of one command must be in one slot
                data = b"".join(pack_command((self._verb, channel)) for channel in self._channels)
                await connection.send_packed_command(data, check_health=False)
                for _ in self._channels:
                    await connection.read_response()
            self._failures = 0
            self._on_subscribed()
            while (answer := await self._read(connection)) is not None:
                if answer[0] == self._message:
                    self._on_text(answer[2])
                elif answer[0] == b"sunsubscribe":
                    raise SlotMoved
        finally:
            self._on_lost()
            await connection.disconnect(nowait=True)

    async def _read(self, connection: AbstractConnection) -> list[bytes] | None:
        """Return the next answer; None if the store does not answer any more."""
        answer: list[bytes] | None = await connection.read_response(timeout=CHECK_EVERY_S)
        if answer is None:
            await connection.send_command("PING", check_health=False)
            answer = await connection.read_response(timeout=self._client.timeout_s)
        return answer


class NodeSubscriptions:
    """Subscriptions to channels of all shards of a cluster, over one connection to each node that has some of them.

    `channels` returns them: which they are may be known only after the store was reached first.
    """

    def __init__(
        self,
        client: StoreClient,
        channels: Callable[[], Sequence[bytes]],
        subscribe: Callable[[Sequence[bytes]], Subscription],
    ) -> None:
        self._client = client
        self._channels = channels
        self._subscribe = subscribe
        self._kept: dict[Hashable, tuple[Sequence[bytes], asyncio.Task[NoReturn]]] = {}

    async def keep(self) -> NoReturn:
        """Keep them until cancelled, each with the node that has its slot."""
        try:
            while True:
                await self.regroup()
                await asyncio.sleep(REGROUP_EVERY_S)
        finally:
            await self._end([*self._kept])

    async def regroup(self) -> None:
        """End the subscriptions at nodes whose channels are others now, and begin those that are missing."""
        groups: dict[Hashable, list[bytes]] = {}
        for channel in self._channels():
            groups.setdefault(self._client.node_of(channel), []).append(channel)
        if groups.pop(None, None) is not None:  # nobody is known to serve these slots now
            self._client.refresh_map()
        await self._end([node for node, (channels, _) in self._kept.items() if groups.get(node) != channels])
        for node in groups.keys() - self._kept.keys():
            self._kept[node] = (groups[node], asyncio.create_task(self._subscribe(groups[node]).keep()))

    async def _end(self, nodes: Sequence[Hashable]) -> None:
        tasks = [self._kept.pop(node)[1] for node in nodes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
