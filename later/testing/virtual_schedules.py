"""The schedules of a virtual clock, in memory. When they fire, and what they create, is decided in `core.schedule`."""

from __future__ import annotations

import msgspec

from later.api.schedule_answers import ScheduleResponse, format_times, schedule_view
from later.core.caller import ANYBODY
from later.core.errors import Refused, ScheduleNotFound
from later.core.policy_scopes import namespace_from_topic
from later.core.schedule import (
    TIMES_SHOWN,
    FiringRecord,
    FiringRefusal,
    Schedule,
    StoredSchedule,
    build_schedule,
    extra_firing_id,
    firing_task,
    move_on,
    next_times,
    parse_schedule_draft,
    plan_firings,
    put_schedule,
    set_paused,
)
from later.core.task import Task
from later.testing.virtual_store import VirtualStore


class VirtualSchedules:
    """Schedules by their ids, which create tasks in a store. Times are in ms."""

    def __init__(self, store: VirtualStore) -> None:
        self._store = store
        self._schedules: dict[str, StoredSchedule] = {}

    # Calls

    def put(self, id: str, body: bytes, now: int) -> object:
        """Put a schedule. An equal one that is there stays as it is. Raises Refused."""
        own_id = ANYBODY.own_schedule(id)
        definition = build_schedule(parse_schedule_draft(body), own_id, ANYBODY)
        self._task(definition, now)
        before = self._schedules.get(id)
        if before is None or before.definition != definition:
            self._schedules[id] = put_schedule(definition, before, now)
        times = next_times(self._schedules[id], now, TIMES_SHOWN)
        return ScheduleResponse(id=id, created=before is None, next=format_times(times))

    def show(self, id: str, now: int) -> object:
        """Return a schedule. Raises NotFound."""
        return schedule_view(self._find(id), now, TIMES_SHOWN)

    def page(self, namespace: str | None, now: int) -> object:
        """Return all schedules, or those of a namespace, by their ids."""
        found = [self._schedules[id] for id in sorted(self._schedules)]
        listed = [s for s in found if namespace in (None, namespace_from_topic(s.definition.topic))]
        return {"schedules": [schedule_view(schedule, now, 1) for schedule in listed], "cursor": None}

    def delete(self, id: str) -> object:
        """Remove a schedule. Its tasks stay. Raises NotFound."""
        self._find(id)
        del self._schedules[id]
        return {"id": id}

    def set_paused(self, id: str, paused: bool) -> object:
        """Pause or resume a schedule. Raises NotFound."""
        self._schedules[id] = set_paused(self._find(id), paused)
        return {"id": id, "paused": paused}

    def run_now(self, id: str, now: int) -> object:
        """Create a task beside those of the schedule's times. Raises NotFound, Refused."""
        definition, state = (schedule := self._find(id)).definition, schedule.state
        task = msgspec.structs.replace(self._task(definition, now), id=extra_firing_id(id))
        self._store.create(task, now)
        state = msgspec.structs.replace(state, last=FiringRecord(now, task.id))
        self._schedules[id] = StoredSchedule(definition, state)
        return {"id": task.id}

    # Time

    def next_at(self) -> int | None:
        """Return when a schedule fires next; None if none will."""
        times = (found.state.next_at for found in self._schedules.values() if not found.state.paused)
        return min((at for at in times if at is not None), default=None)

    def fire(self, now: int) -> None:
        """Create the tasks of the schedules whose times have come, and move these on. A refusal is kept with them."""
        for id, schedule in self._schedules.items():
            if schedule.state.paused or schedule.state.next_at is None or schedule.state.next_at > now:
                continue
            plan, last, refusals = plan_firings(schedule, now), None, list[FiringRefusal]()
            for at in plan.times:
                try:
                    task = firing_task(schedule.definition, at, self._store.policies, now)
                except Refused as error:
                    refusals.append(FiringRefusal(at, error.detail, error.field))
                    continue
                self._store.create(task, now)
                last = FiringRecord(at, task.id)
            state = move_on(schedule.state, plan.next_at, last, refusals)
            self._schedules[id] = StoredSchedule(schedule.definition, state)

    def _find(self, id: str) -> StoredSchedule:
        found = self._schedules.get(ANYBODY.schedule_name(id))
        if found is None:
            raise ScheduleNotFound(id)
        return found

    def _task(self, definition: Schedule, now: int) -> Task:
        """Return the task of a firing at this time, without jitter. Raises Refused: a create of it would be."""
        return firing_task(msgspec.structs.replace(definition, jitter_ms=0), now, self._store.policies, now)
