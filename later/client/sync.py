"""The client of applications without an event loop: one kept connection for each thread."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from later.client.backend import NETWORK, Backend, ThreadConnection
from later.client.batch_call import BatchItem, BatchRun, Results
from later.client.call import Call, attempt_timeout_s, pause, read
from later.client.call_fields import Page
from later.client.calls import DurabilityValue, IfExistsValue, MovedTasks, State
from later.client.connection_settings import check_settings
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

_abandoned: list[object] = []
"""Connections of a parent process. Its child keeps them, because to close them could end the parent's calls."""


class Client:
    """A client of later's API at `url`. Threads may share it; `AsyncClient` has the same methods, to be awaited.

    It reads no environment, uses no proxy and follows no redirects. Connections are opened by the first calls. `key` is
    an API key, `ca` a file of authorities that are trusted besides the machine's. A call that fails is sent again for
    up to `patience`, if that is safe. With `check`, a create that its topic's policy would refuse is refused unsent.
    A test may give another `backend` than the network.

    Every method raises LaterError: Refused, NotFound, Conflict, or Unavailable after `patience`.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        ca: str | None = None,
        patience: Seconds = 10,
        check: bool = True,
        backend: Backend = NETWORK,
    ) -> None:
        """Raises ConfigError: `url` or `key` is none."""
        self._settings = check_settings(url, key, ca, patience)
        self._backend = backend
        self._wall_ms = backend.wall_ms
        self._check = check
        self._policies = AppliedPolicies()
        self._forget()
        call_after_fork(self, Client.forget_connections)

    # Tasks

    def create(
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
        """Create a task that is due after `delay` (`15`, `"1h30m"`, a timedelta), or `at` a time with a zone.

        It returns when the daemon has stored the task. Creating an `id` again, also for `remember` after its end, makes
        nothing new; `if_exists` may say otherwise. Without an id the client makes one, so that the create can be sent
        again. With a `durability` it returns when a disk or a replica has the task, too; DurabilityMissed says that the
        task was stored, but not there within `patience`.
        """
        draft = calls.draft(
            topic, content, callback=callback, delay=delay, at=at, id=id, if_exists=if_exists, retry=retry, ttl=ttl,
            headers=headers, context=context, remember=remember, durability=durability,
        )  # fmt: skip
        return self.create_draft(draft)

    def create_draft(self, draft: Draft) -> Enqueued:
        """Create a task that `draft` has made, as `create` does."""
        sent = self._fit_policy(draft)
        try:
            return self._create_fitted(sent)
        except Refused as error:
            refitted = self._refit({0: draft}, {0: sent}, {0: error})
            if not refitted:
                raise
        return self._create_fitted(refitted[0])

    def create_many(self, drafts: Iterable[Draft]) -> Results[Enqueued]:
        """Create many tasks, made by `draft`; return an answer or an error for each, in order.

        Only what failed is sent again. Raises LaterError: nothing could be sent.
        """
        given = dict(enumerate(drafts))
        sent: dict[int, Draft] = {}
        errors: dict[int, LaterError] = {}
        items: list[BatchItem[Enqueued]] = []
        for position, draft in given.items():
            try:
                fitted = self._fit_policy(draft)
                items.append(calls.create_item(fitted, self._wall_ms()))
                sent[position] = fitted
            except Refused as error:
                errors[position] = error
        results = calls.with_errors(self._send_batch("/create/batch", items), errors)
        refitted = self._refit(given, sent, dict(enumerate(results)))
        items = [calls.create_item(draft, self._wall_ms()) for draft in refitted.values()]
        again: Results[Enqueued]
        try:
            again = self._send_batch("/create/batch", items)
        except LaterError as error:  # those that were created are
            again = [error] * len(items)
        for position, result in zip(refitted, again, strict=True):
            results[position] = result
        return results

    def query(self, id: str) -> Info:
        """Return a task."""
        return self._send(calls.query(id))

    def query_many(self, ids: Iterable[str]) -> Results[Info]:
        """Return many tasks: a task or an error for each id, in order."""
        return self._send_batch("/query/batch", [calls.query_item(id) for id in ids])

    def delete(self, id: str, *, durability: DurabilityValue | None = None) -> Deleted:
        """Remove a task, and forget its id. If the first answer was lost, it may be NotFound although it was there."""
        return self._send(calls.delete(id, durability))

    def delete_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[Deleted]:
        """Remove many tasks: a deletion or an error for each id, in order."""
        return self._send_batch(calls.delete_batch_path(durability), [calls.delete_item(id) for id in ids])

    def list(
        self,
        topic: str,
        *,
        state: State | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
        reason: str | None = None,
    ) -> Iterator[Info]:
        """Yield the tasks of a topic in one state, `delay` if none is named, by due time; the dead by their deaths.

        With `reason`, only tasks that died of it. Pages are fetched as they are needed.
        """
        return self._items(
            calls.list_tasks(topic, state=state, due_after=due_after, due_before=due_before, reason=reason)
        )

    def update(
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
        """Change a waiting task. A `delay` counts from now; a `ttl` of None removes it. Conflict: it is in flight."""
        return self._send(
            calls.update(
                id, delay=delay, at=at, content=content, callback=callback, headers=headers, retry=retry, ttl=ttl,
                durability=durability,
            )
        )  # fmt: skip

    def run_now(self, id: str, *, durability: DurabilityValue | None = None) -> Info:
        """Let a task be due now, also a dead one."""
        return self._send(calls.run_now(id, durability))

    def run_now_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[DueTask]:
        """Let many tasks be due now: when each is due, or an error, in order."""
        return self._send_run(BatchRun.of_ids("/run-now", [calls.due_item(id) for id in ids], durability))

    def explain(self, *, id: str | None = None, topic: str | None = None) -> Explained:
        """Say why a task, or the tasks of a topic, have not run yet."""
        return self._send(calls.explain(id=id, topic=topic))

    def redrive(
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
        """Redrive a dead task, or a topic's that died before now, `rate` of them a second; return how many."""
        return self._move(
            calls.redrive(
                id=id, topic=topic, reason=reason, died_after=died_after,
                died_before=died_before, rate=rate, durability=durability, now=self._wall_ms(),
            )
        )  # fmt: skip

    def redrive_many(self, ids: Iterable[str], *, durability: DurabilityValue | None = None) -> Results[DueTask]:
        """Redrive many dead tasks: when each is due, or an error, in order."""
        return self._send_run(BatchRun.of_ids("/redrive", [calls.due_item(id) for id in ids], durability))

    def purge(
        self,
        topic: str,
        *,
        states: Sequence[str] | None = None,
        reason: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
    ) -> int:
        """Remove a topic's tasks for good, all that are not in flight or those in these states; return how many."""
        return self._move(
            calls.purge(topic, states=states, reason=reason, died_after=died_after, died_before=died_before)
        )

    def job(self, id: str, *, run: str | None = None) -> JobTotals:
        """Return the counts of a bulk job, or of one run of it."""
        return self._send(calls.job(id, run))

    # Topics

    def topics(self, *, namespace: str | None = None) -> Iterator[TopicInfo]:
        """Yield all topics, or those of a namespace, by name."""
        return self._items(topic_calls.topics(namespace))

    def topic(self, name: str) -> TopicInfo:
        """Return a topic, its counts and the policy that applies to it."""
        return self._send(topic_calls.topic(name))

    def policy(self, of: str | PolicyScope) -> AppliedPolicy:
        """Return the policy that applies to a topic, or to `namespace_scope("shop")`."""
        return self._send(topic_calls.policy(of))

    def set_policy(self, of: str | PolicyScope, fields: Mapping[str, object]) -> dict[str, PolicyValue]:
        """Set fields of a policy, such as `{"max_delay": "7d"}`; return all that are set there."""
        return self._send(topic_calls.set_policy(of, fields))

    def unset_policy(self, of: str | PolicyScope, fields: Sequence[str] = ()) -> dict[str, PolicyValue]:
        """Remove fields of a policy, or all of them; return those that are still set there."""
        return self._send(topic_calls.unset_policy(of, fields))

    def pause(self, topic: str) -> bool:
        """Stop the deliveries of a topic; return whether it is paused now."""
        return self._send(topic_calls.pause(topic))

    def resume(self, topic: str) -> bool:
        """Resume the deliveries of a topic; return whether it is paused now."""
        return self._send(topic_calls.resume(topic))

    # Schedules

    def put_schedule(
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
        """Create a schedule, or replace it: it makes a task each time that it fires, from its next firing on.

        It fires by `cron` (`"0 9 * * 1-5"`, `"@daily"`), in the time of `zone` (UTC without one), or `every` so often,
        counted from `start`. `catch_up` decides on the times that it missed: `one`, the latest, fires late; `all`; or
        `none`. Each task is due up to `jitter` after its time. The rest is as in `create`. The same call again changes
        nothing; `paused` counts only where it differs from the call before, so what an operator paused stays so.
        """
        fitted = self._fit_callback(topic, callback)
        return self._send(
            schedule_calls.put_schedule(
                id, topic, content, cron=cron, every=every, zone=zone, start=start, end=end, catch_up=catch_up,
                jitter=jitter, paused=paused, callback=fitted, retry=retry, ttl=ttl,
                headers=headers, context=context, remember=remember,
            )
        )  # fmt: skip

    def schedule(self, id: str) -> ScheduleInfo:
        """Return a schedule, with the next times at which it fires, and its last firing."""
        return self._send(schedule_calls.schedule(id))

    def schedules(self, *, namespace: str | None = None) -> Iterator[ScheduleInfo]:
        """Yield all schedules, or those of a namespace, by id. Pages are fetched as they are needed."""
        return self._items(schedule_calls.schedules(namespace))

    def delete_schedule(self, id: str) -> str:
        """Remove a schedule, and return its id. The tasks that it has made stay."""
        return self._send(schedule_calls.delete_schedule(id))

    def pause_schedule(self, id: str) -> bool:
        """Let a schedule fire no more until it is resumed; return whether it is paused now."""
        return self._send(schedule_calls.pause_schedule(id))

    def resume_schedule(self, id: str) -> bool:
        """Let a schedule fire again; return whether it is paused now. Its `catch_up` decides on what it missed."""
        return self._send(schedule_calls.resume_schedule(id))

    def run_schedule_now(self, id: str) -> str:
        """Create a task of a schedule now, beside those of its times; return the task's id."""
        return self._send(schedule_calls.run_schedule_now(id))

    # Consumers

    def claim(
        self,
        topics: str | Sequence[str] | Mapping[str, int],
        limit: int | None = None,
        *,
        lease: Seconds | None = None,
        wait: Seconds = 0,
    ) -> Sequence[ClaimedTask]:
        """Claim due tasks of pulled topics: up to `limit`, or so many of each topic. If none is due, wait for one."""
        return self._send(consumer_calls.claim(topics, limit, lease=lease, wait=wait))

    def ack(self, leases: Iterable[str]) -> Sequence[str]:
        """Say that tasks are done; return the leases that were lost, also those that a lost answer had acked."""
        return self._send(consumer_calls.ack(leases))

    def nack(
        self,
        leases: Iterable[str],
        *,
        delay: Seconds | None = None,
        message: str | None = None,
        reason: str | None = None,
        dead: bool = False,
        busy: bool = False,
    ) -> Sequence[str]:
        """Say that attempts have failed; return the leases that were lost.

        The next attempt comes after `delay`, or the topic's backoff; with `dead` none does. With `busy` this one costs
        no retry.
        """
        return self._send(
            consumer_calls.nack(leases, delay=delay, message=message, reason=reason, dead=dead, busy=busy)
        )

    def release(self, leases: Iterable[str]) -> Sequence[str]:
        """Give tasks back, due as before and without an attempt; return the leases that were lost."""
        return self._send(consumer_calls.release(leases))

    def extend(self, leases: Iterable[str], lease: Seconds | None = None) -> Sequence[str]:
        """Keep tasks for `lease` from now, or as long as their policies say; return the leases that were lost."""
        return self._send(consumer_calls.extend(leases, lease))

    # Connections

    def close(self) -> None:
        """Close the connections of all threads. A later call opens a new one."""
        for connection in [*self._connections]:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def forget_connections(self) -> None:
        """Forget the connections of a parent process."""
        _abandoned.append((self._local, [*self._connections]))
        self._forget()

    def _forget(self) -> None:
        self._local = threading.local()
        self._connections: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()

    def _connection(self) -> ThreadConnection:
        """Return the connection of this thread. Raises ConfigError: `ca` cannot be read."""
        connection: ThreadConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._backend.open_connection(self._settings)
            self._connections.add(connection)
        return connection

    # Sending

    def _send(self, call: Call[Answer]) -> Answer:
        """Send a call, again if that is safe and may help, and return its answer. Raises LaterError."""
        give_up_at = monotonic_s() + self._settings.patience_s
        is_unknown = False
        for attempt in count():
            try:
                return self._attempt(call, give_up_at - monotonic_s())
            except Unavailable as error:
                is_unknown = error.unknown = error.unknown or is_unknown
                pause_s = pause(attempt, error, call, random.random())
                if pause_s is None or monotonic_s() + pause_s >= give_up_at:
                    raise
            time.sleep(pause_s)
        raise AssertionError  # the last attempt returns or raises

    def _attempt(self, call: Call[Answer], left_s: float) -> Answer:
        timeout_s = attempt_timeout_s(left_s, call)
        reply = self._connection().exchange(call.method, call.path, call.body, call.content_type, timeout_s)
        return read(call, reply.status, reply.retry_after, reply.body, self._wall_ms())

    def _create_fitted(self, draft: Draft) -> Enqueued:
        return self._send(calls.create(calls.create_item(draft, self._wall_ms())))

    def _send_batch(self, path: str, items: Sequence[BatchItem[Answer]]) -> Results[Answer]:
        return self._send_run(BatchRun.of_batch(path, items))

    def _send_run(self, run: BatchRun[Answer]) -> Results[Answer]:
        while (call := run.next()) is not None:
            try:
                self._send(call)
            except LaterError as error:
                run.note_failure(error)
        return run.results()

    def _items(self, call: Call[Page[Item]] | None) -> Iterator[Item]:
        while call is not None:
            page = self._send(call)
            yield from page.items
            call = page.next

    def _move(self, call: Call[MovedTasks] | None) -> int:
        total = 0
        while call is not None:
            moved = self._send(call)
            total, call = total + moved.moved, moved.next
        return total

    # Policies

    def _fit_policy(self, draft: Draft) -> Draft:
        """Return a draft as its topic's policy takes it. Raises PolicyRefusal: one that was just read refuses it."""
        topic = topic_to_check(draft)
        if not self._check or topic is None:
            return draft
        is_known, policies = self._policies.find(topic, monotonic_s())
        if not is_known:
            policies = self._fetch_policy(topic)
        refusal = policy_refusal(fit_draft(draft, policies), policies, self._wall_ms())
        if refusal is not None and is_known:
            policies = self._fetch_policy(topic)
            refusal = policy_refusal(fit_draft(draft, policies), policies, self._wall_ms())
        if refusal is not None:
            raise refusal
        return fit_draft(draft, policies)

    def _refit(
        self, drafts: Mapping[int, Draft], sent: Mapping[int, Draft], results: Mapping[int, object]
    ) -> dict[int, Draft]:
        """Return the drafts to send again: a callback was refused, and by the policy of now they are sent otherwise.

        The policy by which they were sent may have been kept for up to a minute.
        """
        refused = callback_refusals(sent, results) if self._check else {}
        policies = {topic: self._fetch_policy(topic) for topic in dict.fromkeys(refused.values())}
        refitted = {position: fit_draft(drafts[position], policies[topic]) for position, topic in refused.items()}
        return {position: draft for position, draft in refitted.items() if draft.callback != sent[position].callback}

    def _fit_callback(self, topic: str, callback: str | None) -> str | None:
        """Return a schedule's callback, or None if its topic is pulled by the policy, which is read anew."""
        name = topic_to_check(Draft(topic=topic))
        if not self._check or callback is None or name is None:
            return callback
        return fit_callback(callback, self._fetch_policy(name))

    def _fetch_policy(self, topic: str) -> Policies | None:
        """Return a topic's policy as the daemon applies it; None if it does not say: then nothing is checked."""
        try:
            applied = self._attempt(topic_calls.policy(topic), self._settings.patience_s)
        except LaterError:
            applied = None
        return self._policies.keep(topic, applied, monotonic_s())
