"""The deliveries of a virtual clock: calls over HTTP without a network, and claims of a worker without a daemon."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from later import __version__
from later.application import Later
from later.core.policy import PULL, Policy
from later.core.reply import Reply, parse_reply
from later.core.retry import (
    Outcome,
    OutcomeKind,
    SettleTarget,
    Verdict,
    judge,
    judge_nack,
    judge_uncallable,
    judge_unsent,
    nack_of,
)
from later.core.task import Task as StoredTask
from later.core.task import headers_of_claim
from later.delivery.request import RequestBuilder, encode_body
from later.handlers.task import Task
from later.receiver.callback import format_outcome, read_call
from later.receiver.receiver import CANCEL_BEFORE_S
from later.testing.virtual_store import VirtualStore, VirtualTask, origin_of, to_datetime

LEASE_EXTRA_MS = 15_000
"""How much longer than its deadline the lease of a delivery is."""
DONE_ELSEWHERE = Outcome(kind=OutcomeKind.DONE, status=200)
"""The outcome of a call to another application, which is not made."""


class Attempt(NamedTuple):
    """An attempt at a task: its number, when it was made (ms), and its outcome."""

    task: StoredTask
    number: int
    at: int
    outcome: Outcome


class ClaimDeadline:
    """The deadline of a claimed task: its lease, which does not end while its handler runs."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s

    def time_left(self) -> float:
        return self._lease_s

    async def extend(self) -> None:
        """Keep the lease."""


class VirtualDeliverer:
    """Delivers tasks to the handlers of an application. `callback` is where the daemon would call it."""

    def __init__(self, tasks: Later, store: VirtualStore, callback: str) -> None:
        self.attempts: list[Attempt] = []
        self._tasks = tasks
        self._store = store
        self._callback = callback
        self._requests = RequestBuilder(f"later/{__version__}")

    def is_served(self, task: VirtualTask, policy: Policy) -> bool:
        """Return True if the task is delivered when it is due: only consumers elsewhere are waited for."""
        return policy.deliver is not PULL or self._tasks.find(task.topic) is not None

    async def deliver(self, task: VirtualTask, now: int) -> None:
        """Make one attempt at a task, and settle it.

        Raises:
            asyncio.CancelledError, SystemExit, KeyboardInterrupt, MemoryError: the attempt has no outcome, and the task
                is given back.
        """
        policy, due_at = self._store.policies.for_topic(task.topic), task.due_at
        is_pulled = policy.deliver is PULL
        self._store.claim(task, now, policy.claim_lease_ms if is_pulled else policy.timeout_ms + LEASE_EXTRA_MS)
        try:
            verdict = await (self._give(task, due_at, policy, now) if is_pulled else self._call(task, policy, now))
        except BaseException:
            self._store.give_back(task, due_at)
            raise
        self._store.settle(task, verdict)

    async def _call(self, task: VirtualTask, policy: Policy, now: int) -> Verdict:
        """Return the verdict on a task after a call of its callback."""
        stored, attempt, failure = task.task, task.attempts, task.failure
        called = stored if stored.callback else msgspec.structs.replace(stored, callback=policy.callback)
        if not called.callback:
            return judge_uncallable(attempt, failure, now)
        unsent = judge_unsent(stored, attempt, failure, now)
        if unsent is not None:
            return unsent
        outcome = DONE_ELSEWHERE
        if self._tasks.find(task.topic) is not None or called.callback == self._callback:
            outcome = await self._receive(called, attempt, failure.failures if failure else 0, policy, now)
        self.attempts.append(Attempt(stored, attempt, now, outcome))
        verdict = judge(stored, attempt, failure, outcome, now, policy, 0.0)
        origin = origin_of(stored, policy)
        if outcome.retry_after_ms is not None and verdict.target is SettleTarget.ERROR and origin is not None:
            self._store.holds[task.topic, origin] = verdict.at
        return verdict

    async def _receive(self, task: StoredTask, attempt: int, failures: int, policy: Policy, now: int) -> Outcome:
        """Return the outcome of a call as the daemon reads it in the answer of a receiver."""
        body = encode_body(task)
        request = self._requests.build(task, attempt, failures, now, policy.timeout_ms, body, "")
        view, content = read_call(_parse_headers(request.headers), body, time.monotonic(), self._tasks.state)
        answer = format_outcome(await self._tasks.dispatch(view, content, cancel_before_s=CANCEL_BEFORE_S))
        return parse_reply(_to_reply(answer.status, answer.headers, answer.body), now, policy.ack)

    async def _give(self, task: VirtualTask, due_at: int, policy: Policy, now: int) -> Verdict:
        """Return the verdict on a task that a worker of the application has claimed."""
        stored, attempt, failure = task.task, task.attempts, task.failure
        unsent = judge_unsent(stored, attempt, failure, now, policy.max_claims)
        if unsent is not None:
            return unsent
        failures, due = failure.failures if failure else 0, to_datetime(due_at)
        assert due is not None
        view: Task[Any] = Task(
            id=stored.id,
            topic=stored.topic,
            attempt=attempt,
            due_at=due,
            created_at=to_datetime(stored.created_at),
            failures=failures,
            retries_left=max(stored.max_retry - failures, 0),
            context=stored.context or {},
            headers={name.lower(): value for name, value in headers_of_claim(stored).items()},
            state=self._tasks.state,
            deadline=ClaimDeadline(policy.claim_lease_ms / 1000),
        )
        outcome = await self._tasks.dispatch(view, stored.content)
        self.attempts.append(Attempt(stored, attempt, now, outcome))
        if outcome.kind is OutcomeKind.DONE:
            return Verdict(SettleTarget.DONE, now)
        return judge_nack(stored, attempt, failure, nack_of(outcome), now, policy, 0.0)


def _parse_headers(lines: bytes) -> dict[str, str]:
    """Return the headers of a request as receivers give them, by their names in lower case."""
    pairs = (line.partition(": ") for line in lines.decode().split("\r\n") if line)
    return {name.lower(): value for name, _, value in pairs}


def _to_reply(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    return Reply(
        status=status,
        body=body,
        retry_after=headers.get("retry-after"),
        later_after=headers.get("later-after"),
        later_reason=headers.get("later-reason"),
    )
