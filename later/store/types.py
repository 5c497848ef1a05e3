"""Arguments and results of the store, as small frozen values. Times are ms of the store's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from later.core.edit import TaskChanges
from later.core.errors import UnreadableBody
from later.core.held import Held, TopicHold
from later.core.lease import Lease, lease_of
from later.core.policy_scopes import Policies
from later.core.retry import Failure, Verdict
from later.core.task import Task
from later.store.keys import Bucket, counter_name


class DueTopic(NamedTuple):
    """A topic's entry in a wake set: when its bucket, in one shard, must be looked at."""

    at: int
    topic: str
    shard: int


class DueTopics(NamedTuple):
    """The earliest wake entries of a bucket over all shards, in order.

    Entries that did not fit are not before `more_at`; None if these are all.
    """

    topics: list[DueTopic]
    more_at: int | None


class DeadTopics(NamedTuple):
    """Topics with dead tasks, and the cursors, by shard, with which the scan goes on; empty at its end."""

    topics: list[DueTopic]
    cursors: Mapping[int, int]


class WorkerSnapshot(NamedTuple):
    """The facts that a worker needs in each tick."""

    delay: DueTopics
    holds: list[TopicHold]
    """The holds of those topics in `delay` that are held."""
    unack_at: int | None
    """When the first lease ends; None if nothing is in flight."""
    error_at: int | None
    """When the first retry pause ends; None if no task is in error."""
    firing_at: int | None
    """When the first schedule fires; None if none will."""


class ClaimRecord(NamedTuple):
    """The record of tasks of one topic that are claimed together, under one id. Times are in ms.

    Their leases last for `ttl_ms` from `since` on, and their own ttls for `grace_ms` more, at least.
    """

    claim_id: str
    topic: str
    since: int
    ttl_ms: int
    grace_ms: int

    @property
    def lease_end(self) -> int:
        return self.since + self.ttl_ms

    @property
    def live_until(self) -> int:
        return self.lease_end + self.grace_ms

    def encode(self) -> str:
        """Return what the store keeps of it under its id."""
        return f"{self.ttl_ms} {self.grace_ms} {self.since} {self.topic}"


def decode_record(claim_id: str, stored: bytes) -> ClaimRecord:
    """Return the record that `ClaimRecord.encode` made `stored` from."""
    ttl_ms, grace_ms, since, topic = stored.decode().split(" ", 3)
    return ClaimRecord(claim_id, topic, int(since), int(ttl_ms), int(grace_ms))


class ClaimRequest(NamedTuple):
    """A request for due tasks of a topic, in one shard: as many as the worker has slots for."""

    topic: str
    shard: int
    limit: int
    lease_extra_ms: int = 0
    """How much longer its leases are than usual ones."""
    hold_until: int | None = None
    """Until when (ms) the topic is held if due tasks are left behind."""
    has_permits: bool = False
    """True if permits were taken for it: the claim then passes a hold for a rate that another instance has set."""
    is_pull: bool = False
    """True for a claim of a consumer, of a topic that no worker claims of: it passes every hold, and leaves it held."""
    record: ClaimRecord | None = None
    """The record under which a consumer claims them; then the topic is the only one of its shard."""


class Claim(msgspec.Struct, frozen=True):
    """A task in flight, and its lease. `task` is the error if its body cannot be decoded.

    A named tuple would take eight times as long to make.
    """

    id: str
    packed: bytes
    """The id as the store holds it."""
    topic: str
    shard: int
    task: Task | UnreadableBody
    due_at: int
    attempt: int
    fence: int
    failure: Failure | None
    lease_end: int
    put_back_for: Held | None = None
    """Why it was put back when it was claimed before: ORIGIN (which was full or held) or FAULT; None if it was not.
    `due_at` is its first one."""
    claim_id: str = ""
    """The id of the record under which it was claimed, "" for none. Then its task has the end of its ttl that the index
    of such tasks has: see `ClaimRecord`."""


class PutBack(NamedTuple):
    """A claim that is not delivered now, and when (ms) its task is due again: for its origin, or for a fault."""

    claim: Claim
    due_at: int
    reason: Held = Held.ORIGIN


class ClaimResult(NamedTuple):
    """The claims of one request. `wake_at` is when the topic must be looked at again; None if nothing is left."""

    wake_at: int | None
    orphans: int
    """Orphan entries that were removed."""
    claims: list[Claim]


class Settlement(NamedTuple):
    """A verdict on a claim. The id of a task that is done is remembered until `remember_until` (None: not at all)."""

    claim: Claim
    verdict: Verdict
    remember_until: int | None


class ReleaseResult(NamedTuple):
    """The number of tasks moved, and when the bucket must be looked at again (None: it is empty)."""

    moved: int
    wake_at: int | None


class ExpiredTask(NamedTuple):
    """A task whose ttl has ended. `failure` is its last failure, `stored_failure` the same in the store's form."""

    id: str
    topic: str
    shard: int
    failure: Failure | None
    stored_failure: bytes


class DeadTask(NamedTuple):
    """A dead task to be removed. Its id is then remembered until `remember_until` (ms; None: not at all).

    `name` is as in `task_names.name_of`; None: its id.
    """

    id: str
    topic: str
    shard: int
    name: str | None = None
    remember_until: int | None = None


class TaskRecord(msgspec.Struct, frozen=True):
    """A task, its state and its score there. `task` is the error if its body cannot be decoded."""

    id: str
    topic: str
    task: Task | UnreadableBody
    state: Bucket
    score: int
    attempts: int
    failure: Failure | None
    first_due_at: int | None = None
    """When a task in delay was first due that was put back, and has a later score; None for any other."""
    put_back_for: Held | None = None
    """Why it was put back: ORIGIN or FAULT."""
    fence: int = 0
    """The fence of the lease of a task in flight."""
    claim_id: str = ""
    """The id of the record under which a task in flight was claimed, "" for none."""

    def lease(self, now: int) -> Lease | None:
        """Return the lease that holds the task at `now` (ms); None if it is not in flight, or its lease has ended."""
        if self.state is not Bucket.UNACK or self.score <= now or not isinstance(self.task, Task):
            return None
        return lease_of(self.task, self.fence, self.task.execute_at)

    @property
    def due_at(self) -> int:
        """The time at which it is due, or was: its score, unless it was put back. In dead, its time of death."""
        return self.score if self.first_due_at is None else self.first_due_at


class BucketRange(NamedTuple):
    """A range of one of a topic's buckets: scores (ms) from `since` on and below `before` (None: no bound).

    With `after`, a score and an id, only what follows that entry in the bucket's order.
    """

    topic: str
    bucket: Bucket
    since: int | None = None
    before: int | None = None
    after: tuple[int, str] | None = None


class ListSlice(NamedTuple):
    """Tasks that follow one another in a listing, and the score and id of the entry up to which it was read.

    `examined` is how many entries have been read so far: more than tasks were found if a filter leaves some out.
    """

    tasks: list[TaskRecord]
    position: tuple[int, str]
    examined: int


class TaskEdit(NamedTuple):
    """An edit of one task, asked for at `now` (ms, the high end of the store's time)."""

    id: str
    changes: TaskChanges
    policies: Policies
    now: int


class ExistingTask(NamedTuple):
    """The result of a create whose id exists: when that task is due (ms; in flight: when its lease ends).

    None if it is dead or has ended.
    """

    due_at: int | None


class UpdatedTask(NamedTuple):
    """The result of an upsert that has edited the task of its id: when that task is due (ms)."""

    due_at: int


CreateResult = Literal[True] | ExistingTask | UpdatedTask
"""True: the task was created."""


class Deletion(NamedTuple):
    """A deletion.

    `in_flight` is true if the task was being delivered: its receiver may still get that attempt. `ended` is true if it
    had ended before, and only its id was remembered; that is forgotten now. `topic` is "" then.
    """

    id: str
    in_flight: bool = False
    ended: bool = False
    topic: str = ""


class MoveResult(NamedTuple):
    """The number of tasks that a verb moved, and whether it may have left others because of a limit.

    A call that goes on must begin at the score and id of `position`, if there is one, because the verb has passed over
    tasks; and with a rate, at `next_due_at` (ms).
    """

    moved: int
    more: bool
    position: tuple[int, str] | None = None
    next_due_at: int | None = None


class JobBatch(NamedTuple):
    """A batch of tasks that is counted into a job: its digest, and how many of its items were refused.

    The counts are kept until `forget_at` (ms). With a `run`, the batch is also counted into that run of the job.
    """

    job: str
    digest: bytes
    refused: int
    forget_at: int
    run: str | None = None

    @property
    def counters(self) -> list[str]:
        """The names of the counters that count the batch: of its job, and of its run if it has one."""
        own = counter_name(self.job)
        return [own] if self.run is None else [own, counter_name(self.job, self.run)]


class JobCounts(NamedTuple):
    """The counts of a bulk job, or of one run of it. An item that was sent twice counts once."""

    created: int
    existing: int
    refused: int


class JobPosition(NamedTuple):
    """A position among the jobs, the one that is forgotten last first: a time (ms), and the name of its counter.

    Without a name, it is after all jobs of that time.
    """

    forget_at: int
    name: str


class ListedJob(NamedTuple):
    """A bulk job in a list, and when (ms) its counts may be forgotten."""

    job: str
    forget_at: int
    counts: JobCounts


class JobPage(NamedTuple):
    """Jobs that follow one another in the list, and where to go on; None if the list ends there."""

    jobs: list[ListedJob]
    read_to: JobPosition | None
