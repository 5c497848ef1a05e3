"""What the store answers, as small frozen values. Times are ms of the store's clock."""

from __future__ import annotations

from typing import NamedTuple

from later.core.edit import TaskChanges
from later.core.errors import UnreadableBody
from later.core.policy_scopes import Policies
from later.core.retry import Failure, Verdict
from later.core.task import Task
from later.store.keys import Bucket


class DueTopic(NamedTuple):
    """A topic's entry in a wake set: when that bucket of it, in one shard, is to be looked at."""

    at: int
    topic: str
    shard: int


class DueTopics(NamedTuple):
    """The earliest wake entries of a bucket over all shards, in order.

    Those that there was no room for are not before `more_at`; None where these are all.
    """

    topics: list[DueTopic]
    more_at: int | None


class WorkerSnapshot(NamedTuple):
    """What a look around shows: delay, and when unack and error are to be looked at (None: there is nothing)."""

    delay: DueTopics
    hold_ends: list[int]
    """When holds end, of the topics among these that are held."""
    unack_at: int | None
    error_at: int | None


class ClaimRequest(NamedTuple):
    """How many tasks of a topic, in one shard, a worker has hands for."""

    topic: str
    shard: int
    limit: int
    lease_extra_ms: int = 0
    """By how much its leases are longer than those of other topics."""
    hold_until: int | None = None
    """Until when (ms) nothing more of it may be claimed, where due tasks are left behind."""
    has_permits: bool = False
    """Were permits taken for it? Then it need not heed that others have none."""


class Claim(NamedTuple):
    """A task in flight, and the lease that holds it. `task` is the error where its body cannot be decoded."""

    id: str
    topic: str
    shard: int
    task: Task | UnreadableBody
    due_at: int
    attempt: int
    fence: int
    failure: Failure | None
    lease_end: int


class ClaimResult(NamedTuple):
    """What one claim answered. `wake_at` is when the topic is to be looked at again, None where it holds nothing."""

    wake_at: int | None
    orphans: int
    claims: list[Claim]


class Settlement(NamedTuple):
    """A verdict on a claim; the id is remembered until `remember_until` if it is done (None: not at all)."""

    claim: Claim
    verdict: Verdict
    remember_until: int | None


class ReleaseResult(NamedTuple):
    """How many tasks a release moved, and when that bucket is to be looked at again (None: it is empty)."""

    moved: int
    wake_at: int | None


class ExpiredTask(NamedTuple):
    """A task that waits though its ttl has ended. `failure` is its last one, `stored` the same as the store has it."""

    id: str
    topic: str
    shard: int
    failure: Failure | None
    stored_failure: bytes


class DeadTask(NamedTuple):
    """A dead task that was kept long enough. `own_id`: its caller chose its id."""

    id: str
    topic: str
    shard: int
    own_id: bool


class TaskRecord(NamedTuple):
    """Where a task is. `task` is the error where its body cannot be decoded; `score` is its bucket's."""

    id: str
    topic: str
    task: Task | UnreadableBody
    state: Bucket
    score: int
    attempts: int
    failure: Failure | None

    @property
    def execute_time_s(self) -> int | None:
        """The time for which the task was scheduled first, in whole Unix seconds, rounded up; None if unreadable."""
        return -(-self.task.execute_at // 1000) if isinstance(self.task, Task) else None

    @property
    def created_time_s(self) -> int | None:
        """The time at which the task was created, in whole Unix seconds; None if unreadable."""
        return self.task.created_at // 1000 if isinstance(self.task, Task) else None

    @property
    def retries_used(self) -> int:
        """The number of retries used up: the failures so far, except the last, which no retry followed."""
        failures = self.failure.failures if self.failure else 0
        return min(failures, self.task.max_retry) if isinstance(self.task, Task) else failures


class BucketRange(NamedTuple):
    """A part of one of a topic's buckets: scores (ms) from `since` on and below `before`, where there are such bounds.

    With `after`, a score and an id, only what follows these in the bucket's order.
    """

    topic: str
    bucket: Bucket
    since: int | None = None
    before: int | None = None
    after: tuple[int, str] | None = None


class Page(NamedTuple):
    """The first tasks of a stretch, in order, and whether others follow."""

    tasks: list[TaskRecord]
    more: bool


class TaskEdit(NamedTuple):
    """An edit of one task, as its caller asked for it `now` (ms, the high end of the store's time)."""

    id: str
    changes: TaskChanges
    policies: Policies
    now: int


class TopicState(NamedTuple):
    """How a topic stands. `held_until` (ms) may have passed; `next_due_at` is None where nothing is in delay."""

    paused: bool
    held_until: int | None
    next_due_at: int | None


class MoveResult(NamedTuple):
    """How many tasks a verb over many moved, and whether others are left because it was to move no more than that."""

    moved: int
    more: bool


class JobBatch(NamedTuple):
    """Tasks that are counted into a job: under a digest of their batch's bytes, beside what of it was refused.

    The job's counts are kept until `forget_at` (ms).
    """

    job: str
    digest: bytes
    refused: int
    forget_at: int


class JobCounts(NamedTuple):
    """What a bulk job has come to, each counted once, whatever was sent twice."""

    created: int
    existing: int
    refused: int
