"""Raw calls of the two scripts behind a consumer's claim and ack, written straight to the socket."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from later.core.retry import SettleTarget
from later.core.task import new_id, pack_id
from later.store.keys import Keys
from later.store.types import ClaimRequest
from scripts.bench.raw_script import RawConnection, pack_commands, record_commands
from scripts.bench.results import BenchError

LEASE_MS = 30_000
ARGUMENTS_PER_TASK = 6
"""Of the script `settle`: id, fence, target, time, last failure, whether it has a ttl."""


class PullCalls:
    """The calls that claim tasks of a topic, so many at a time, and that settle what was claimed."""

    def __init__(self, topic: str, at_a_time: int) -> None:
        now, shard = int(time.time() * 1000), Keys("later", 1).shards[0]
        request = ClaimRequest(topic, 0, at_a_time, LEASE_MS, is_pull=True)
        done = [(pack_id(new_id()), 0, SettleTarget.DONE, "", b"", 0)] * at_a_time
        (settle,) = record_commands(lambda store: store.settle_leases([(shard, topic.encode(), 1)] * at_a_time, done))
        self.at_a_time = at_a_time
        self.claim = pack_commands(record_commands(lambda store: store.claim([request], now, now)))
        self._settle_head = settle[: -ARGUMENTS_PER_TASK * at_a_time]
        self._done = settle[2 - ARGUMENTS_PER_TASK :]

    def settle(self, claimed: Sequence[Sequence[Any]]) -> bytes:
        """Return the call that settles tasks as done; each is an entry of the answer of the script `claim`."""
        arguments = [argument for id, _, _, _, fence, _ in claimed for argument in (id, fence, *self._done)]
        return pack_commands([(*self._settle_head, *arguments)])


def time_pulls(connection: RawConnection, calls: PullCalls, tasks: int, concurrency: int) -> float:
    """Claim and settle all tasks, with so many claims in flight, and return the seconds until the last is settled."""
    claims_left, settled = tasks // calls.at_a_time, 0
    awaited = deque[bool]()  # True for the answer to a claim
    started = time.perf_counter()
    for _ in range(min(concurrency, claims_left)):
        connection.send(calls.claim)
        awaited.append(True)
    claims_left -= len(awaited)
    while awaited:
        is_claim = awaited.popleft()
        (answer,) = connection.read_answer()
        if not is_claim:
            settled += sum(answer)
            continue
        _, _, *claimed = answer
        if len(claimed) != calls.at_a_time:
            raise BenchError(f"{len(claimed)} of {calls.at_a_time} tasks were claimed")
        connection.send(calls.settle(claimed))
        awaited.append(False)
        if claims_left:
            connection.send(calls.claim)
            awaited.append(True)
            claims_left -= 1
    if settled != tasks:
        raise BenchError(f"{settled} of {tasks} tasks were settled")
    return time.perf_counter() - started
