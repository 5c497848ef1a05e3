"""The answers of later's API as the Python library returns them. `docs/answers.md` explains the fields."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from later.core.policy import PolicyValue
from later.core.policy_scopes import Level


class Enqueued(Struct, frozen=True, kw_only=True):
    """A task that was created, or that was there under its id: then `created` is false, and `updated` if it was edited.

    `due_at` is when the task that is there is due; None if it is dead or has ended. `warning` says that the task will
    expire before it is due. `durability` is the level that was asked for and reached.
    """

    id: str
    created: bool = True
    updated: bool = False
    due_at: datetime | None = None
    warning: str | None = None
    durability: str = "primary"


class LastError(Struct, frozen=True, kw_only=True):
    """Why a task's last attempt failed, or of what it died."""

    reason: str
    status: int | None
    message: str
    at: datetime


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt at a task that was not done. `took_ms` is None if no call was made, or if that is not known."""

    attempt: int
    at: datetime
    reason: str
    status: int | None
    took_ms: int | None
    message: str


class DeadLetter(Struct, frozen=True, kw_only=True):
    """The death of a task in another topic, from which it moved to its present one."""

    topic: str
    reason: str
    status: int | None
    message: str
    at: datetime
    attempts: int


class Info(Struct, frozen=True, kw_only=True):
    """A task. `state` is `delay`, `unack`, `error` or `dead`. `failures` are its last ones; `list` leaves them out.

    `execute_time` and `creat_time` are whole Unix seconds; `execute_at` and `created_at` are the same times. Fields of
    a task that cannot be read are None. `headers` and `context` have the names in them, never their values.
    """

    id: str
    topic: str
    state: str
    attempts: int
    retries_used: int = field(name="has_retry")
    max_retry: int | None = None
    callback: str | None = None
    content: str | None = None
    execute_time: int | None = None
    creat_time: int | None = None
    due_at: datetime | None = None
    died_at: datetime | None = None
    expires_at: datetime | None = None
    last_error: LastError | None = None
    headers: list[str] = []  # msgspec copies a mutable default
    context: list[str] = []
    dead_letter: DeadLetter | None = None
    failures: list[FailedAttempt] = []
    durability: str = "primary"

    @property
    def execute_at(self) -> datetime | None:
        """When it was first meant to run."""
        return _from_unix(self.execute_time)

    @property
    def created_at(self) -> datetime | None:
        return _from_unix(self.creat_time)


class DueTask(Struct, frozen=True, kw_only=True):
    """A task that was made due, and when it is."""

    id: str
    due_at: datetime


class Deleted(Struct, frozen=True, kw_only=True):
    """A deletion. `in_flight`: the attempt under way is not recalled. `ended`: only the id was remembered."""

    id: str
    in_flight: bool = False
    ended: bool = False
    durability: str = "primary"


class Explained(Struct, frozen=True, kw_only=True):
    """Why a task, or a topic's tasks, have not run yet: a sentence, and the figures behind it."""

    sentence: str
    details: dict[str, Any]


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic and how many of its tasks are in each state, and due.

    `held` says what holds its due tasks: `no`, `rate`, `concurrency`, `pause`, `receiver` or `pull`. `rate` and
    `concurrency` are None without a limit. `namespace` and `policy`, the fields that apply to it, are those of `topic`;
    `topics` leaves them out.
    """

    topic: str
    delay: int
    unack: int
    error: int
    dead: int
    due: int
    oldest_lateness_s: float | None
    held: str = "no"
    paused: bool = False
    rate: float | None = None
    concurrency: int | None = None
    deliver: str = "push"
    namespace: str | None = None
    policy: dict[str, PolicyValue | None] = {}  # msgspec copies a mutable default


class AppliedField(Struct, frozen=True, kw_only=True):
    """The value of a policy's field, and the level that sets it."""

    value: PolicyValue | None
    level: Level


class AppliedPolicy(Struct, frozen=True, kw_only=True):
    """The policy that applies to a topic or a namespace, by fields, each with the level that sets it."""

    fields: dict[str, AppliedField]

    @property
    def values(self) -> dict[str, PolicyValue | None]:
        """The value of each field. Durations are in seconds."""
        return {name: field.value for name, field in self.fields.items()}

    def set_on(self, level: Level) -> dict[str, PolicyValue]:
        """Return the fields that one level sets: `AppliedPolicy.set_on(Level.TOPIC)`."""
        return {
            name: field.value for name, field in self.fields.items() if field.level is level and field.value is not None
        }


class JobTotals(Struct, frozen=True, kw_only=True):
    """The tasks of a bulk job, or of one run of it, exactly, whatever was sent twice."""

    job: str
    created: int
    existing: int
    refused: int
    run: str | None = None


class ScheduleResult(Struct, frozen=True, kw_only=True):
    """A schedule that was put: whether it is new, and the next ten times at which it fires."""

    id: str
    created: bool
    next: list[datetime]


class LastFiring(Struct, frozen=True, kw_only=True):
    """The time at which a schedule fired last, and the id of the task that this made."""

    time: datetime
    task_id: str


class FiringError(Struct, frozen=True, kw_only=True):
    """The last firing of a schedule whose task was refused: its time, why, and the field that is wrong, if one is."""

    message: str
    time: datetime
    field: str | None = None


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule. It has either `cron` and a `zone`, or `every`, in seconds. Other durations are in seconds, too.

    `next` are the next ten times at which it fires; in `schedules` only the first. `refused` counts the firings whose
    tasks were refused. `headers` and `context` have the names in them, never their values.
    """

    id: str
    topic: str
    cron: str | None = None
    every: float | None = None
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    catch_up: str = "one"
    jitter: float = 0
    paused: bool = False
    callback: str | None = None
    content: str = ""
    retry: int | None = None
    ttl: float | None = None
    remember: float | None = None
    headers: list[str] = []  # msgspec copies a mutable default
    context: list[str] = []
    created_at: datetime | None = None
    next: list[datetime] = []
    last: LastFiring | None = None
    last_error: FiringError | None = None
    refused: int = 0


class ClaimedTask(Struct, frozen=True, kw_only=True):
    """A task that a consumer has claimed. Its `lease` says so to `ack`, `nack`, `release` and `extend`."""

    id: str
    topic: str
    content: str
    headers: dict[str, str]
    attempt: int
    due_at: datetime
    created_at: datetime
    failures: int
    max_retry: int
    lease: str
    lease_until: datetime
    last_error: LastError | None = None
    context: dict[str, str] | None = None
    callback: str | None = None
    dead_letter: DeadLetter | None = None


def _from_unix(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
