"""Notices between processes that tasks of pulled topics are, or soon will be, due: PUBLISH and SUBSCRIBE.

In a cluster a notice goes to the shard of its task (SPUBLISH), because PUBLISH would send it to every node.

A claim that waits in one process learns at once of a task that was created in another. A notice may be lost, with a
connection or a failover, so nothing may depend on it: who waits also looks at its topics from time to time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import structlog

from later.core.errors import LaterError
from later.core.task import Task
from later.store.client import StoreClient
from later.store.keys import ItemGroup, Keys, Shard
from later.store.policies import PolicyBook
from later.store.scripts import Command
from later.store.subscriptions import NodeSubscriptions, Subscription

log = structlog.get_logger("later.due_notices")

NOTICE_AHEAD_MS = 60_000
"""Of tasks that are due later than this, nothing is published: no claim waits for so long."""


class DueNotices:
    """Sends notices, and receives those of other processes: `<due time in ms> <topic>`."""

    def __init__(self, client: StoreClient, keys: Keys, policies: PolicyBook) -> None:
        self._client = client
        self._keys = keys
        self._policies = policies
        self._own: Counter[bytes] = Counter()
        """Notices of this process that come back to it."""
        self._subscribed: set[bytes] = set()
        """The channels on which this process hears notices now."""

    def of(self, groups: Sequence[ItemGroup[Task]]) -> list[Command]:
        """Return the commands that send the notices of new tasks, by shard and topic: one for each pulled topic.

        Tasks without a callback are of such a topic, unless its policy names what is called for them.
        """
        due: dict[bytes, tuple[int, Shard]] = {}
        policies = self._policies.latest
        for (shard, topic), tasks, _ in groups:
            if not tasks[0].callback and not policies.for_topic(tasks[0].topic).called_by_default:
                due_at = min(task.execute_at for task in tasks)
                if due_at <= tasks[0].created_at + NOTICE_AHEAD_MS:
                    known = due.get(topic)
                    due[topic] = (due_at, shard) if known is None else (min(due_at, known[0]), known[1])
        return [self.command(topic, due_at, shard) for topic, (due_at, shard) in due.items()]

    def command(self, topic: bytes, due_at: int, shard: Shard) -> Command:
        """Return the command that sends a notice of a task in this shard."""
        command = self._publish(topic, due_at, shard)
        if command[1] in self._subscribed:
            self._own[command[2]] += 1
        return command

    def heard_command(self, topic: str, due_at: int, shard: Shard) -> Command:
        """Return the command that sends a notice which this process hears, too."""
        return self._publish(topic.encode(), due_at, shard)

    def _publish(self, topic: bytes, due_at: int, shard: Shard) -> tuple[str, bytes, bytes]:
        text = b"%d %s" % (due_at, topic)
        if self._client.is_cluster:
            return ("SPUBLISH", shard.due_notices, text)
        return ("PUBLISH", self._keys.due_notices, text)

    async def send(self, topics: Collection[str], due_at: int) -> None:
        """Send notices of tasks that were moved to delay, where they are due at `due_at` (ms), to this process, too.

        Nothing depends on a notice, so a failure is only logged.
        """
        commands = [self.heard_command(topic, due_at, self._keys.shard_of(topic)) for topic in topics]
        try:
            await self._client.execute_all("notice", commands)
        except LaterError as error:
            log.debug("due notices not sent", reason=str(error))

    async def listen(self, on_notice: Callable[[str, int], None], on_subscribed: Callable[[], None]) -> NoReturn:
        """Call `on_notice` with the topic and the due time (ms) of each notice of another process, until cancelled.

        `on_subscribed` is called after each connection was made: earlier notices were not received.
        """

        def subscribe(channels: Sequence[bytes]) -> Subscription:
            return Subscription(
                self._client,
                channels,
                on_text=lambda text: self._pass_on(text, on_notice),
                on_subscribed=lambda: self._note_subscribed(channels, on_subscribed),
                on_lost=lambda: self._subscribed.difference_update(channels),
            )

        if self._client.is_cluster:
            shards = self._keys.shards
            await NodeSubscriptions(self._client, lambda: [shard.due_notices for shard in shards], subscribe).keep()
        await subscribe([self._keys.due_notices]).keep()

    def _note_subscribed(self, channels: Sequence[bytes], on_subscribed: Callable[[], None]) -> None:
        self._own.clear()
        self._subscribed.update(channels)
        on_subscribed()

    def _pass_on(self, text: bytes, on_notice: Callable[[str, int], None]) -> None:
        if self._own[text] > 0:
            self._own[text] -= 1
            if not self._own[text]:
                del self._own[text]
            return
        due_at, _, topic = text.partition(b" ")
        if due_at.isdigit() and topic:
            on_notice(topic.decode("utf-8", "replace"), int(due_at))
