"""The plan of a pull: which tasks of which shards to claim for which requests. Pure.

Tasks are dealt evenly: each request gets one task before any gets a second.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from later.core.errors import LaterError
from later.core.lease import Lease
from later.core.retry import Failure
from later.core.task import Task, pack_id
from later.store.types import ClaimRecord, Settlement

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Bytes of contents that one request gets, unless its first task is larger."""


class PullTopic(NamedTuple):
    """A topic of a request: at most `limit` of its tasks, with leases of `lease_ms`; `max_claims` is its policy's."""

    name: str
    limit: int
    lease_ms: int
    max_claims: int = 0


class PullRequest(NamedTuple):
    """A request of a consumer for at most `limit` due tasks of some topics, in the order of its preference.

    With a `record` they are claimed under it; then the request names one topic, and is the only one of its call.
    `done` are leases of tasks to ack first. With `has_grace`, a message whose own ttl has ended is handed out if an
    earlier claim under a record lets it live on.
    """

    topics: Sequence[PullTopic]
    limit: int
    record: ClaimRecord | None = None
    done: Sequence[Lease] = ()
    has_grace: bool = False


class PulledTask(NamedTuple):
    """A task that a consumer has claimed. Times are in ms. `claim_id` is that of its record, "" for none."""

    task: Task
    lease: Lease
    lease_end: int
    due_at: int
    attempt: int
    failure: Failure | None
    claim_id: str = ""


class PullResult(NamedTuple):
    """The tasks that a request gets, in order: by its topics, then by due time, then by id.

    `next_due_at` (ms) is when the next task of its topics is due; None if nothing waits there. `deaths` are the
    verdicts on tasks that were claimed for it and must not be handed out: they are dead now. `orphans` are bucket
    entries without a task that were removed. `acked` are the answers to its leases of tasks that are done.
    """

    tasks: list[PulledTask]
    next_due_at: int | None
    deaths: list[Settlement]
    orphans: int = 0
    acked: Sequence[bool | LaterError] = ()


@dataclass(kw_only=True, slots=True, eq=False)
class Share:
    """The tasks that a request has got so far, each with the place of its topic in the order of preference."""

    request: PullRequest
    tasks: list[tuple[int, PulledTask]] = field(default_factory=list)
    deaths: list[Settlement] = field(default_factory=list)
    orphans: int = 0
    acked: Sequence[bool | LaterError] = ()
    bytes: int = 0
    next_due_at: int | None = None
    error: LaterError | None = None

    def is_missed(self, now: int) -> bool:
        """Return True if it has got nothing, although a task is due."""
        is_due = self.next_due_at is not None and self.next_due_at <= now
        return is_due and not self.tasks and self.error is None

    def add(self, place: int, pulled: PulledTask) -> bool:
        """Add a task if it fits, and return whether it does."""
        content = pulled.task.content
        size = len(content) if content.isascii() else len(content.encode())
        if self.tasks and self.bytes + size > MAX_ANSWER_BYTES:
            return False
        self.bytes += size
        self.tasks.append((place, pulled))
        return True

    def result(self) -> PullResult | LaterError:
        """Return the result of the request; the error only if it has got nothing, and nothing was acked for it."""
        if self.error is not None and not self.tasks and not self.acked:
            return self.error
        if len(self.tasks) > 1:
            self.tasks.sort(key=lambda item: (item[0], item[1].due_at, pack_id(item[1].task.id)))
        tasks = [pulled for _, pulled in self.tasks]
        return PullResult(tasks, self.next_due_at, self.deaths, self.orphans, self.acked)


@dataclass(kw_only=True, slots=True)
class Demand:
    """The tasks to claim of one topic with leases of one length: how many of each shard, and of each share."""

    topic: PullTopic
    by_shard: Counter[int] = field(default_factory=Counter)
    takers: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many tasks each share takes, by its index and the place of the topic in its order of preference."""


def plan_pull(shares: Sequence[Share], due: Mapping[str, Iterator[int]]) -> list[Demand]:
    """Return what to claim; `due` has for each topic the shards of its due tasks, in the tasks' order."""
    demands: dict[tuple[str, int], Demand] = {}
    turns = deque((index, 0, 0, 0) for index in range(len(shares)))
    while turns:
        index, place, of_topic, taken = turns.popleft()
        request = shares[index].request
        topics, limit = request.topics, request.limit
        while place < len(topics) and taken < limit:
            topic = topics[place]
            shard = next(due[topic.name], None) if of_topic < topic.limit else None
            if shard is None:
                place, of_topic = place + 1, 0
                continue
            demand = demands.setdefault((topic.name, topic.lease_ms), Demand(topic=topic))
            demand.by_shard[shard] += 1
            demand.takers[index, place] = demand.takers.get((index, place), 0) + 1
            if taken + 1 < limit:
                turns.append((index, place, of_topic + 1, taken + 1))
            break
    return list(demands.values())


def deal(shares: Sequence[Share], demand: Demand, tasks: Iterable[PulledTask]) -> list[PulledTask]:
    """Add tasks that were claimed for a demand to its shares; return those that fit in none."""
    turns = deque((index, place, count) for (index, place), count in demand.takers.items())
    left: list[PulledTask] = []
    for pulled in tasks:
        for _ in range(len(turns)):
            index, place, count = turns.popleft()
            if shares[index].add(place, pulled):
                if count > 1:
                    turns.append((index, place, count - 1))
                break
        else:
            left.append(pulled)
    return left
