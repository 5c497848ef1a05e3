"""The index of tasks that have a ttl: is every one of them in it? For the doctor."""

from __future__ import annotations

from later.core.errors import UnreadableBody
from later.core.task import Task, decode
from later.store import scripts
from later.store.client import Client
from later.store.keys import Shard, expiry_member


class ExpiryIndex:
    """Every method raises StoreDown."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def suspects(self, shard: Shard, bodies: dict[bytes, bytes]) -> list[bytes]:
        """Ids of tasks that have a ttl, and that were not seen in the index."""
        tasks = {id: task for id, body in bodies.items() if (task := _ageing(body)) is not None}
        if not tasks:
            return []
        members = [expiry_member(task.topic.encode(), id) for id, task in tasks.items()]
        scores = await self._client.execute("doctor", ("ZMSCORE", shard.expiry, *members))
        return [id for id, score in zip(tasks, scores, strict=True) if score is None]

    async def missing(self, shard: Shard, id: bytes) -> bytes | None:
        """The topic of a task that waits, or is in flight, and is missing; None where nothing is wrong."""
        return await self._reindex(shard, id, mend=False)

    async def mend(self, shard: Shard, id: bytes) -> bool:
        """Put it there; False where nothing is wrong any more."""
        return await self._reindex(shard, id, mend=True) is not None

    async def _reindex(self, shard: Shard, id: bytes, *, mend: bool) -> bytes | None:
        body = await self._client.execute("doctor", ("HGET", shard.pool, id))
        task = None if body is None else _ageing(body)
        if task is None or task.expires_at is None:
            return None
        topic = task.topic.encode()
        keys = [shard.pool, *shard.buckets(topic)[:3], shard.expiry]
        call = scripts.REPAIR_EXPIRY.call(keys, [topic, id, body, task.expires_at, int(mend)])
        return topic if await self._client.execute("doctor", call) else None


def _ageing(body: bytes) -> Task | None:
    """The task, if it has a ttl."""
    try:
        task = decode("", body)
    except UnreadableBody:
        return None
    return None if task.expires_at is None else task
