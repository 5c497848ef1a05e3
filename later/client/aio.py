"""The client of applications with an event loop: one session of aiohttp for each loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

from msgspec import UNSET, UnsetType

from later.client import calls, consumer_calls, schedule_calls, topic_calls
from later.client.answers import (
    AppliedPolicy,
    ClaimedTask,
    Deleted,
    DueTask,
    Enqueued,
    Explained,
    Info,
    JobTotals,
    ScheduleInfo,
    ScheduleResult,
    TopicInfo,
)
from later.client.backend import NETWORK, AsyncSession, Backend
from later.client.batch_call import BatchItem, BatchRun, Results
from later.client.call import Call, attempt_timeout_s, pause, read
from later.client.call_fields import Page
from later.client.calls import DurabilityValue, IfExistsValue, MovedTasks, State
from later.client.connection_settings import check_settings
from later.client.create_queue import CreateQueue
from later.client.machine_clock import monotonic_s
from later.client.policy_check import (
    AppliedPolicies,
    callback_refusals,
    fit_callback,
    fit_draft,
    policy_refusal,
    topic_to_check,
)
from later.client.schedule_calls import CatchUpValue
from later.core.durations import Seconds
from later.core.errors import LaterError, Refused, Unavailable
from later.core.forks import call_after_fork
from later.core.policy import PolicyValue
from later.core.policy_scopes import Policies, PolicyScope
from later.core.task import Draft

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class _LoopState:
    """The state of a client in one event loop: a session, creates that wait to be sent, reads of policies under way."""

    def __init__(self, session: AsyncSession, creates: CreateQueue) -> None:
        self.session = session
        self.creates = creates
        self.reads: dict[str, asyncio.Task[Policies | None]] = {}


_abandoned: list[object] = []
"""Sessions of a parent process. Its child keeps them, because to close them could end the parent's calls."""


class AsyncClient:
    """A client of later's API at `url`, with the methods of `Client`, to be awaited; `list` and `topics` are iterated.

    Event loops may share it; each has connections of its own, which `aclose` or `async with` close. With `coalesce`,
    tasks that are created in one turn of the loop are sent as one batch, and each caller gets its own answer. Else it
    is as `Client`, which has the arguments.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        ca: str | None = None,
        patience: Seconds = 10,
        check: bool = True,
        coalesce: bool = True,
        backend: Backend = NETWORK,
    ) -> None:
        """Raises ConfigError: `url` or `key` is none."""
        self._settings = check_settings(url, key, ca, patience)
        self._backend = backend
        self._wall_ms = backend.wall_ms
        self._check = check
        self._coalesce = coalesce
        self._policies = AppliedPolicies()
        self._loops: dict[asyncio.AbstractEventLoop, _LoopState] = {}
        call_after_fork(self, AsyncClient.forget_connections)

    # Tasks

    async def create(
        self,
        topic: str,
        content: str = "",
        *,
        callback: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        if_exists: IfExistsValue = "keep",
        retry: int | None = None,
        ttl: Seconds | None = None,
        headers: Mapping[str, str] | None = None,
        context: Mapping[str, str] | None = None,
        remember: Seconds | None = None,
        durability: DurabilityValue | None = None,
    ) -> Enqueued:
        draft = calls.draft(
            topic, content, callback=callback, delay=delay, at=at, id=id, if_exists=if_exists, retry=retry, ttl=ttl,
            headers=headers, context=context, remember=remember, durability=durability,
        )  # fmt: skip
        return await self.create_draft(draft)

    async def create_draft(self, draft: Draft) -> Enqueued:
        sent = await self._fit_policy(draft)
        try:
            return await self._create_fitted(sent)
        except Refused as error:
            refitted = await self._refit({0: draft}, {0: sent}, {0: error})
            if not refitted:
                raise
        return await self._create_fitted(refitted[0])

    async def create_many(self, drafts: Iterable[Draft]) -> Results[Enqueued]:
        given = dict(enumerate(drafts))
        sent: dict[int, Draft] = {}
        errors: dict[int, LaterError] = {}
        items: list[BatchItem[Enqueued]] = []
        for position, draft in given.items():
            try:
                fitted = await self._fit_policy(draft)
                items.append(calls.create_item(fitted, self._wall_ms()))
                sent[position] = fitted
            except Refused as error:
                errors[position] = error
        results = calls.with_errors(await self._create_batch(items), errors)
        refitted = await self._refit(given, sent, dict(enumerate(results)))
        items = [calls.create_item(draft, self._wall_ms()) for draft in refitted.values()]
        again: Results[Enqueued]
        try:
            again = await self._create_batch(items)
        except LaterError as error:  # those that were created are
            again = [error] * len(items)
        for position, result in zip(refitted, again, strict=True):
            results[position] = result
        return results

    async def query(self, id: str) -> Info:
        return await self._send(calls.query(id))

    async def query_many(self, ids: Iterable[str]) -> Results[Info]:
        return await self._send_batch("/query/batch", [calls.query_item(id) for id in ids])

    async def delete(self, id: str, *, durability: DurabilityValue | None = None) -> Deleted:
        return await self._send(calls.delete(id, durability))

    async def delete_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[Deleted]:
        return await self._send_batch(calls.delete_batch_path(durability), [calls.delete_item(id) for id in ids])

    def list(
        self,
        topic: str,
        *,
        state: State | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
        reason: str | None = None,
    ) -> AsyncIterator[Info]:
        return self._items(
            calls.list_tasks(topic, state=state, due_after=due_after, due_before=due_before, reason=reason)
        )

    async def update(
        self,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        content: str | None = None,
        callback: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: int | None = None,
        ttl: Seconds | UnsetType | None = UNSET,
        durability: DurabilityValue | None = None,
    ) -> Info:
        return await self._send(
            calls.update(
                id, delay=delay, at=at, content=content, callback=callback, headers=headers, retry=retry, ttl=ttl,
                durability=durability,
            )
        )  # fmt: skip

    async def run_now(self, id: str, *, durability: DurabilityValue | None = None) -> Info:
        return await self._send(calls.run_now(id, durability))

    async def run_now_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[DueTask]:
        return await self._send_run(BatchRun.of_ids("/run-now", [calls.due_item(id) for id in ids], durability))

    async def explain(self, *, id: str | None = None, topic: str | None = None) -> Explained:
        return await self._send(calls.explain(id=id, topic=topic))

    async def redrive(
        self,
        *,
        id: str | None = None,
        topic: str | None = None,
        reason: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
        rate: float | None = None,
        durability: DurabilityValue | None = None,
    ) -> int:
        return await self._move(
            calls.redrive(
                id=id, topic=topic, reason=reason, died_after=died_after,
                died_before=died_before, rate=rate, durability=durability, now=self._wall_ms(),
            )
        )  # fmt: skip

    async def redrive_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[DueTask]:
        return await self._send_run(BatchRun.of_ids("/redrive", [calls.due_item(id) for id in ids], durability))

    async def purge(
        self,
        topic: str,
        *,
        states: Sequence[str] | None = None,
        reason: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
    ) -> int:
        return await self._move(
            calls.purge(topic, states=states, reason=reason, died_after=died_after, died_before=died_before)
        )

    async def job(self, id: str, *, run: str | None = None) -> JobTotals:
        return await self._send(calls.job(id, run))

    # Topics

    def topics(self, *, namespace: str | None = None) -> AsyncIterator[TopicInfo]:
        return self._items(topic_calls.topics(namespace))

    async def topic(self, name: str) -> TopicInfo:
        return await self._send(topic_calls.topic(name))

    async def policy(self, of: str | PolicyScope) -> AppliedPolicy:
        return await self._send(topic_calls.policy(of))

    async def set_policy(self, of: str | PolicyScope, fields: Mapping[str, object]) -> dict[str, PolicyValue]:
        return await self._send(topic_calls.set_policy(of, fields))

    async def unset_policy(self, of: str | PolicyScope, fields: Sequence[str] = ()) -> dict[str, PolicyValue]:
        return await self._send(topic_calls.unset_policy(of, fields))

    async def pause(self, topic: str) -> bool:
        return await self._send(topic_calls.pause(topic))

    async def resume(self, topic: str) -> bool:
        return await self._send(topic_calls.resume(topic))

    # Schedules

    async def put_schedule(
        self,
        id: str,
        topic: str,
        content: str = "",
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        zone: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
        paused: bool | None = None,
        callback: str | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        headers: Mapping[str, str] | None = None,
        context: Mapping[str, str] | None = None,
        remember: Seconds | None = None,
    ) -> ScheduleResult:
        fitted = await self._fit_callback(topic, callback)
        return await self._send(
            schedule_calls.put_schedule(
                id, topic, content, cron=cron, every=every, zone=zone, start=start, end=end, catch_up=catch_up,
                jitter=jitter, paused=paused, callback=fitted, retry=retry, ttl=ttl,
                headers=headers, context=context, remember=remember,
            )
        )  # fmt: skip

    async def schedule(self, id: str) -> ScheduleInfo:
        return await self._send(schedule_calls.schedule(id))

    def schedules(self, *, namespace: str | None = None) -> AsyncIterator[ScheduleInfo]:
        return self._items(schedule_calls.schedules(namespace))

    async def delete_schedule(self, id: str) -> str:
        return await self._send(schedule_calls.delete_schedule(id))

    async def pause_schedule(self, id: str) -> bool:
        return await self._send(schedule_calls.pause_schedule(id))

    async def resume_schedule(self, id: str) -> bool:
        return await self._send(schedule_calls.resume_schedule(id))

    async def run_schedule_now(self, id: str) -> str:
        return await self._send(schedule_calls.run_schedule_now(id))

    # Consumers

    async def claim(
        self,
        topics: str | Sequence[str] | Mapping[str, int],
        limit: int | None = None,
        *,
        lease: Seconds | None = None,
        wait: Seconds = 0,
    ) -> Sequence[ClaimedTask]:
        return await self._send(consumer_calls.claim(topics, limit, lease=lease, wait=wait))

    async def ack(self, leases: Iterable[str]) -> Sequence[str]:
        return await self._send(consumer_calls.ack(leases))

    async def nack(
        self,
        leases: Iterable[str],
        *,
        delay: Seconds | None = None,
        message: str | None = None,
        reason: str | None = None,
        dead: bool = False,
        busy: bool = False,
    ) -> Sequence[str]:
        return await self._send(
            consumer_calls.nack(leases, delay=delay, message=message, reason=reason, dead=dead, busy=busy)
        )

    async def release(self, leases: Iterable[str]) -> Sequence[str]:
        return await self._send(consumer_calls.release(leases))

    async def extend(self, leases: Iterable[str], lease: Seconds | None = None) -> Sequence[str]:
        return await self._send(consumer_calls.extend(leases, lease))

    # Connections

    async def aclose(self) -> None:
        """Wait for creates under way, and close this loop's connections. A later call opens new ones."""
        loop = asyncio.get_running_loop()
        state = self._loops.get(loop)
        if state is not None:
            await state.creates.drain()  # with this session, not a new one
            self._loops.pop(loop, None)
            await state.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def forget_connections(self) -> None:
        """Forget the connections of a parent process."""
        for state in self._loops.values():
            state.session.abandon()
        _abandoned.append(self._loops)
        self._loops = {}

    def _loop(self) -> _LoopState:
        """Return the state of the running loop. Raises ConfigError: `ca` cannot be read."""
        loop = asyncio.get_running_loop()
        state = self._loops.get(loop)
        if state is None:
            for closed in [other for other in [*self._loops] if other.is_closed()]:  # other threads add theirs
                self._loops.pop(closed, None)
            state = self._loops[loop] = _LoopState(
                self._backend.open_session(self._settings), CreateQueue(self._create, self._create_batch)
            )
        return state

    # Sending

    async def _send(self, call: Call[Answer]) -> Answer:
        """Send a call, again if that is safe and may help, and return its answer. Raises LaterError."""
        give_up_at = monotonic_s() + self._settings.patience_s
        is_unknown = False
        for attempt in count():
            try:
                return await self._attempt(call, give_up_at - monotonic_s())
            except Unavailable as error:
                is_unknown = error.unknown = error.unknown or is_unknown
                pause_s = pause(attempt, error, call, random.random())
                if pause_s is None or monotonic_s() + pause_s >= give_up_at:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError  # the last attempt returns or raises

    async def _attempt(self, call: Call[Answer], left_s: float) -> Answer:
        reply = await self._loop().session.exchange(call, attempt_timeout_s(left_s, call))
        return read(call, reply.status, reply.retry_after, reply.body, self._wall_ms())

    async def _create_fitted(self, draft: Draft) -> Enqueued:
        item = calls.create_item(draft, self._wall_ms())
        is_alone = not self._coalesce or item.exclusive  # others of its batch could not be sent again
        return await (self._create(item) if is_alone else self._loop().creates.create(item))

    async def _create(self, item: BatchItem[Enqueued]) -> Enqueued:
        return await self._send(calls.create(item))

    async def _create_batch(self, items: Sequence[BatchItem[Enqueued]]) -> Results[Enqueued]:
        return await self._send_batch("/create/batch", items)

    async def _send_batch(self, path: str, items: Sequence[BatchItem[Answer]]) -> Results[Answer]:
        return await self._send_run(BatchRun.of_batch(path, items))

    async def _send_run(self, run: BatchRun[Answer]) -> Results[Answer]:
        while (call := run.next()) is not None:
            try:
                await self._send(call)
            except LaterError as error:
                run.note_failure(error)
        return run.results()

    async def _items(self, call: Call[Page[Item]] | None) -> AsyncIterator[Item]:
        while call is not None:
            page = await self._send(call)
            for item in page.items:
                yield item
            call = page.next

    async def _move(self, call: Call[MovedTasks] | None) -> int:
        total = 0
        while call is not None:
            moved = await self._send(call)
            total, call = total + moved.moved, moved.next
        return total

    # Policies

    async def _fit_policy(self, draft: Draft) -> Draft:
        """Return a draft as its topic's policy takes it. Raises PolicyRefusal: one that was just read refuses it."""
        topic = topic_to_check(draft)
        if not self._check or topic is None:
            return draft
        is_known, policies = self._policies.find(topic, monotonic_s())
        if not is_known:
            policies = await self._read_policy(topic)
        refusal = policy_refusal(fit_draft(draft, policies), policies, self._wall_ms())
        if refusal is not None and is_known:
            policies = await self._read_policy(topic)
            refusal = policy_refusal(fit_draft(draft, policies), policies, self._wall_ms())
        if refusal is not None:
            raise refusal
        return fit_draft(draft, policies)

    async def _refit(
        self, drafts: Mapping[int, Draft], sent: Mapping[int, Draft], results: Mapping[int, object]
    ) -> dict[int, Draft]:
        """Return the drafts to send again: a callback was refused, and by the policy of now they are sent otherwise.

        The policy by which they were sent may have been kept for up to a minute.
        """
        refused = callback_refusals(sent, results) if self._check else {}
        policies = {topic: await self._read_policy(topic) for topic in dict.fromkeys(refused.values())}
        refitted = {position: fit_draft(drafts[position], policies[topic]) for position, topic in refused.items()}
        return {position: draft for position, draft in refitted.items() if draft.callback != sent[position].callback}

    async def _fit_callback(self, topic: str, callback: str | None) -> str | None:
        """Return a schedule's callback, or None if its topic is pulled by the policy, which is read anew."""
        name = topic_to_check(Draft(topic=topic))
        if not self._check or callback is None or name is None:
            return callback
        return fit_callback(callback, await self._read_policy(name))

    async def _read_policy(self, topic: str) -> Policies | None:
        """Return a topic's policy as the daemon applies it; None if it does not say: then nothing is checked.

        Callers that want it at a time share one call, which goes on if one of them is cancelled.
        """
        reads = self._loop().reads
        task = reads.get(topic)
        if task is None:
            task = reads[topic] = asyncio.get_running_loop().create_task(self._fetch_policy(topic))
            task.add_done_callback(lambda _: reads.pop(topic))
        return await asyncio.shield(task)

    async def _fetch_policy(self, topic: str) -> Policies | None:
        try:
            applied = await self._attempt(topic_calls.policy(topic), self._settings.patience_s)
        except LaterError:
            applied = None
        return self._policies.keep(topic, applied, monotonic_s())
