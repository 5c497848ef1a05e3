"""Claims of an application from a store that is open in its process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from later.api.claim_requests import WantedTasks
from later.api.leases import lost_tokens
from later.core.errors import LaterError, PushedTopic, StoreDown, Unavailable
from later.core.lease import MAX_CLAIMED, Lease, decode_lease
from later.core.retry import Outcome, OutcomeKind, nack_of
from later.core.task import headers_of_claim
from later.handlers.task import Task
from later.in_process.local_daemon import LocalDaemon
from later.puller.claim_source import HandlerClaim, LeaseDeadline
from later.store.pull_plan import PulledTask


class LeaseToken(str):
    """The token of a lease that this process holds. It has the lease itself, so that nothing is decoded at its end."""

    __slots__ = ("lease",)
    lease: Lease

    @classmethod
    def of(cls, lease: Lease) -> LeaseToken:
        token = cls(f"{lease.fence}/{lease.id}")
        token.lease = lease
        return token


class LocalClaims:
    """Claims with leases of `lease_s`. `daemon` returns what is open, or opens it; `pull` is as in `EmbeddedLater`.

    `state` returns what the application's lifespan has made.
    """

    def __init__(
        self,
        daemon: Callable[[], Awaitable[LocalDaemon]],
        pull: Callable[[Sequence[str]], Awaitable[None]],
        state: Callable[[], Any],
        lease_s: float,
    ) -> None:
        self.lease_s = lease_s
        self._daemon = daemon
        self._pull = pull
        self._state = state

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        most = min(limit, MAX_CLAIMED)
        wanted = WantedTasks(dict.fromkeys(topics, most), most, int(self.lease_s * 1000), wait_s)
        with _unavailable():
            daemon = await self._daemon()
            daemon.note_claims(topics)
            try:
                tasks = await _claim(daemon, wanted)
            except PushedTopic:
                await self._pull(topics)
                tasks = await _claim(daemon, wanted)
        claimed_at, state = time.monotonic(), self._state()
        daemon.claims.count_claimed(tasks)
        return [self._to_claim(pulled, claimed_at, state) for pulled in tasks]

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        leases = {lease: _lease_of(lease)}
        with _unavailable():
            daemon = await self._daemon()
            if outcome.kind is OutcomeKind.DONE:
                answers = await daemon.claims.leases.ack_leases(leases)
            else:
                answers = await daemon.claims.leases.nack_leases(leases, {lease: nack_of(outcome)})
            return not lost_tokens([lease], leases, answers)

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        by_token = {token: _lease_of(token) for token in leases}
        with _unavailable():
            daemon = await self._daemon()
            return await daemon.claims.leases.extend_leases(leases, by_token, int(self.lease_s * 1000))

    async def give_back(self, lease: str) -> None:
        leases = {lease: _lease_of(lease)}
        with _unavailable():
            daemon = await self._daemon()
            lost_tokens([lease], leases, await daemon.claims.leases.release_leases(leases))

    def _to_claim(self, pulled: PulledTask, claimed_at: float, state: Any) -> HandlerClaim:
        task, failures = pulled.task, 0 if pulled.failure is None else pulled.failure.failures
        token = LeaseToken.of(pulled.lease)
        view: Task[Any] = Task(
            id=task.id,
            topic=task.topic,
            attempt=pulled.attempt,
            due_at=_to_datetime(pulled.due_at),
            created_at=_to_datetime(task.created_at),
            failures=failures,
            retries_left=max(task.max_retry - failures, 0),
            context=task.context or {},
            headers={name.lower(): value for name, value in headers_of_claim(task).items()},
            state=state,
            deadline=LeaseDeadline(self, token, claimed_at),
        )
        return HandlerClaim(view, task.content, token)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raise Unavailable for a store that is away: it is to a worker what a daemon is that does not answer."""
    try:
        yield
    except StoreDown as error:
        raise Unavailable(str(error), unknown=error.unknown) from error


async def _claim(daemon: LocalDaemon, wanted: WantedTasks) -> Sequence[PulledTask]:
    """Claim tasks, or wait for them. If it is cancelled, what it has got is given back.

    Raises:
        LaterError: a topic's tasks are not claimed, or the store is away.
    """
    wait = _Wait()
    call = asyncio.ensure_future(daemon.claims.claim_tasks(wanted, wait.watch))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        wait.end()
        with suppress(LaterError):  # they come again when their leases end
            leases: dict[str, Lease] = {LeaseToken.of(pulled.lease): pulled.lease for pulled in await call}
            await daemon.claims.leases.release_leases(leases)
        raise


class _Wait:
    """The wait of a claim, which may end before it has begun."""

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = None
        self._is_over = False

    @contextmanager
    def watch(self, end: Callable[[], None]) -> Iterator[None]:
        """Run a block that `end` ends."""
        self._end = end
        if self._is_over:
            end()
        yield

    def end(self) -> None:
        self._is_over = True
        if self._end is not None:
            self._end()


def _lease_of(token: str) -> Lease:
    """Return the lease of a token, which may also be one of the API's. Raises Refused: it is none."""
    return token.lease if isinstance(token, LeaseToken) else decode_lease(token)


def _to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
