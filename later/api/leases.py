"""The calls by which consumers say what has become of the tasks that they claimed: ack, nack, release and extend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import structlog
from aiohttp import web

from later.api.authorization import CALLER, Authorization
from later.api.batch import MAX_BATCH_BYTES
from later.api.claim_requests import (
    check_tokens,
    parse_extend_body,
    parse_lease_ms,
    parse_leases_body,
    parse_nack,
    parse_nack_body,
)
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.requests import read_body
from later.api.response_schemas import AckResponse, ExtendResponse, NackResponse, ReleaseResponse
from later.core.errors import LaterError, unknown_after
from later.core.lease import Lease, decode_lease
from later.core.policy_scopes import namespace_from_topic
from later.core.retry import Nack, SettleTarget, Verdict
from later.metrics import Metrics
from later.store.group_commit import NodeGroups
from later.store.open import Store
from later.store.pull_plan import PullResult
from later.store.pulls import LeaseNack

LEASE_BYTES = 800
"""The size of a lease in a group commit: 10,000 of them are a group of their own."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Leases = Mapping[str, Lease]
"""Leases of the caller's namespace, by their tokens."""

log = structlog.get_logger("later.claims")


class LeaseHandlers:
    """Handlers of calls that name leases. `signal` is called with the topic and due time (ms) of a task given back.

    `random` in [0, 1) is for the jitter of pauses.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        authorization: Authorization,
        pending_writes: PendingWrites,
        signal: Callable[[str, int], None],
        random: Callable[[], float],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._authorization = authorization
        self._pending_writes = pending_writes
        self._signal = signal
        self._random = random
        timeout_s = store.client.timeout_s
        node_of = store.away_shards.node_of
        self._ack = NodeGroups(flattened(self._ack_group), lambda some: node_of(some[0].id), queue_timeout_s=timeout_s)
        self._nack = NodeGroups(
            flattened(self._nack_group), lambda some: node_of(some[0].lease.id), queue_timeout_s=timeout_s
        )
        self._release = NodeGroups(
            flattened(self._release_group), lambda some: node_of(some[0].id), queue_timeout_s=timeout_s
        )

    async def ack(self, request: web.Request) -> web.StreamResponse:
        """`POST /ack`."""
        tokens = check_tokens(parse_leases_body(await read_body(request, MAX_BATCH_BYTES)).leases)
        leases = self._admit(request, tokens)
        lost = lost_tokens(tokens, leases, await self.ack_leases(leases))
        return json_response(AckResponse(acked=len(tokens) - len(lost), lost=lost))

    async def nack(self, request: web.Request) -> web.StreamResponse:
        """`POST /nack`."""
        body = parse_nack_body(await read_body(request, MAX_BATCH_BYTES))
        tokens, nack = check_tokens(body.leases), parse_nack(body)
        leases = self._admit(request, tokens)
        lost = lost_tokens(tokens, leases, await self.nack_leases(leases, dict.fromkeys(tokens, nack)))
        return json_response(NackResponse(nacked=len(tokens) - len(lost), lost=lost))

    async def release(self, request: web.Request) -> web.StreamResponse:
        """`POST /release`."""
        tokens = check_tokens(parse_leases_body(await read_body(request, MAX_BATCH_BYTES)).leases)
        leases = self._admit(request, tokens)
        lost = lost_tokens(tokens, leases, await self.release_leases(leases))
        return json_response(ReleaseResponse(released=len(tokens) - len(lost), lost=lost))

    async def extend(self, request: web.Request) -> web.StreamResponse:
        """`POST /extend`."""
        body = parse_extend_body(await read_body(request, MAX_BATCH_BYTES))
        tokens = check_tokens(body.leases)
        lease_ms = None if body.lease is None else parse_lease_ms(body.lease)
        leases = self._admit(request, tokens)
        lost = await self.extend_leases(tokens, leases, lease_ms)
        return json_response(ExtendResponse(extended=len(tokens) - len(lost), lost=lost))

    # For claims that bring the tasks that are done or failed, and for callers in this process

    async def ack_leases(self, leases: Leases) -> Sequence[bool | LaterError]:
        """Remove the tasks of these leases. Raises TooManyWaiting or StoreDown."""
        return await self._commit(self._ack, [*leases.values()])

    async def nack_leases(self, leases: Leases, nacks: Mapping[str, Nack]) -> Sequence[bool | LaterError]:
        """Let the tasks of these leases wait for their next attempt, or die. Raises TooManyWaiting or StoreDown."""
        return await self._commit(self._nack, [LeaseNack(lease, nacks[token]) for token, lease in leases.items()])

    async def release_leases(self, leases: Leases) -> Sequence[bool | LaterError]:
        """Give the tasks of these leases back. Raises TooManyWaiting or StoreDown."""
        return await self._commit(self._release, [*leases.values()])

    async def extend_leases(self, tokens: Sequence[str], leases: Leases, lease_ms: int | None) -> list[str]:
        """Extend leases by what was asked for, or else by what the policies of their topics say; return the lost.

        Raises:
            LaterError: that of one of them, TooManyWaiting or StoreDown.
        """
        with self._pending_writes.reserve(len(leases)):
            policies, now = await self._store.policies.current(), await self._store.time.now()
            by_length: defaultdict[int, dict[str, Lease]] = defaultdict(dict)
            for token, lease in leases.items():
                by_length[lease_ms or policies.for_topic(lease.topic).claim_lease_ms][token] = lease
            answers: dict[str, bool | LaterError] = {}
            for length_ms, some in by_length.items():
                extended = await self._store.pulls.extend([*some.values()], now.low + length_ms)
                answers |= zip(some, extended, strict=True)
        lost = lost_tokens(tokens, leases, [answers[token] for token in leases])
        self._metrics.consumers.extended.inc(len(tokens) - len(lost))
        return lost

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Give tasks back that nobody takes, without waiting for it. Where the store is away, their leases end."""
        if not leases:
            return
        answer = self._release(leases, LEASE_BYTES * len(leases))
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    def _admit(self, request: web.Request, tokens: Sequence[str]) -> Leases:
        """Return the caller's leases of these tokens, and take them from the rate of its key.

        Raises:
            Refused: a token is none.
        """
        leases = own_leases(request, tokens)
        self._authorization.charge_claimed(request[CALLER], len(tokens))
        return leases

    async def _commit(
        self, group: NodeGroups[Sequence[Item], Sequence[bool | LaterError]], items: Sequence[Item]
    ) -> Sequence[bool | LaterError]:
        """Write a request's items with those of others. Raises TooManyWaiting or StoreDown."""
        if not items:
            return []
        with self._pending_writes.reserve(len(items)):
            return await group(items, LEASE_BYTES * len(items))

    # Groups of requests

    async def _ack_group(self, leases: Sequence[Lease]) -> Sequence[bool | LaterError]:
        await self._store.policies.current()  # they say what an end makes, and how long its id is remembered
        now = await self._store.time.now()
        answers = await self._store.pulls.ack(leases, now.high)
        self._metrics.consumers.acked.inc(answers.count(True))
        for lease, answer in zip(leases, answers, strict=True):
            if answer is True:
                self._metrics.activity.count_consumed(lease.topic, "done")
        return answers

    async def _nack_group(self, nacks: Sequence[LeaseNack]) -> Sequence[bool | LaterError]:
        policies, now = await self._store.policies.current(), await self._store.time.now()
        verdicts = await self._store.pulls.nack(nacks, policies, now.high, self._random)
        for (lease, nack), verdict in zip(nacks, verdicts, strict=True):
            if isinstance(verdict, Verdict):
                self._metrics.consumers.nacked.inc()
                self._metrics.activity.count_consumed(lease.topic, "busy" if nack.is_busy else "failed")
                if verdict.target is SettleTarget.ERROR:
                    self._metrics.retries.inc()
                else:
                    report_death(self._metrics, lease.id, lease.topic, verdict)
        return [verdict if isinstance(verdict, LaterError) else verdict is not None for verdict in verdicts]

    async def _release_group(self, leases: Sequence[Lease]) -> Sequence[bool | LaterError]:
        answers = await self._store.pulls.release(leases)
        for lease, answer in zip(leases, answers, strict=True):
            if answer is True:
                self._metrics.consumers.released.inc()
                self._signal(lease.topic, lease.due_at)
        return answers


def own_leases(request: web.Request, tokens: Sequence[str], field: str = "leases") -> dict[str, Lease]:
    """Return the leases of these tokens. Those of a namespace other than the caller's count as lost, and are left out.

    Raises:
        Refused: a token is none.
    """
    namespace = request[CALLER].namespace
    leases = {token: decode_lease(token, field) for token in tokens}
    if namespace is None:
        return leases
    return {token: lease for token, lease in leases.items() if namespace_from_topic(lease.topic) == namespace}


def lost_tokens(tokens: Sequence[str], leases: Leases, answers: Sequence[bool | LaterError]) -> list[str]:
    """Return those of the tokens whose leases are not in force any more.

    Raises:
        LaterError: the error of one of them. The same call again is safe, and finds lost what it has done before.
    """
    kept = {token for token, answer in zip(leases, answers, strict=True) if answer is True}
    for answer in answers:
        if isinstance(answer, LaterError):
            with unknown_after(bool(kept)):
                raise answer
    return [token for token in tokens if token not in kept]


def report_pull(metrics: Metrics, result: PullResult) -> None:
    """Report the tasks that died at a pull, and count the orphan entries that it removed."""
    for claim, verdict, _ in result.deaths:
        report_death(metrics, claim.id, claim.topic, verdict)
    if result.orphans:
        metrics.orphan_entries.inc(result.orphans)


def report_death(metrics: Metrics, id: str, topic: str, verdict: Verdict) -> None:
    """Count and log a task that died in the hands of its consumers."""
    failure = verdict.failure
    assert failure is not None  # a death has its reason
    metrics.count_death(topic, failure.reason, id)
    reason, message = failure.reason, failure.message
    moved_to = {} if verdict.moved is None else {"moved_to": verdict.moved.topic}
    log.warning("task dead", id=id, topic=topic, attempt=failure.attempt, reason=reason, message=message, **moved_to)


def flattened(
    call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
) -> Callable[[Sequence[Sequence[Item]]], Awaitable[list[Sequence[Answer]]]]:
    """Return a function that calls `call` once with the items of many requests, and returns the answers by request."""

    async def call_once(requests: Sequence[Sequence[Item]]) -> list[Sequence[Answer]]:
        answers = iter(await call([*chain.from_iterable(requests)]))
        return [[next(answers) for _ in items] for items in requests]

    return call_once
