"""The source of claimed tasks: a daemon's API, or anything else that grants leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from later.client.answers import ClaimedTask
from later.core.errors import LaterError, LeaseLost
from later.core.lease import MAX_CLAIMED
from later.core.retry import Outcome, OutcomeKind, nack_of
from later.handlers.task import Task

if TYPE_CHECKING:
    from later.client.aio import AsyncClient

ANSWER_S = 0.1
"""How long a call for tasks is let be answered when a worker stops."""


class HandlerClaim(NamedTuple):
    """A task that is claimed for its handler, with its content and its lease."""

    task: Task[Any]
    content: str
    lease: str


class ClaimSource(Protocol):
    """A source of claimed tasks. Its methods raise LaterError if it is away."""

    lease_s: float
    """How long a lease lasts, unless it is extended."""

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        """Claim up to `limit` tasks of these topics; if none is due, wait for one up to `wait_s`.

        If it is cancelled, leases that it has got are given back.

        Raises:
            Conflict, NotAllowed: one of the topics is pushed, or not for this key. No task is claimed.
        """
        ...

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        """End a lease with the outcome of the attempt. Return False if the lease was lost: nothing has changed."""
        ...

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        """Let leases last `lease_s` from now on; return those that were lost."""
        ...

    async def give_back(self, lease: str) -> None:
        """End a lease without an attempt: the task is due at once, and the attempt does not count."""
        ...


class LeaseDeadline:
    """The deadline of a claimed task: the end of its lease, in seconds of the monotonic clock."""

    def __init__(self, source: ClaimSource, lease: str, claimed_at: float) -> None:
        self._source = source
        self._lease = lease
        self.ends_at = claimed_at + source.lease_s

    def time_left(self) -> float:
        return self.ends_at - time.monotonic()

    async def extend(self) -> None:
        asked_at = time.monotonic()
        if await self._source.extend([self._lease]):
            raise LeaseLost("the lease on this task has ended: others may have it")
        self.ends_at = asked_at + self._source.lease_s


class ApiClaims:
    """Claims over a daemon's API. `state` returns what the application's lifespan has made."""

    def __init__(self, client: AsyncClient, state: Callable[[], Any], lease_s: float = 30) -> None:
        self.lease_s = lease_s
        self._client = client
        self._state = state
        self._acks: list[tuple[str, asyncio.Future[bool]]] = []
        self._acking: asyncio.Task[None] | None = None

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        limit = min(limit, MAX_CLAIMED)
        call = asyncio.ensure_future(self._client.claim(topics, limit, lease=self.lease_s, wait=wait_s))
        try:
            tasks = await asyncio.shield(call)
        except asyncio.CancelledError:
            await self._give_back_claimed(call)
            raise
        return [self._to_claim(task, time.monotonic()) for task in tasks]

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        if outcome.kind is OutcomeKind.DONE:
            return await self._ack(lease)
        nack = nack_of(outcome)
        lost = await self._client.nack(
            [lease],
            delay=None if nack.delay_ms is None else nack.delay_ms / 1000,
            message=nack.message,
            reason=nack.reason,
            dead=nack.is_final,
            busy=nack.is_busy,
        )
        return not lost

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        lost: list[str] = []
        for start in range(0, len(leases), MAX_CLAIMED):
            lost += await self._client.extend(leases[start : start + MAX_CLAIMED], self.lease_s)
        return lost

    async def give_back(self, lease: str) -> None:
        await self._client.release([lease])

    async def _give_back_claimed(self, call: asyncio.Future[Sequence[ClaimedTask]]) -> None:
        """End a call for tasks that nobody takes any more. One that waits has none; others are about to be answered."""
        try:
            async with asyncio.timeout(ANSWER_S):
                tasks = await call
        except (LaterError, TimeoutError):
            return
        if tasks:
            with suppress(LaterError):  # they come again when their leases end
                await self._client.release([task.lease for task in tasks])

    async def _ack(self, lease: str) -> bool:
        """Ack a lease, together with those that come while an ack is under way."""
        acked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._acks.append((lease, acked))
        if self._acking is None:
            self._acking = asyncio.create_task(self._send_acks())
        return await acked

    async def _send_acks(self) -> None:
        while self._acks:
            sent, self._acks = self._acks[:MAX_CLAIMED], self._acks[MAX_CLAIMED:]
            try:
                lost = set(await self._client.ack([lease for lease, _ in sent]))
            except Exception as error:
                for _, acked in sent:
                    if not acked.done():
                        acked.set_exception(error)
                continue
            for lease, acked in sent:
                if not acked.done():
                    acked.set_result(lease not in lost)
        self._acking = None

    def _to_claim(self, task: ClaimedTask, claimed_at: float) -> HandlerClaim:
        view: Task[Any] = Task(
            id=task.id,
            topic=task.topic,
            attempt=task.attempt,
            due_at=task.due_at,
            created_at=task.created_at,
            failures=task.failures,
            retries_left=max(task.max_retry - task.failures, 0),
            context=task.context or {},
            headers={name.lower(): value for name, value in task.headers.items()},
            state=self._state(),
            deadline=LeaseDeadline(self, task.lease, claimed_at),
        )
        return HandlerClaim(view, task.content, task.lease)
