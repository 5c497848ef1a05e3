"""Run-now and redrive of several tasks by their ids: a result for each, from as few round trips as for one topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web
from msgspec import UNSET

from later.api.authorization import CALLER
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.item_results import change_result, count_errors
from later.api.load_shedding import PendingWrites
from later.api.requests import parse_ids
from later.api.response_schemas import MovedTask, MovedTasksResponse
from later.api.routes import AUTHORIZATION
from later.core.clock import rfc3339
from later.core.durability import PRIMARY, Durability, parse_durability
from later.core.errors import Conflict, InFlight, LaterError, NotFound, Refused
from later.core.policy_scopes import namespace_from_topic
from later.store.open import Store
from later.store.types import TaskRecord

Move = Callable[[Sequence[str], int], Awaitable[list[TaskRecord | LaterError]]]
"""A verb of the store that makes tasks due: it takes their names and the time in ms, and returns where each is then."""
MAX_SHOWN_TOPICS = 10
"""Topics that an audit event names: a request may have a task of each of a thousand."""


class MovesByIds:
    """Makes tasks due that a request names by their ids."""

    def __init__(
        self, *, store: Store, pending_writes: PendingWrites, signals: DueSignals, durable_writes: DurableWrites
    ) -> None:
        self._durable_writes = durable_writes
        self._store = store
        self._pending_writes = pending_writes
        self._signals = signals

    def admit(self, request: web.Request, ids: Sequence[str]) -> list[str | Refused]:
        """Return the name of each task that a request names by these ids, or the refusal of one that is no id.

        Raises:
            Refused: there are no ids, or too many, or the rate of the caller's key does not allow so many.
        """
        names = parse_ids(ids, request[CALLER])
        request.app[AUTHORIZATION].charge_batch(request[CALLER], len(ids))
        return names

    async def carry_out(
        self,
        names: Sequence[str | Refused],
        move: Move,
        durability: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> MovedTasksResponse:
        """Make these tasks due, and return what became of each. An audit event gets `details` of those that were moved.

        A task that is named twice is moved once. The moves have the level `durability`, or that of the policies.

        Raises:
            Refused: the store does not offer that level, and no task was moved.
            StoreDown: no task was moved, or it is not known whether one was.
        """
        valid = list(dict.fromkeys(name for name in names if isinstance(name, str)))
        asked = parse_durability(durability)
        with self._pending_writes.reserve(len(names)):
            changes = await self._durable_writes.begin_change(asked)
            now = (await self._store.time.now()).high
            found = dict(zip(valid, await move(valid, now), strict=True))
        records = [record for record in found.values() if isinstance(record, TaskRecord)]
        moved = Counter(record.topic for record in records)
        if moved:
            self._signals.topics_moved(moved, now, [record.id for record in records])
        if details is not None:
            details.update(_audit_details(moved))
        reached, missed = await self._durable_writes.confirm_items(
            list(found.items()), asked, changes, unchanged=(NotFound, Conflict)
        )
        found |= {name: error for name, error in zip(found, missed, strict=True) if error is not None}
        answers = [name if isinstance(name, Refused) else found[name] for name in names]
        return _response(answers, [*found.values(), *(name for name in names if isinstance(name, Refused))], reached)


def _response(
    answers: Sequence[TaskRecord | LaterError], distinct: Sequence[TaskRecord | LaterError], reached: Durability
) -> MovedTasksResponse:
    """Return the response of these answers in order; each task is once among the `distinct` ones.

    Raises:
        LaterError: no task was moved or found, and one has failed.
    """
    errors = count_errors(distinct)
    in_flight = sum(isinstance(answer, InFlight) for answer in distinct)
    conflicts = sum(isinstance(answer, Conflict) for answer in distinct)
    return MovedTasksResponse(
        moved=sum(isinstance(answer, TaskRecord) for answer in distinct),
        missing=errors.missing,
        refused=errors.refused + conflicts - in_flight,
        in_flight=in_flight,
        failed=errors.failed,
        durability=UNSET if reached is PRIMARY else reached,
        results=[change_result(answer, _moved_task) for answer in answers],
    )


def _moved_task(record: TaskRecord) -> MovedTask:
    return MovedTask(id=record.id, due_at=rfc3339(record.due_at))


def _audit_details(moved: Counter[str]) -> dict[str, Any]:
    """Return how many tasks were moved, and their topics, or the most frequent ones with the number of the others."""
    if len(moved) == 1:
        return {"topic": next(iter(moved)), "tasks": moved.total()}
    namespaces = {namespace_from_topic(topic) for topic in moved}
    return {
        "namespace": namespaces.pop() if len(namespaces) == 1 else None,
        "topics": [topic for topic, _ in moved.most_common(MAX_SHOWN_TOPICS)] or None,
        "more_topics": max(len(moved) - MAX_SHOWN_TOPICS, 0) or None,
        "tasks": moved.total(),
    }
