"""The worker of an application: claims tasks for its handlers, runs them, and says what has become of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from later.core.errors import Conflict, LaterError, NotAllowed, NotKnown, Refused, Unavailable
from later.core.retry import Outcome
from later.handlers.dispatch import HandlerDispatcher
from later.handlers.handler import Handler
from later.handlers.runner import is_async
from later.puller.claim_source import ClaimSource, HandlerClaim, LeaseDeadline

log = logging.getLogger("later.worker")

POLL_S = 20.0
"""How long a claim waits for tasks."""
RETRY_S = 1.0
"""The pause after a call that failed."""
RECHECK_S = 5.0
"""How long a topic is left out that cannot be claimed: its policy may change."""
EXTENSIONS = 3
"""How often a lease is extended within its length."""


class PullWorker:
    """Claims tasks for handlers, for each no more than it has free slots, so that none waits for another one's.

    A lease is extended while its handler runs, so that a handler may run for hours. A handler whose lease was lost is
    cancelled, and its outcome is dropped.
    """

    def __init__(self, handlers: Sequence[Handler[Any]], dispatcher: HandlerDispatcher, source: ClaimSource) -> None:
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._source = source
        self._runs: dict[asyncio.Task[None], tuple[HandlerClaim, Handler[Any]]] = {}
        self._lost: set[str] = set()
        """The leases of runs that were cancelled because they were lost."""
        self._left_out: dict[str, float] = {}
        """Topics that could not be claimed, and when (s, monotonic) they are tried again."""
        self._freed = {handler: asyncio.Event() for handler in handlers}
        self._is_away = False
        """True if the last call failed, which is logged once."""

    async def run(self, drain_s: float) -> None:
        """Work until this is cancelled; then wait up to `drain_s` for what runs, and give the rest back.

        Nothing is claimed meanwhile. The leases of functions in threads, which cannot be cancelled, run out.
        """
        loops = [asyncio.create_task(self._serve(handler)) for handler in self._handlers]
        extending = asyncio.create_task(self._extend_leases())
        try:
            await asyncio.gather(*loops)
            await asyncio.Event().wait()  # all handlers were removed
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            try:
                await self._drain(drain_s)
            finally:
                extending.cancel()
                await asyncio.gather(extending, return_exceptions=True)

    def count_runs(self, handler: Handler[Any]) -> int:
        """Return how many tasks a handler has, with those whose outcomes are being told."""
        return sum(running is handler for _, running in self._runs.values())

    async def _serve(self, handler: Handler[Any]) -> None:
        """Claim tasks for a handler as it has free slots, until it is removed from the application."""
        while self._dispatcher.has(handler):
            if self._free(handler) <= 0:
                await self._wait_for_end(handler)
                continue
            now = time.monotonic()
            topics = [topic for topic in handler.topics if self._left_out.get(topic, now) <= now]
            if not topics:
                await asyncio.sleep(RECHECK_S)
                continue
            try:
                await self._claim(handler, topics)
            except LaterError as error:
                self._note_failure(error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._is_away:
                self._is_away = False
                log.info("later answers again")

    def _free(self, handler: Handler[Any]) -> int:
        return min(handler.slots.free, handler.concurrency - self.count_runs(handler))

    async def _wait_for_end(self, handler: Handler[Any]) -> None:
        """Wait until one of a handler's runs ends: also one that is not, or no longer, among those of this worker.

        A thread that outlives its timeout keeps its slot, and a receiver in this process may take slots, too.
        """
        if self.count_runs(handler) >= handler.concurrency:
            self._freed[handler].clear()
            await self._freed[handler].wait()
        elif await handler.slots.acquire(POLL_S):
            handler.slots.release()

    async def _claim(self, handler: Handler[Any], topics: Sequence[str]) -> None:
        """Claim tasks of a handler's topics, and run them.

        A topic that cannot be claimed, because it is pushed or not for this key, must not keep the others from it: then
        each is tried alone.
        """
        wait_s = POLL_S if len(topics) == len(handler.topics) else RECHECK_S
        try:
            await self._start_runs(handler, await self._source.claim(topics, self._free(handler), wait_s))
            self._note_claimable(topics)
            return
        except (Conflict, NotAllowed) as error:
            if len(topics) == 1:
                self._leave_out(topics[0], error)
                return
        for topic in topics:
            try:
                if self._free(handler) > 0:
                    await self._start_runs(handler, await self._source.claim([topic], self._free(handler), 0))
                    self._note_claimable([topic])
            except (Conflict, NotAllowed) as error:
                self._leave_out(topic, error)

    async def _start_runs(self, handler: Handler[Any], claims: Sequence[HandlerClaim]) -> None:
        if not self._dispatcher.has(handler):
            await asyncio.gather(*map(self._give_back, claims))
            return
        for claim in claims:
            run = asyncio.create_task(self._run(claim))
            self._runs[run] = (claim, handler)
            run.add_done_callback(self._forget)

    def _leave_out(self, topic: str, error: LaterError) -> None:
        if topic not in self._left_out and isinstance(error, Conflict):
            text = "the topic %s is pushed, so its tasks are not claimed: later topics set %s --deliver pull"
            log.warning(text, topic, topic)
        elif topic not in self._left_out:
            log.warning("tasks of the topic %s cannot be claimed: %s", topic, error)
        self._left_out[topic] = time.monotonic() + RECHECK_S

    def _note_claimable(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if self._left_out.pop(topic, None) is not None:
                log.info("tasks of the topic %s can be claimed now", topic)

    def _note_failure(self, error: LaterError) -> None:
        if not self._is_away:
            self._is_away = True
            text = "later does not answer, trying on: %s" if isinstance(error, Unavailable) else "later refuses: %s"
            log.warning(text, error)

    def _forget(self, run: asyncio.Task[None]) -> None:
        claim, handler = self._runs.pop(run)
        self._lost.discard(claim.lease)
        self._freed[handler].set()
        if not run.cancelled() and run.exception() is not None:
            log.error("the worker failed at task %s", claim.task.id, exc_info=run.exception())

    async def _run(self, claim: HandlerClaim) -> None:
        handler = self._runs[asyncio.current_task()][1]  # type: ignore[index]  # there is a task
        try:
            outcome = await self._dispatcher.dispatch(claim.task, claim.content, slot_wait_s=self._source.lease_s)
        except asyncio.CancelledError:
            if claim.lease not in self._lost and is_async(handler.function):
                await self._give_back(claim)
            raise
        if not await self._settle(claim, outcome):
            text = "the lease on task %s was lost: its outcome (%s) does not count, unless only the answer was lost"
            log.warning(text, claim.task.id, outcome.kind)

    async def _give_back(self, claim: HandlerClaim) -> None:
        try:
            await self._source.give_back(claim.lease)
        except LaterError as error:
            log.warning("task %s was not given back, and comes again when its lease ends: %s", claim.task.id, error)

    async def _settle(self, claim: HandlerClaim, outcome: Outcome) -> bool:
        """Say the outcome until that succeeds. Return False if the lease was lost or has ended before."""
        while True:
            try:
                return await self._source.settle(claim.lease, outcome)
            except LaterError as error:
                if isinstance(error, Refused) and not isinstance(error, NotKnown | NotAllowed):
                    log.warning("the outcome of task %s was refused, it comes again: %s", claim.task.id, error)
                    return True
                self._note_failure(error)
                if claim.task.time_left() <= 0:
                    return False
            await asyncio.sleep(RETRY_S)

    async def _extend_leases(self) -> None:
        pause_s = self._source.lease_s / EXTENSIONS
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._source.lease_s / EXTENSIONS
            claims = {claim.lease: (run, claim) for run, (claim, _) in self._runs.items()}
            if not claims:
                continue
            asked_at = time.monotonic()
            try:
                lost = set(await self._source.extend(list(claims)))
            except LaterError as error:
                self._note_failure(error)
                pause_s = min(RETRY_S, pause_s)  # a call that waits for its answer takes a third of the lease, too
                continue
            for lease, (run, claim) in claims.items():
                if lease in lost:
                    self._lost.add(lease)
                    run.cancel()
                elif isinstance(claim.task.deadline, LeaseDeadline):
                    claim.task.deadline.ends_at = asked_at + self._source.lease_s

    async def _drain(self, drain_s: float) -> None:
        try:
            if self._runs:
                log.info("stopping: %d tasks have %g s to end", len(self._runs), drain_s)
                await asyncio.wait(self._runs, timeout=drain_s)
        finally:
            left = list(self._runs)
            if left:
                log.warning("%d tasks have not ended: they are given back, unless a thread still does them", len(left))
            for run in left:
                run.cancel()
            await asyncio.gather(*left, return_exceptions=True)
