"""Signals that tasks are, or will be, due: to the delay ticker of this process, and to its claims that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from later.api.claim_queues import ClaimQueues
from later.core.policy import Deliver
from later.core.task import Task
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import TaskRecord


class DueSignals:
    """Signals of the handlers that put tasks into delay.

    `wake_delay_ticker` takes the earliest due time (ms), and the ids of the tasks; none, if they are not known.
    """

    def __init__(
        self, wake_delay_ticker: Callable[[int, Sequence[str]], None], queues: ClaimQueues, store: Store
    ) -> None:
        self._wake_delay_ticker = wake_delay_ticker
        self._queues = queues
        self._store = store
        self._notices: set[asyncio.Task[None]] = set()

    def tasks_created(self, tasks: Sequence[Task]) -> None:
        """Signal new tasks, of which there is one at least."""
        self._wake_delay_ticker(min([task.execute_at for task in tasks]), [task.id for task in tasks])
        if not self._queues.is_empty:
            for task in tasks:
                self._queues.signal(task.topic, task.execute_at, 1)

    def task_changed(self, record: TaskRecord) -> None:
        """Signal a task that was changed or brought back, if it is in delay now."""
        if record.state is Bucket.DELAY:
            self.topics_moved({record.topic: 1}, record.score, [record.id])

    def task_given_back(self, topic: str, due_at: int) -> None:
        """Signal a task that is due again, as before (ms); the store's verb has told other processes of it."""
        self._queues.signal(topic, due_at, 1)

    def tasks_moved(self, topic: str, due_at: int, count: int) -> None:
        """Signal tasks of one topic that were moved to delay, where they are due at the same time (ms)."""
        self.topics_moved({topic: count}, due_at)

    def topics_moved(self, counts: Mapping[str, int], due_at: int, ids: Sequence[str] = ()) -> None:
        """Signal tasks that were moved to delay, so many of each topic, where they are due at the same time (ms).

        `ids` are all of theirs, if they are known.

        Claims of pulled topics may also wait in other processes. (A create itself tells them.)
        """
        self._wake_delay_ticker(due_at, ids)
        for topic, count in counts.items():
            self._queues.signal(topic, due_at, count)
        policies = self._store.policies.latest
        if pulled := [topic for topic in counts if policies.for_topic(topic).deliver is Deliver.PULL]:
            notice = asyncio.ensure_future(self._store.due_notices.send(pulled, due_at))
            self._notices.add(notice)
            notice.add_done_callback(self._notices.discard)
