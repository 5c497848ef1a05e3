"""The creation of tasks that were admitted, for one request or for a group of them."""

from __future__ import annotations

from collections.abc import Sequence

from later.api.due_signals import DueSignals
from later.core.errors import LaterError
from later.core.task import Task
from later.metrics import Metrics
from later.store.open import Store
from later.store.types import CreateResult, ExistingTask


async def create_tasks(
    store: Store, metrics: Metrics, signals: DueSignals, tasks: Sequence[Task]
) -> list[CreateResult | LaterError]:
    """Store tasks, count them, and signal the new ones. Raises StoreDown: whether anything was stored is not known."""
    results = await store.tasks.create(tasks)
    if created := [task for task, result in zip(tasks, results, strict=True) if result is True]:
        metrics.tasks_created.inc(len(created))
        signals.tasks_created(created)
    if len(created) < len(results):
        metrics.tasks_duplicate.inc(sum(isinstance(result, ExistingTask) for result in results))
    return results
