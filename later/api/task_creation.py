"""The creation of tasks that were admitted, for one request or for a group of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from later.api.due_signals import DueSignals
from later.core.errors import Conflict, LaterError, PolicyRefusal, StoreDown
from later.core.if_exists import Creation, ExclusiveCreate, Upsert, id_exists, task_of
from later.core.task import Task
from later.core.task_names import name_of
from later.metrics import Metrics
from later.store.open import Store
from later.store.types import CreateResult, ExistingTask, UpdatedTask

Result = CreateResult | LaterError


async def create_tasks(store: Store, metrics: Metrics, signals: DueSignals, tasks: Sequence[Task]) -> list[Result]:
    """Store tasks, count them, and signal the new ones. Raises StoreDown: whether anything was stored is not known."""
    results = await store.tasks.create(tasks)
    if created := [task for task, result in zip(tasks, results, strict=True) if result is True]:
        metrics.count_created([task.topic for task in created])
        signals.tasks_created(created)
    if len(created) < len(results):
        metrics.tasks_duplicate.inc(sum(isinstance(result, ExistingTask) for result in results))
    return results


async def carry_out_counted(
    store: Store, metrics: Metrics, signals: DueSignals, creations: Sequence[Creation]
) -> list[Result]:
    """Carry out creates, and count them. Raises StoreDown: whether anything was stored is not known."""
    results = await carry_out(store, signals, creations)
    metrics.count_created(
        task_of(creation).topic for creation, result in zip(creations, results, strict=True) if result is True
    )
    metrics.tasks_duplicate.inc(sum(isinstance(result, ExistingTask | UpdatedTask | Conflict) for result in results))
    return results


async def carry_out(store: Store, signals: DueSignals, creations: Sequence[Creation]) -> list[Result]:
    """Carry out creates, one after the other where they have the same id, and signal the tasks that are due now.

    Raises:
        StoreDown: whether anything was stored is not known.
    """
    results: list[Result] = []
    for some in _split(creations):
        try:
            results += await _carry_out_any_order(store, signals, some)
        except StoreDown as error:
            if not results:
                raise
            return results + [error] * (len(creations) - len(results))  # earlier results are known
    return results


def _split(creations: Sequence[Creation]) -> Iterator[Sequence[Creation]]:
    """Yield the creations in parts, in none of which an id is both to be upserted and to be created."""
    start, upserted = 0, dict[str, bool]()
    for position, creation in enumerate(creations):
        name, is_upsert = name_of(task_of(creation)), isinstance(creation, Upsert)
        if upserted.setdefault(name, is_upsert) is not is_upsert:
            yield creations[start:position]
            start, upserted = position, {name: is_upsert}
    yield creations[start:]


async def _carry_out_any_order(store: Store, signals: DueSignals, creations: Sequence[Creation]) -> list[Result]:
    upserts = [creation for creation in creations if isinstance(creation, Upsert)]
    others = [creation for creation in creations if not isinstance(creation, Upsert)]
    created = await _create(store, signals, others) if others else []
    upserted: list[Result] = []
    try:
        upserted += await _upsert(store, signals, upserts) if upserts else []
    except StoreDown as error:
        if not others:
            raise
        upserted += [error] * len(upserts)
    of_upserts, of_others = iter(upserted), iter(created)
    return [next(of_upserts if isinstance(creation, Upsert) else of_others) for creation in creations]


async def _create(store: Store, signals: DueSignals, creations: Sequence[Task | ExclusiveCreate]) -> list[Result]:
    """Create tasks; an exclusive create of an id that exists is `Exists`."""
    results: list[Result] = [*await store.tasks.create(list(map(task_of, creations)))]
    for position, (creation, result) in enumerate(zip(creations, results, strict=True)):
        if isinstance(creation, ExclusiveCreate) and isinstance(result, ExistingTask):
            results[position] = id_exists(creation.task, result.due_at)
    if created := [task_of(creation) for creation, result in zip(creations, results, strict=True) if result is True]:
        signals.tasks_created(created)
    return results


async def _upsert(store: Store, signals: DueSignals, upserts: Sequence[Upsert]) -> list[Result]:
    """Upsert tasks; those that a policy refuses are judged again by one read anew.

    If the store goes away before that, those have `StoreDown` as their results.
    """
    results = await store.upserts.upsert(upserts)
    if refused := [n for n, result in enumerate(results) if isinstance(result, PolicyRefusal)]:
        again: Sequence[Result]
        try:
            policies = await store.policies.reread()
            again = await store.upserts.upsert([upserts[n]._replace(policies=policies) for n in refused])
        except StoreDown as error:
            again = [error] * len(refused)
        for position, result in zip(refused, again, strict=True):
            results[position] = result
    for (task, changes, _), result in zip(upserts, results, strict=True):
        if result is True:
            signals.topics_moved({task.topic: 1}, task.execute_at, [task.id])
        elif isinstance(result, UpdatedTask) and changes.sets_due_time:
            signals.topics_moved({task.topic: 1}, result.due_at, [task.id])
    return results
