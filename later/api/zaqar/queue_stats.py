"""`GET /v2/queues/{queue}/stats`: how many messages a queue has, and the oldest and the newest of them."""

from __future__ import annotations

from aiohttp import web

from later.api.zaqar.error_answers import ROOT
from later.api.zaqar.protocol import ZaqarCall, document_response
from later.core.clock import rfc3339
from later.core.task import Task
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange, TaskRecord


class QueueStatsHandler:
    """The handler of a queue's statistics."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def show(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues/{queue}/stats`. As in Zaqar, what is not claimed is free, also if it is delayed."""
        now, topic = await self._store.time.now(), call.topic
        *sizes, claimed = await self._store.dead_letters.count(
            [
                *(BucketRange(topic, bucket) for bucket in (Bucket.DELAY, Bucket.ERROR, Bucket.UNACK)),
                BucketRange(topic, Bucket.UNACK, since=now.low + 1),  # a claim that has ended does not count
            ]
        )
        messages: dict[str, object] = {"claimed": claimed, "free": sum(sizes) - claimed, "total": sum(sizes)}
        if tasks := await self._read_ends(topic):
            for name, task in (("oldest", tasks[0]), ("newest", tasks[-1])):
                messages[name] = _message_view(task, call.queue, now.high)
        return document_response({"messages": messages})

    async def _read_ends(self, topic: str) -> list[Task]:
        """Return the first and last tasks of a topic's buckets, by their creation."""
        records = await self._store.lookup.query(await self._store.queues.end_ids(topic))
        tasks = [record.task for record in records if isinstance(record, TaskRecord)]
        return sorted((task for task in tasks if isinstance(task, Task)), key=lambda task: (task.created_at, task.id))


def _message_view(task: Task, queue: str, now: int) -> dict[str, object]:
    return {
        "href": f"{ROOT}/queues/{queue}/messages/{task.id}",
        "age": max(now - task.created_at, 0) // 1000,
        "created": rfc3339(task.created_at).split(".", maxsplit=1)[0] + "Z",
    }
