"""Zaqar's claims: messages that a client claims together, under one id, to delete them one by one as they are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web

from later.api.authorization import Authorization
from later.api.due_signals import DueSignals
from later.api.leases import report_pull
from later.api.load_shedding import PendingWrites
from later.api.task_answers import BytesInAnswers, is_sent
from later.api.zaqar.error_answers import ROOT, ZaqarError, invalid_body, invalid_request, not_found
from later.api.zaqar.message_fields import message_href, message_view, shown_ttl_s
from later.api.zaqar.protocol import ZaqarCall, document_response, no_content, read_json
from later.api.zaqar.query_parameters import integer_parameter
from later.core.clock import Interval
from later.core.errors import LaterError, PushedTopic
from later.core.lease import Lease
from later.core.policy import PULL, Policy
from later.core.task import Task
from later.metrics import Metrics
from later.store.open import Store
from later.store.pull_plan import PulledTask

MAX_BODY_BYTES = 65_536
DEFAULT_TTL_S = 300
DEFAULT_GRACE_S = 60
MIN_SECONDS = 60
MAX_SECONDS = 43_200
"""The bounds of the ttl and of the grace of a claim."""
DEFAULT_LIMIT = 10
MAX_LIMIT = 20


class ClaimTerms(NamedTuple):
    """The ttl and the grace that a client asks for."""

    ttl_s: int
    grace_s: int


class MessageClaimHandlers:
    """Handlers of claims of messages."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        authorization: Authorization,
        pending_writes: PendingWrites,
        signals: DueSignals,
        bytes_in_answers: BytesInAnswers,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._authorization = authorization
        self._pending_writes = pending_writes
        self._signals = signals
        self._bytes_in_answers = bytes_in_answers

    async def create(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`POST /v2/queues/{queue}/claims`."""
        limit = integer_parameter(request.query, "limit")
        document = await read_json(request, MAX_BODY_BYTES)
        terms = parse_terms({} if document is None else document)
        check_new_claim(terms, limit)
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve():
                now = await self._store.time.now()
                tasks = await self._claim(call.topic, terms, DEFAULT_LIMIT if limit is None else limit, now)
            if not tasks:
                return no_content()
            answer.count(sum(len(pulled.task.content) for pulled in tasks))
            claim_id = tasks[0].claim_id
            is_taken = False
            try:
                messages = [_view(call, pulled.task, claim_id, pulled.attempt, now) for pulled in tasks]
                response = document_response({"messages": messages}, 201, location=_claim_href(call, claim_id))
                is_taken = await is_sent(request, response)
            finally:
                if not is_taken:
                    await self._give_back(tasks)
        if is_taken:
            self._metrics.consumers.claimed.inc(call.topic, count=len(tasks))
            self._authorization.charge_claimed(call.caller, len(tasks))
        return response

    async def show(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues/{queue}/claims/{claim}`."""
        claim_id = request.match_info["claim"]
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve():
                now = await self._store.time.now()
                claim = await self._store.claim_records.read(call.topic, claim_id, now)
            if claim is None:
                raise _no_such_claim(call, claim_id)
            answer.count(sum(len(claimed.task.content) for claimed in claim.tasks))
            return document_response(
                {
                    "age": max(now.low - claim.record.since, 0) // 1000,
                    "ttl": claim.record.ttl_ms // 1000,
                    "grace": claim.record.grace_ms // 1000,
                    "href": _claim_href(call, claim_id),
                    "messages": [_view(call, claimed.task, claim_id, claimed.attempt, now) for claimed in claim.tasks],
                }
            )

    async def update(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`PATCH /v2/queues/{queue}/claims/{claim}`.

        As in Zaqar, the defaults are those of a new claim, and the grace is not refused; beyond its bounds it is cut.
        """
        claim_id = request.match_info["claim"]
        document = await read_json(request, MAX_BODY_BYTES)
        if document is None:
            raise invalid_body("Request body can not be empty")
        ttl_s, grace_s = parse_terms(document)
        _check_seconds("TTL", ttl_s)
        grace_ms = min(max(grace_s, 0), MAX_SECONDS) * 1000
        with self._pending_writes.reserve():
            now = await self._store.time.now()
            extended = await self._store.claim_records.update(call.topic, claim_id, ttl_s * 1000, grace_ms, now)
        if not extended:
            raise _no_such_claim(call, claim_id)
        self._metrics.consumers.extended.inc(extended)
        return no_content()

    async def release(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`DELETE /v2/queues/{queue}/claims/{claim}`."""
        with self._pending_writes.reserve():
            now = await self._store.time.now()
            self._report_released(await self._store.claim_records.release(call.topic, request.match_info["claim"], now))
        return no_content()

    async def _claim(self, topic: str, terms: ClaimTerms, limit: int, now: Interval) -> Sequence[PulledTask]:
        """Claim due messages, if there is such a queue and it is not paused. Raises PushedTopic."""
        policy = await claimable_policy(self._store, topic)
        if policy is None:
            return []
        ttl_ms, grace_ms = terms.ttl_s * 1000, terms.grace_s * 1000
        result = await self._store.claim_records.claim(topic, ttl_ms, grace_ms, limit, now, policy.max_claims)
        report_pull(self._metrics, result)
        return result.tasks

    async def _give_back(self, tasks: Sequence[PulledTask]) -> None:
        """Give back messages whose client is gone. Where the store is away, their leases end."""
        with suppress(LaterError):
            self._report_released(await self._store.claim_records.give_back(tasks))

    def _report_released(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._metrics.consumers.released.inc()
            self._signals.task_given_back(lease.topic, lease.due_at)


async def claimable_policy(store: Store, topic: str) -> Policy | None:
    """Return the policy of a queue of which messages are claimed now; None if it is paused, or not there.

    Raises:
        PushedTopic: the tasks of the topic are delivered to their callbacks.
    """
    policy = (await store.policies.current()).for_topic(topic)
    if policy.deliver is not PULL:
        queue = await store.queues.get(topic)  # which another process may have made a moment ago
        if queue is None:
            return None
        policy = queue.policy
        if policy.deliver is not PULL:
            raise PushedTopic(topic)
    return None if policy.paused else policy


def parse_terms(document: object) -> ClaimTerms:
    """Return the terms of a claim in a request's body. Raises ZaqarError."""
    if not isinstance(document, dict):
        raise invalid_body("Document type not supported.")
    return ClaimTerms(_seconds(document, "ttl", DEFAULT_TTL_S), _seconds(document, "grace", DEFAULT_GRACE_S))


def check_new_claim(terms: ClaimTerms, limit: int | None) -> None:
    """Check the terms of a new claim, and how many messages it is for. Raises ZaqarError."""
    _check_seconds("TTL", terms.ttl_s)
    if limit is not None and not 0 < limit <= MAX_LIMIT:
        raise invalid_request(f"Limit must be at least 1 and may not be greater than {MAX_LIMIT}.")
    _check_seconds("grace", terms.grace_s)


def _seconds(document: dict[str, object], field: str, default: int) -> int:
    """Return an integer of a body; the default if it is absent or null, as the client sends it."""
    value = document.get(field)
    if value is None:
        return default
    if type(value) is not int:  # true is no number
        raise invalid_body(f'The value of the "{field}" field must be a int.')
    return value


def _check_seconds(name: str, seconds: int) -> None:
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise invalid_request(
            f"The {name} for a claim may not exceed {MAX_SECONDS} seconds, and must be at least {MIN_SECONDS} seconds "
            "long."
        )


def _view(call: ZaqarCall, task: Task, claim_id: str, attempt: int, now: Interval) -> dict[str, object]:
    """Return the view of a claimed message."""
    return message_view(
        task,
        href=message_href(call.queue, task.id),
        claim_id=claim_id,
        claim_count=attempt,
        now=now.low,
        ttl_s=shown_ttl_s(task.created_at, task.expires_at),
    )


def _claim_href(call: ZaqarCall, claim_id: str) -> str:
    return f"{ROOT}/queues/{call.queue}/claims/{claim_id}"


def _no_such_claim(call: ZaqarCall, claim_id: str) -> ZaqarError:
    return not_found(f"Claim {claim_id} does not exist in queue {call.queue} for project {call.project}")
