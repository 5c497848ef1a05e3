"""How a topic stands: whether it is held, and when its next task is due."""

from __future__ import annotations

import math

from later.store import scripts
from later.store.client import Client
from later.store.codec import parse_time
from later.store.keys import Bucket, Keys
from later.store.types import TopicState


async def topic_state(client: Client, keys: Keys, topic: bytes) -> TopicState:
    """Over all shards; where one holds a topic longer than others, that counts. Raises StoreDown."""
    delays = [(shard.bucket(Bucket.DELAY, topic), shard.wakes[Bucket.DELAY]) for shard in keys.shards]
    answers = await client.execute_all("explain", [scripts.STANDING.call(some, [topic]) for some in delays])
    holds = [-float(entry) for entry, _ in answers if entry and float(entry) < 0]
    until = max((math.ceil(hold) for hold in holds if hold != math.inf), default=None)
    dues = [due_at for _, first in answers if (due_at := parse_time(first)) is not None]
    return TopicState(math.inf in holds, until, min(dues, default=None))
