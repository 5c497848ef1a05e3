"""Notices between processes that tasks of pulled topics are, or soon will be, due: PUBLISH and SUBSCRIBE.

A claim that waits in one process learns at once of a task that was created in another. A notice may be lost, with a
connection or a failover, so nothing may depend on it: who waits also looks at its topics from time to time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from later.core.errors import LaterError
from later.core.task import Task
from later.store.client import StoreClient, translate
from later.store.keys import ItemGroup, Keys
from later.store.policies import PolicyBook
from later.store.scripts import Command

log = structlog.get_logger("later.due_notices")

NOTICE_AHEAD_MS = 60_000
"""Of tasks that are due later than this, nothing is published: no claim waits for so long."""
CHECK_EVERY_S = 5.0
"""How long a connection may be silent before the store is asked whether it is still there."""
RETRY_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses before the subscription is made again; the last one repeats."""


class DueNotices:
    """Sends notices, and receives those of other processes: `<due time in ms> <topic>`."""

    def __init__(self, client: StoreClient, keys: Keys, policies: PolicyBook) -> None:
        self._client = client
        self._channel = keys.due_notices
        self._policies = policies
        self._own: Counter[bytes] = Counter()
        """Notices of this process that come back to it."""
        self._is_subscribed = False

    def of(self, groups: Sequence[ItemGroup[Task]]) -> list[Command]:
        """Return the commands that send the notices of new tasks, by shard and topic: one for each pulled topic.

        Tasks without a callback are of such a topic, unless its policy names what is called for them.
        """
        due: dict[bytes, int] = {}
        policies = self._policies.latest
        for (_, topic), tasks, _ in groups:
            if not tasks[0].callback and not policies.for_topic(tasks[0].topic).called_by_default:
                due_at = min(task.execute_at for task in tasks)
                if due_at <= tasks[0].created_at + NOTICE_AHEAD_MS:
                    due[topic] = min(due_at, due.get(topic, due_at))
        return [self.command(topic, due_at) for topic, due_at in due.items()]

    def command(self, topic: bytes, due_at: int) -> Command:
        """Return the command that sends a notice."""
        text = b"%d %s" % (due_at, topic)
        if self._is_subscribed:
            self._own[text] += 1
        return ("PUBLISH", self._channel, text)

    def heard_command(self, topic: str, due_at: int) -> Command:
        """Return the command that sends a notice which this process hears, too."""
        return ("PUBLISH", self._channel, b"%d %s" % (due_at, topic.encode()))

    async def send(self, topics: Collection[str], due_at: int) -> None:
        """Send notices of tasks that were moved to delay, where they are due at `due_at` (ms), to this process, too.

        Nothing depends on a notice, so a failure is only logged.
        """
        try:
            await self._client.execute_all("notice", [self.heard_command(topic, due_at) for topic in topics])
        except LaterError as error:
            log.debug("due notices not sent", reason=str(error))

    async def listen(self, on_notice: Callable[[str, int], None], on_subscribed: Callable[[], None]) -> NoReturn:
        """Call `on_notice` with the topic and the due time (ms) of each notice of another process, until cancelled.

        `on_subscribed` is called after each connection was made: earlier notices were not received.
        """
        failures = 0

        def note_success() -> None:
            nonlocal failures
            failures = 0
            on_subscribed()

        while True:
            try:
                await self._listen_once(on_notice, note_success)
            except (RedisError, OSError, LaterError) as error:
                reason = error if isinstance(error, LaterError) else translate(error)
                if failures:
                    log.debug("due notices still not heard", reason=str(reason))
                else:
                    log.warning("due notices not heard", reason=str(reason))
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _listen_once(self, on_notice: Callable[[str, int], None], on_subscribed: Callable[[], None]) -> None:
        """Subscribe, and pass notices on until the connection fails or is silent."""
        connection = self._client.new_connection()
        try:
            async with asyncio.timeout(self._client.timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                await connection.send_command("SUBSCRIBE", self._channel, check_health=False)
                await connection.read_response()
            self._own.clear()
            self._is_subscribed = True
            on_subscribed()
            while (answer := await self._read(connection)) is not None:
                if answer[0] == b"message":
                    self._pass_on(answer[2], on_notice)
        finally:
            self._is_subscribed = False
            await connection.disconnect(nowait=True)

    async def _read(self, connection: AbstractConnection) -> list[bytes] | None:
        """Return the next answer; None if the store does not answer any more."""
        answer: list[bytes] | None = await connection.read_response(timeout=CHECK_EVERY_S)
        if answer is None:
            await connection.send_command("PING", check_health=False)
            answer = await connection.read_response(timeout=self._client.timeout_s)
        return answer

    def _pass_on(self, text: bytes, on_notice: Callable[[str, int], None]) -> None:
        if self._own[text] > 0:
            self._own[text] -= 1
            if not self._own[text]:
                del self._own[text]
            return
        due_at, _, topic = text.partition(b" ")
        if due_at.isdigit() and topic:
            on_notice(topic.decode("utf-8", "replace"), int(due_at))
