"""The tasks of a virtual clock, in memory. What may be done to a task, and what becomes of it, is decided in `core`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

import msgspec

from later.client.answers import Deleted, Enqueued
from later.core.admit import expiry_warning
from later.core.dead_letter_topic import move_back, move_dead
from later.core.edit import TaskChanges, edit, renew_ttl
from later.core.errors import NotFound
from later.core.follow_up import build_follow_up, follow_up_topic
from later.core.if_exists import Creation, ExclusiveCreate, Upsert, id_exists, task_of
from later.core.ordered_ids import order_id
from later.core.origin import Origin
from later.core.policy import DEFAULT_POLICY, PULL, Policy
from later.core.policy_scopes import Policies
from later.core.retry import Failure, SettleTarget, Verdict, expiry_failure
from later.core.state_conflicts import (
    edit_conflict,
    not_pending,
    other_topic_conflict,
    redrive_conflict,
    run_now_conflict,
)
from later.core.task import Task, new_id
from later.core.task_view import DEAD, ended_view

DELAY = "delay"
UNACK = "unack"
ERROR = "error"


@dataclass(kw_only=True, slots=True, eq=False)
class VirtualTask:
    """A task in one of the states. `due_at` (ms) is when it is due, when its lease ends, or when it has died.

    `number` orders tasks of one due time as they came.
    """

    number: int
    task: Task
    state: str
    due_at: int
    attempts: int = 0
    failure: Failure | None = None

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def topic(self) -> str:
        return self.task.topic

    @property
    def is_waiting(self) -> bool:
        return self.state in (DELAY, ERROR)


class VirtualStore:
    """Tasks by their ids, the ids that are remembered, policies, and what holds a topic. Times are in ms."""

    def __init__(self) -> None:
        self.policies = Policies(DEFAULT_POLICY)
        self.tasks: dict[str, VirtualTask] = {}
        self.done: list[VirtualTask] = []
        """The tasks that are done, in the order in which they ended."""
        self.holds: dict[tuple[str, Origin], int] = {}
        """Until when calls of a topic to an origin are held, because that asked for it."""
        self._remembered: dict[str, int] = {}
        self._next_starts: dict[str, int] = {}
        """When the next delivery of a topic with a rate may begin."""
        self._numbers = count()

    # Verbs

    def create(self, creation: Creation, now: int) -> Enqueued:
        """Carry out a create. Raises Exists, Conflict, Refused."""
        task = task_of(creation)
        there = self.tasks.get(task.id)
        if isinstance(creation, Upsert):
            return self._upsert(creation, there, now)
        if there is None and task.id not in self._remembered:
            return self._add(task)
        due_at = None if there is None or there.state == DEAD else there.due_at
        if isinstance(creation, ExclusiveCreate):
            raise id_exists(task, due_at)
        return Enqueued(id=task.id, created=False, due_at=to_datetime(due_at))

    def _upsert(self, upsert: Upsert, there: VirtualTask | None, now: int) -> Enqueued:
        """Create a task, or edit the one that waits. One that is dead, or died in this topic, gives its place."""
        task, changes, policies = upsert
        if there is None or there.state == DEAD:
            return self._add(task)
        if there.state == UNACK:
            raise edit_conflict(task.id, UNACK)
        if there.topic != task.topic:
            if there.task.death is None or there.task.death.topic != task.topic:
                raise other_topic_conflict(task.id, there.topic, task.topic)
            return self._add(task)
        self._edit(there, changes, policies, now)
        if task.remember_ms is not None:
            there.task = msgspec.structs.replace(there.task, remember_ms=task.remember_ms)
        return Enqueued(id=task.id, created=False, updated=True, due_at=to_datetime(there.due_at))

    def update(self, id: str, changes: TaskChanges, now: int) -> VirtualTask:
        """Edit a task that waits. Raises NotFound, Conflict, Refused."""
        found = self.find(id)
        if found.is_waiting:
            self._edit(found, changes, self.policies, now)
            return found
        edit(found.task, changes, self.policies, now)  # a wrong field is told first
        raise edit_conflict(id, found.state)

    def run_now(self, id: str, now: int) -> VirtualTask:
        """Let a task be due now, also a dead one. Raises NotFound, Conflict."""
        found = self.find(id)
        if found.state == UNACK:
            raise run_now_conflict(id)
        if found.state == DEAD:
            return self._bring_back(found, renew_ttl(found.task, now), now)
        found.state, found.due_at = DELAY, min(found.due_at, now)
        return found

    def redrive(self, id: str, now: int, due_at: int | None = None) -> VirtualTask:
        """Let a dead task be due again; one in a dead-letter topic goes back. Raises NotFound, Conflict."""
        found = self.find(id)
        if found.state == DEAD:
            return self._bring_back(found, renew_ttl(found.task, now), now if due_at is None else due_at)
        if found.is_waiting and found.task.death is not None:
            return self._bring_back(found, move_back(found.task, found.task.death, now), now)
        raise redrive_conflict(id, found.state)

    def delete(self, id: str, *, pending_only: bool = False) -> Deleted:
        """Remove a task, or forget the id of one that has ended. Raises NotFound, Conflict."""
        if not pending_only and id not in self.tasks and self._remembered.pop(id, None) is not None:
            return Deleted(id=id, ended=True)
        found = self.find(id)
        if pending_only and found.state == DEAD:
            raise not_pending(id)
        del self.tasks[id]
        return Deleted(id=id, in_flight=found.state == UNACK)

    def find(self, id: str) -> VirtualTask:
        """Return a task. Raises NotFound."""
        found = self.tasks.get(id)
        if found is None:
            raise NotFound(id, ended=id in self._remembered)
        return found

    def select(self, topic: str, states: tuple[str, ...]) -> list[VirtualTask]:
        """Return the tasks of a topic in these states, by their due times."""
        found = [task for task in self.tasks.values() if task.topic == topic and task.state in states]
        return sorted(found, key=lambda task: (task.due_at, task.number))

    # Time

    def next_event(self, is_served: Callable[[VirtualTask, Policy], bool]) -> tuple[int, VirtualTask] | None:
        """Return the task that is delivered next, or whose ttl ends before, and when; None if nothing will happen.

        `is_served` says whether there is anything that its topic's tasks are delivered to.
        """
        events = [
            (at, task.due_at, task.number, task)
            for task in self.tasks.values()
            if task.is_waiting
            for at in self._times_of(task, is_served)
        ]
        if not events:
            return None
        at, _, _, task = min(events, key=lambda event: event[:3])
        return at, task

    def _times_of(self, task: VirtualTask, is_served: Callable[[VirtualTask, Policy], bool]) -> Iterator[int]:
        """Yield when a waiting task expires, and when it is delivered, if it is."""
        if task.task.expires_at is not None:
            yield task.task.expires_at
        policy = self.policies.for_topic(task.topic)
        if policy.paused or not is_served(task, policy):
            return
        origin = origin_of(task.task, policy)
        held_until = self.holds.get((task.topic, origin), 0) if origin is not None else 0
        may_start_at = self._next_starts.get(task.topic, 0) if policy.rate else 0
        yield max(task.due_at, held_until, may_start_at)

    def move_time(self, now: int) -> None:
        """Let happen by `now` what needs no delivery: pauses end, holds, retention and memories too."""
        for task in [*self.tasks.values()]:
            if task.state == ERROR and task.due_at <= now:
                task.state = DELAY
            elif task.state == DEAD:
                policy = self.policies.for_topic(task.topic)
                removed_at = task.due_at + policy.dead_keep_ms
                if removed_at <= now:
                    del self.tasks[task.id]
                    self._remember(task.task, policy, removed_at)
        self._remembered = {id: until for id, until in self._remembered.items() if until > now}
        self.holds = {key: until for key, until in self.holds.items() if until > now}

    def claim(self, task: VirtualTask, now: int, lease_ms: int) -> None:
        """Begin an attempt at a task, which counts against the rate of its topic."""
        rate = self.policies.for_topic(task.topic).rate
        if rate:
            self._next_starts[task.topic] = now + math.ceil(1000 / rate)
        task.state, task.due_at, task.attempts = UNACK, now + lease_ms, task.attempts + 1

    def give_back(self, task: VirtualTask, due_at: int) -> None:
        """End an attempt as if it had not begun."""
        task.state, task.due_at, task.attempts = DELAY, due_at, task.attempts - 1

    def expire(self, task: VirtualTask, now: int) -> None:
        """Let a waiting task die whose ttl has ended."""
        self.settle(task, Verdict(SettleTarget.DEAD, now, expiry_failure(task.failure, now)))

    def settle(self, task: VirtualTask, verdict: Verdict) -> None:
        """Carry out a verdict, with the move and the follow-up that it has by the policies. A deleted task stays so."""
        if self.tasks.get(task.id) is not task:
            return
        verdict = move_dead(verdict, task.task, self.policies)
        self._make_follow_up(task, verdict)
        if verdict.moved is not None:
            self._bring_back(task, verdict.moved, verdict.at)
            return
        task.failure = verdict.failure or task.failure
        task.due_at = verdict.at
        if verdict.target is not SettleTarget.DONE:
            task.state = verdict.target.value
            return
        del self.tasks[task.id]
        self.done.append(task)
        self._remember(task.task, self.policies.for_topic(task.topic), verdict.at)

    # Steps

    def _add(self, task: Task) -> Enqueued:
        self._remembered.pop(task.id, None)
        self.tasks[task.id] = VirtualTask(number=next(self._numbers), task=task, state=DELAY, due_at=task.execute_at)
        return Enqueued(id=task.id, due_at=to_datetime(task.execute_at), warning=expiry_warning(task))

    def _edit(self, task: VirtualTask, changes: TaskChanges, policies: Policies, now: int) -> None:
        task.task = edit(task.task, changes, policies, now)
        if changes.sets_due_time:
            task.state, task.due_at = DELAY, task.task.execute_at

    def _bring_back(self, task: VirtualTask, renewed: Task, due_at: int) -> VirtualTask:
        """Let a task begin anew."""
        task.task, task.state, task.due_at = renewed, DELAY, due_at
        task.number, task.attempts, task.failure = next(self._numbers), 0, None
        return task

    def _make_follow_up(self, task: VirtualTask, verdict: Verdict) -> None:
        topic = follow_up_topic(task.topic, task.task, verdict.target, self.policies)
        if topic:
            policy = self.policies.for_topic(topic)
            id = order_id(new_id(), verdict.at) if policy.deliver is PULL else new_id()
            content = msgspec.json.encode(ended_view(task, verdict)).decode()
            self._add(build_follow_up(topic, id, content, policy, verdict.at, task.task))

    def _remember(self, task: Task, policy: Policy, ended_at: int) -> None:
        until = policy.remember_until(ended_at, task.remember_ms)
        if task.own_id and until is not None:
            self._remembered[task.id] = until


def origin_of(task: Task, policy: Policy) -> Origin | None:
    """Return the origin that is called for a task; None if none is."""
    callback = "" if policy.deliver is PULL else task.callback or policy.callback
    return Origin.of(callback) if callback else None


def to_datetime(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
