"""`POST /claim`: tasks of pulled topics for a consumer, which may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from random import random
from time import perf_counter

from aiohttp import web

from later.api.authorization import CALLER, Authorization
from later.api.batch import MAX_BATCH_BYTES
from later.api.claim_queues import ClaimQueues, Watch
from later.api.claim_requests import (
    ClaimBody,
    WantedTasks,
    check_tokens,
    parse_claim_body,
    parse_failed,
    parse_wanted,
)
from later.api.json_response import json_response
from later.api.leases import LEASE_BYTES, LeaseHandlers, lost_tokens, own_leases, report_pull
from later.api.load_shedding import PendingWrites
from later.api.requests import read_body
from later.api.response_schemas import ClaimResponse, claimed_task_view
from later.api.server import watch_connection
from later.api.task_answers import BytesInAnswers, is_sent
from later.core.errors import LaterError, PushedTopic, unknown_after
from later.core.lease import MAX_CLAIMED
from later.core.policy import Deliver
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.open import Store
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic

NOTHING_PULLED = PullResult([], None, [])


class ClaimHandlers:
    """The handler of `/claim`, those of `leases`, and the queues of claims that wait, at most `max_waiters`."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        authorization: Authorization,
        pending_writes: PendingWrites,
        bytes_in_answers: BytesInAnswers,
        max_waiters: int,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._authorization = authorization
        self._bytes_in_answers = bytes_in_answers
        self._reserve = pending_writes.reserve
        self._pull_requests = GroupCommit(self._pull_group, queue_timeout_s=store.client.timeout_s)
        self.queues = ClaimQueues(
            pull=self._pull,
            reserve=pending_writes.reserve,
            give_back=self._give_back,
            find_due=self._find_due,
            listen=store.due_notices.listen,
            now=lambda: store.clock.estimate()[0],
            measure=store.time.measure,
            most=max_waiters,
        )
        metrics.consumers.waiters.set_function(lambda: self.queues.waiters)
        self.leases = LeaseHandlers(
            store=store,
            metrics=metrics,
            authorization=authorization,
            pending_writes=pending_writes,
            signal=partial(self.queues.signal, tasks=1),
            random=random,
        )

    async def claim(self, request: web.Request) -> web.StreamResponse:
        """`POST /claim`."""
        body = parse_claim_body(await read_body(request, MAX_BATCH_BYTES))
        wanted = parse_wanted(body, request[CALLER])
        with self._bytes_in_answers.open_answer() as answer:
            started = perf_counter()
            lost: list[str] = []
            tasks: Sequence[PulledTask] | None = None
            if body.done or body.failed:
                lost, tasks = await self._finish_tasks(request, body, wanted)
            if tasks is None or (not tasks and wanted.wait_s):
                with unknown_after(bool(body.done or body.failed)):
                    tasks = await self.claim_tasks(wanted, partial(watch_connection, request))
            if not tasks:
                return json_response(ClaimResponse(tasks=[], lost=lost))
            answer.count(sum([len(pulled.task.content) for pulled in tasks]))
            sent = False
            try:
                if wanted.wait_s:
                    self._metrics.consumers.wait_duration.observe(perf_counter() - started)
                    with unknown_after(bool(body.done or body.failed)):
                        await self._authorization.judge_again(request[CALLER])
                response = json_response(ClaimResponse(tasks=[*map(claimed_task_view, tasks)], lost=lost))
                sent = await is_sent(request, response)
            finally:
                if not sent:
                    self._give_back(tasks)
        if sent:
            self.count_claimed(tasks)
            self._authorization.charge_claimed(request[CALLER], len(tasks))
        return response

    async def end_waiting(self, app: web.Application) -> None:
        """Answer all claims that wait, because the server stops."""
        await self.queues.close()

    async def claim_tasks(self, wanted: WantedTasks, watch: Watch) -> Sequence[PulledTask]:
        """Claim tasks, or wait for them. Before a claim is refused, the policies are read anew.

        Raises: as `ClaimQueues.claim`.
        """
        await self._store.policies.current()
        started = perf_counter()
        try:
            return await self.queues.claim(wanted, watch)
        except PushedTopic:
            await self._store.policies.reread()
        left_s = max(0.0, wanted.wait_s - (perf_counter() - started))
        return await self.queues.claim(wanted._replace(wait_s=left_s), watch)

    def count_claimed(self, tasks: Sequence[PulledTask]) -> None:
        """Count tasks that a consumer has got."""
        claimed: dict[str, int] = {}  # a Counter would take longer to make than most claims have tasks to count
        for pulled in tasks:
            claimed[pulled.task.topic] = claimed.get(pulled.task.topic, 0) + 1
        for topic, count in claimed.items():
            self._metrics.consumers.claimed.inc(topic, count=count)

    async def _finish_tasks(
        self, request: web.Request, body: ClaimBody, wanted: WantedTasks
    ) -> tuple[list[str], Sequence[PulledTask] | None]:
        """Ack and nack the tasks that a claim brings back; return the leases that are lost.

        Acks share the round trip of the claim's first look: then the tasks that it found are returned as well.
        """
        done, nacks = check_tokens(body.done or [], "done", MAX_CLAIMED), parse_failed(body.failed or [])
        acked, nacked = own_leases(request, done, "done"), own_leases(request, [*nacks], "failed")
        self._authorization.charge_claimed(request[CALLER], len(done) + len(nacks) + 1)
        nacked = {token: lease for token, lease in nacked.items() if token not in acked}
        lost = lost_tokens([*nacks], nacked, await self.leases.nack_leases(nacked, nacks))
        with unknown_after(len(lost) < len(nacks)):
            await self._store.policies.current()
            try:
                pull = self._pull_request(wanted) if acked else None
            except PushedTopic:
                pull = None
            if pull is None:
                return lost_tokens(done, acked, await self.leases.ack_leases(acked)) + lost, None
            with self._reserve(len(acked)):
                result = await self._pull_requests(pull._replace(done=[*acked.values()]), LEASE_BYTES * len(acked))
            try:
                return lost_tokens(done, acked, result.acked) + lost, result.tasks
            except LaterError:
                self._give_back(result.tasks)
                raise

    def _pull(self, wanted: WantedTasks) -> asyncio.Future[PullResult]:
        """Return the future tasks of a claim, by the policies of this moment. Raises PushedTopic."""
        pull = self._pull_request(wanted)
        if pull is not None:
            return self._pull_requests(pull)
        nothing: asyncio.Future[PullResult] = asyncio.get_running_loop().create_future()
        nothing.set_result(NOTHING_PULLED)
        return nothing

    def _pull_request(self, wanted: WantedTasks) -> PullRequest | None:
        """Return the request of a claim to the store; None if all of its topics are paused. Raises PushedTopic."""
        policies = self._store.policies.latest
        topics = []
        for topic, limit in wanted.topics.items():
            policy = policies.for_topic(topic)
            if policy.deliver is not Deliver.PULL:
                raise PushedTopic(topic)
            if not policy.paused:
                lease_ms = wanted.lease_ms or policy.claim_lease_ms
                topics.append(PullTopic(topic, limit, lease_ms, policy.max_claims))
        return PullRequest(topics, wanted.limit) if topics else None

    async def _pull_group(self, requests: Sequence[PullRequest]) -> list[PullResult | LaterError]:
        """Ack and claim tasks for several requests, count them, and report those that died instead."""
        now = await self._store.time.now()
        results = await self._store.pulls.claim(requests, now)
        for result in results:
            if isinstance(result, PullResult):
                report_pull(self._metrics, result)
                if result.acked:
                    self._metrics.consumers.acked.inc(result.acked.count(True))
        return results

    def _give_back(self, tasks: Sequence[PulledTask]) -> None:
        self.leases.give_back([pulled.lease for pulled in tasks])

    async def _find_due(self, topics: Collection[str]) -> list[str]:
        """Return those topics that have due tasks and are not paused, or whose tasks are not pulled any more."""
        policies, now = await self._store.policies.current(), await self._store.time.now()
        pushed, pulled = list[str](), list[str]()
        for topic in topics:
            policy = policies.for_topic(topic)
            if policy.deliver is not Deliver.PULL:
                pushed.append(topic)
            elif not policy.paused:
                pulled.append(topic)
        return pushed + await self._store.pulls.due_topics(pulled, now.low)
