"""Tick function that fires schedules: it creates their tasks, then moves the schedules on to their next times.

In that order an interruption loses no firing, and repeats none: the task's id is made of the schedule and the time, so
whoever creates it again finds it there. Any number of instances may do so at once, and one of them moves the schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import structlog

from later.core.errors import LaterError, PolicyRefusal, Refused, first_fault
from later.core.policy import Deliver
from later.core.policy_scopes import Policies
from later.core.schedule import LATE_MS, FiringPlan, FiringRecord, FiringRefusal, firing_task, move_on, plan_firings
from later.core.task import Task
from later.metrics import Metrics
from later.store.fanout import MAX_READ_BYTES, split_by_weight
from later.store.open import Store
from later.store.schedules import LEFT_TO_OTHERS_MS, POSTPONE_MS, DueSchedule, ScheduleMove
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import TickResult

log = structlog.get_logger("later.schedules")

FIRING_EVERY_MS = 500
"""How often due schedules are looked for where no worker looks for them: one may be put in another process."""
SCHEDULES_PER_TICK = 500
TASKS_PER_TICK = 1000
"""Tasks after which a tick takes no further schedule: one that makes up for what was missed may have as many."""
FIRINGS_PER_TURN = 50
"""Schedules and firings after which other tasks of the event loop get a turn."""
TASKS_PER_CALL = 500
RETRY_MS = 1000
"""When a schedule is looked at again whose task the store did not take: others are not held up by it."""


class _Firing(NamedTuple):
    """A schedule's firing at a time (ms): the task that it is, or why it is refused."""

    position: int
    """The position of the schedule among those of the tick."""
    at: int
    task: Task | Refused


class ScheduleFirer:
    """Tick function that creates the tasks of due schedules, as callers would: under policies and the address guard.

    `check_callback` raises Refused. `on_created` is called with the earliest due time (ms) of new tasks, and their ids.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        check_callback: Callable[[str], None],
        on_created: Callable[[int, Sequence[str]], None],
        shard_selector: ShardSelector,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._check_callback = check_callback
        self._on_created = on_created
        self._shard_selector = shard_selector

    async def tick(self, now: int) -> TickResult:
        found = await self._store.schedules.due(now, SCHEDULES_PER_TICK, self._shard_selector.seen(now))
        if not found.schedules:
            return TickResult(0, found.next_at)
        due, plans = await self._plan(found.schedules, now)
        firings = await self._admit(due, plans)
        errors = await self._create(firings)
        await self._move_on(due, plans, [firing for firing in firings if firing.position not in errors], errors)
        if errors:
            await self._store.schedules.postpone([due[position] for position in errors], now + RETRY_MS)
        if (error := first_fault(errors.values())) is not None:
            raise error
        is_all = len(due) == len(found.schedules)
        next_times = [plan.next_at for plan in plans if plan.next_at is not None]
        next_times += [] if found.next_at is None else [found.next_at]
        next_times += [now + RETRY_MS] if errors else []
        return TickResult(len(due), min(next_times, default=None) if is_all else now)

    async def _plan(self, found: Sequence[DueSchedule], now: int) -> tuple[list[DueSchedule], list[FiringPlan]]:
        """Return which of the times of schedules fire, and the schedules, as many as one tick takes.

        A schedule whose times cannot be told here, because this machine does not know its zone, is left to other
        instances, then postponed.
        """
        due, plans, tasks = list[DueSchedule](), list[FiringPlan](), 0
        unknown: list[DueSchedule] = []
        for number, schedule in enumerate(found, 1):
            if number % FIRINGS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                plan = plan_firings(schedule.schedule, now)
            except (Refused, ValueError, OverflowError) as error:
                if now - schedule.at >= LEFT_TO_OTHERS_MS:
                    log.warning("schedule postponed", schedule=schedule.id, reason=str(error))
                    unknown.append(schedule)
                continue
            due.append(schedule)
            plans.append(plan)
            tasks += len(plan.times)
            if tasks >= TASKS_PER_TICK:
                break
        await self._store.schedules.postpone(unknown, now + POSTPONE_MS)
        return due, plans

    async def _admit(self, due: Sequence[DueSchedule], plans: Sequence[FiringPlan]) -> list[_Firing]:
        """Return the firings, each with the task that it is.

        What a policy refuses is judged again by one that is read anew.
        """
        policies, now = await self._store.policies.current(), (await self._store.time.now()).high
        firings: list[_Firing] = []
        for position, (schedule, plan) in enumerate(zip(due, plans, strict=True)):
            for at in plan.times:
                if len(firings) % FIRINGS_PER_TURN == 0:
                    await asyncio.sleep(0)
                task = self._admit_one(schedule, at, policies, now)
                if isinstance(task, PolicyRefusal):
                    policies = await self._store.policies.reread()
                    task = self._admit_one(schedule, at, policies, now)
                firings.append(_Firing(position, at, task))
        return firings

    def _admit_one(self, due: DueSchedule, at: int, policies: Policies, now: int) -> Task | Refused:
        try:
            task = firing_task(due.schedule.definition, at, policies, now)
            self._check_callback(task.callback)
        except Refused as refused:
            return refused
        return task

    async def _create(self, firings: Sequence[_Firing]) -> dict[int, LaterError]:
        """Create the tasks of firings; those that are there already stay as they are.

        Return the errors of those that could not be created, by the positions of their schedules.

        Raises:
            StoreDown: some may have been created. The next tick creates them again, which changes nothing.
        """
        tasks = [(firing.position, firing.task) for firing in firings if isinstance(firing.task, Task)]
        created: list[Task] = []
        errors: dict[int, LaterError] = {}
        least = MAX_READ_BYTES // TASKS_PER_CALL
        for some in split_by_weight(tasks, MAX_READ_BYTES, lambda item: max(least, len(item[1].content))):
            results = await self._store.tasks.create([task for _, task in some])
            for (position, task), result in zip(some, results, strict=True):
                if result is True:
                    created.append(task)
                elif isinstance(result, LaterError):
                    errors[position] = result
        await self._report(created)
        return errors

    async def _report(self, created: Sequence[Task]) -> None:
        """Count new tasks, and tell of them who claims them."""
        if not created:
            return
        self._metrics.count_created(task.topic for task in created)
        late_ms = [task.created_at - at for task in created if (at := task.scheduled_at) is not None]
        for late in late_ms:
            self._metrics.firings.count_created(late)
        if very_late := [late for late in late_ms if late > LATE_MS]:
            log.warning("schedules fire late", count=len(very_late), most_s=round(max(very_late) / 1000))
        self._on_created(min(task.execute_at for task in created), [task.id for task in created])
        policies = self._store.policies.latest
        topics = {task.topic for task in created}
        if policies.has_pulled and (
            pulled := {topic for topic in topics if policies.for_topic(topic).deliver is Deliver.PULL}
        ):
            await self._store.due_notices.send(pulled, min(task.execute_at for task in created if task.topic in pulled))

    async def _move_on(
        self,
        due: Sequence[DueSchedule],
        plans: Sequence[FiringPlan],
        firings: Sequence[_Firing],
        left_out: Container[int],
    ) -> None:
        """Set schedules to their next times, but for some, and note what has become of their firings.

        Raises StoreDown.
        """
        last: dict[int, FiringRecord] = {}
        refusals: dict[int, list[FiringRefusal]] = {}
        for position, at, task in firings:
            if isinstance(task, Task):
                last[position] = FiringRecord(at, task.id)
            else:
                refusals.setdefault(position, []).append(FiringRefusal(at, task.detail, task.field))
        moved = [position for position in range(len(due)) if position not in left_out]
        moves = [
            ScheduleMove(
                due[position],
                move_on(
                    due[position].schedule.state,
                    plans[position].next_at,
                    last.get(position),
                    refusals.get(position, []),
                ),
            )
            for position in moved
        ]
        results = await self._store.schedules.move_on(moves)
        if (error := first_fault(results)) is not None:
            raise error
        for position, result in zip(moved, results, strict=True):
            if result is True and position in refusals:
                self._report_refusals(due[position], refusals[position])

    def _report_refusals(self, due: DueSchedule, refusals: Sequence[FiringRefusal]) -> None:
        """Count refusals, and log the last one, as a warning unless the schedule's last one had the same reason."""
        self._metrics.firings.count_refused(len(refusals))
        before, latest = due.schedule.state.last_error, refusals[-1]
        if before is None or before.detail != latest.detail:
            log.warning("firing refused", schedule=due.id, field=latest.field, reason=latest.detail)
        else:
            log.debug("firing refused again", schedule=due.id, field=latest.field, reason=latest.detail)
