"""The kinds of problems that an answer can report, each with a page that says what it means and what to do.

Programs may rely on the names; texts may change.
"""

from __future__ import annotations

from typing import NamedTuple

from later.core.errors import (
    Conflict,
    CrossSite,
    Exists,
    IdTaken,
    InFlight,
    LaterError,
    NotAlive,
    NotAllowed,
    NotDurable,
    NotFound,
    NotKnown,
    NotReady,
    PushedTopic,
    Refused,
    ScheduleNotFound,
    SlowBody,
    StoreDown,
    StoreFull,
    StoreMismatch,
    TooLarge,
    TooManySchedules,
    TooManySecrets,
    TooManyWaiters,
    TooManyWaiting,
    TooOften,
    UnknownExpectation,
    Unsupported,
)


class ProblemType(NamedTuple):
    """A kind of problem: its name, status and title, what it means, and what to do about it."""

    name: str
    status: int
    title: str
    meaning: str
    advice: str

    @property
    def reference(self) -> str:
        """The `type` of problem documents: the path of the page."""
        return f"/problems/{self.name}"

    @property
    def page(self) -> str:
        return f"{self.title} ({self.status}, {self.reference})\n\n{self.meaning}\n\nWhat to do: {self.advice}\n"


REFUSED = ProblemType(
    "refused", 400, "Bad Request",
    "The request breaks a rule. `field` names the part that is wrong, `detail` says what is taken there.",
    "Correct the request. Sending the same one again has the same answer.",
)  # fmt: skip
NO_KEY = ProblemType(
    "no-key", 401, "Unauthorized",
    "The call needs an API key, and came without one, with one that is unknown or revoked, or with one that has\n"
    "ended.",
    "Send the header `Authorization: Bearer later_…`. The operator makes keys, like this one that may read:\n"
    "later keys create NAME --scopes read",
)  # fmt: skip
NOT_ALLOWED = ProblemType(
    "not-allowed", 403, "Forbidden",
    "The API key is known, and is not for this call, or not for the namespace that the call names.",
    "Use another key. The operator sees what a key may do with `later keys show ID`, and makes keys for more.",
)  # fmt: skip
TOO_OFTEN = ProblemType(
    "too-often", 429, "Too Many Requests",
    "The API key is for a number of tasks a second, and more were sent. Each item of a batch is one.",
    "Send the same request again, after Retry-After. A batch may have a second's worth of tasks at most.",
)  # fmt: skip
CROSS_SITE = ProblemType(
    "cross-site", 403, "Refused: another site's page or another host's name",
    "A web page of another site made a browser send this request, or the request names another host than this one.\n"
    "Otherwise every page that is open in a browser could create and delete tasks here. Programs are not affected.",
    "Where `detail` names `Host`: call the server by its IP address or as `localhost`, or start it with\n"
    "--allow-host NAME. Where it names `Origin`, and a proxy before the server rewrites `Host`: start it with\n"
    "--allow-origin ORIGIN, the scheme, host and port in the browser's address bar.",
)  # fmt: skip
NO_SUCH_TASK = ProblemType(
    "no-such-task", 404, "No such task",
    "No task has this id: it was never created, was deleted, or is done. `ended` is true where the id is remembered:\n"
    "the task was done, or it was dead and its retention is over.",
    "Check the id. A task that is done is not shown any more.",
)  # fmt: skip
NO_SUCH_JOB = ProblemType(
    "no-such-job", 404, "No such job",
    "Nothing is counted under this job: no batch named it, or its counts are forgotten (--remember).",
    "Check the job's name.",
)  # fmt: skip
NO_SUCH_SCHEDULE = ProblemType(
    "no-such-schedule", 404, "No such schedule",
    "No schedule has this id: it was never put, or was deleted. Its tasks may be there all the same.",
    "Check the id: `GET /schedules` has all of them.",
)  # fmt: skip
SLOW_BODY = ProblemType(
    "slow-body", 408, "The body came too slowly",
    "The whole body must be there within 30 s of the request's head. Nothing of the request was carried out.",
    "Send the request again, with smaller batches where the network is slow.",
)  # fmt: skip
IN_FLIGHT = ProblemType(
    "in-flight", 409, "The task is in flight",
    "A worker is delivering the task at this moment, which does not allow the change.",
    "Try again when the delivery has ended. The task's `timeout` limits how long that takes.",
)  # fmt: skip
EXISTS = ProblemType(
    "exists", 409, "The id is not free",
    'A create with `"if_exists": "error"` has an id that a task has, or that is remembered because its task has\n'
    "ended. Or the UUID that was chosen as an id is that of a task which is not in the namespace of the request's key.",
    "Choose another id, or decide what is to happen to the task that is there: `if_exists` takes `keep` and\n"
    "`update`. Ids that are no UUIDs are of the key's namespace alone, so they never meet others'.",
)  # fmt: skip
CHANGED = ProblemType(
    "changed", 409, "The present state does not allow it",
    "The task is in a state that does not allow the change, others change the same policies at this moment,\n"
    "or the server has no signing key (--signing-key).",
    "Look at the present state (`/query`, `GET …/policy`), and decide anew.",
)  # fmt: skip
PUSHED_TOPIC = ProblemType(
    "pushed-topic", 409, "The topic's tasks are not claimed",
    "The tasks of the topic are delivered to their callbacks: the field `deliver` of its policy is `push`. Only tasks\n"
    "of topics with `pull` are claimed.",
    "Check the topic's name. To claim its tasks, set its policy: later topics set TOPIC --deliver pull",
)  # fmt: skip
TOO_MANY_SECRETS = ProblemType(
    "too-many-secrets", 409, "Too many signing secrets",
    "Three secrets of this namespace, topic or origin sign its deliveries already, because of earlier rotations\n"
    "whose overlap has not ended; or as many were rotated by themselves as may be (`detail` says which).",
    "Rotate again when the oldest of them has ended (`GET …/signing` says when), or with an overlap of 0, which\n"
    "ends the older ones at once.",
)  # fmt: skip
TOO_MANY_SCHEDULES = ProblemType(
    "too-many-schedules", 409, "Too many schedules",
    "The store has as many schedules as it may have, and this one would be one more.",
    "Delete schedules that nobody needs (later schedules list), or let one of them create what several do.",
)  # fmt: skip
TOO_LARGE = ProblemType(
    "too-large", 413, "Content Too Large",
    "The body has more bytes, or the batch more items, than the server takes.",
    "Send smaller bodies or smaller batches, or start the server with a larger --max-body.",
)  # fmt: skip
UNSUPPORTED = ProblemType(
    "unsupported", 415, "Unsupported encoding or expectation",
    "The body's Content-Encoding is not one that the server takes (415), or `Expect` is not 100-continue (417).",
    "Send the body as it is, or compressed by gzip or deflate; leave `Expect` out.",
)  # fmt: skip
FAULT = ProblemType(
    "fault", 500, "Internal Server Error",
    "A fault of the server's own. Whether the request was carried out is not known.",
    "Look for `incident` in the server's log: the entry says more. Report it.",
)  # fmt: skip
STORE_AWAY = ProblemType(
    "store-away", 503, "The store is away",
    "The store cannot be reached, does not answer in time, or takes no commands now; `detail` says which.\n"
    "`unknown` is true where the request may have been carried out all the same.",
    "Send the same request again, after Retry-After. With an id of your own that is safe also where the first one\n"
    "was carried out.",
)  # fmt: skip
STORE_FULL = ProblemType(
    "store-full", 503, "The store is full",
    "The store's memory is full. Nothing new is stored; deliveries go on, and make room.",
    "Send the same request again later. The operator gives the store more memory (maxmemory).",
)  # fmt: skip
NOT_DURABLE = ProblemType(
    "not-durable", 503, "Not as durable as asked for",
    "The write was made and stays, but has not reached the durability that was asked for within --durability-timeout.\n"
    "`stored` is true, `durability` is the level that it has reached, and `id` names the task. Without `stored` there\n"
    "was nothing to change, and it is what is there that has not reached it.",
    "Send the same request again, after Retry-After, with that `id`: the level is waited for anew, and nothing is\n"
    "created twice. The operator looks at the replicas: later status",
)  # fmt: skip
STORE_MISMATCH = ProblemType(
    "store-mismatch", 503, "The store does not fit",
    "The store was made by another version or with other options, or its settings would lose tasks.",
    "`detail` says what does not fit. The operator corrects the option or the store.",
)  # fmt: skip
NOT_READY = ProblemType(
    "not-ready", 503, "The server is not ready",
    "The server is being stopped; or it has several processes (--processes), and some are being started or do not\n"
    "answer: the others create and deliver tasks.",
    "Ask another server if this one is being stopped. Otherwise wait: a process that does not answer for 30 s\n"
    "is killed and started again. The server's log says more.",
)  # fmt: skip
NOT_ALIVE = ProblemType(
    "not-alive", 503, "A part of the server hangs",
    "The store answers, but something that the server does again and again has not ended for more than a minute.\n"
    "`detail` names it: a ticker, as in the metrics.",
    "Restart the server. Tasks that it holds are delivered again when their leases end.",
)  # fmt: skip
TOO_MANY_WAITING = ProblemType(
    "too-many-waiting", 503, "Too many requests wait",
    "The store is slow, and as many tasks wait for it as --max-pending-writes allows; or the answers of /list,\n"
    "/query/batch and GET /schedules that are being sent hold 64 MiB. Nothing was sent to the store.",
    "Send the same request again, after Retry-After, or send fewer at a time.",
)  # fmt: skip
TOO_MANY_WAITERS = ProblemType(
    "too-many-waiters", 503, "Too many claims wait",
    "As many claims wait for tasks in this process as --waiters allows. Nothing was claimed.",
    "Send the same request again, after Retry-After, or name many topics in one claim. The operator may raise\n"
    "--waiters and --connections.",
)  # fmt: skip

PROBLEM_TYPES = {
    type.name: type
    for type in (
        REFUSED, NO_KEY, NOT_ALLOWED, TOO_OFTEN, CROSS_SITE, NO_SUCH_TASK, NO_SUCH_JOB, NO_SUCH_SCHEDULE, SLOW_BODY,
        IN_FLIGHT, EXISTS, CHANGED, PUSHED_TOPIC, TOO_MANY_SECRETS, TOO_MANY_SCHEDULES, TOO_LARGE, UNSUPPORTED, FAULT,
        STORE_AWAY, STORE_FULL, NOT_DURABLE, STORE_MISMATCH, NOT_READY, NOT_ALIVE, TOO_MANY_WAITING, TOO_MANY_WAITERS,
    )
}  # fmt: skip
"""All types, by name."""

_BY_ERROR: tuple[tuple[type[LaterError], ProblemType], ...] = (
    (TooLarge, TOO_LARGE),
    (UnknownExpectation, UNSUPPORTED._replace(status=417)),
    (Unsupported, UNSUPPORTED),
    (CrossSite, CROSS_SITE),
    (IdTaken, EXISTS),
    (Exists, EXISTS),
    (NotKnown, NO_KEY),
    (NotAllowed, NOT_ALLOWED),
    (TooOften, TOO_OFTEN),
    (SlowBody, SLOW_BODY),
    (Refused, REFUSED),
    (ScheduleNotFound, NO_SUCH_SCHEDULE),
    (NotFound, NO_SUCH_TASK),
    (InFlight, IN_FLIGHT),
    (PushedTopic, PUSHED_TOPIC),
    (TooManySecrets, TOO_MANY_SECRETS),
    (TooManySchedules, TOO_MANY_SCHEDULES),
    (Conflict, CHANGED),
    (StoreFull, STORE_FULL),
    (TooManyWaiting, TOO_MANY_WAITING),
    (TooManyWaiters, TOO_MANY_WAITERS),
    (StoreDown, STORE_AWAY),
    (NotDurable, NOT_DURABLE),
    (StoreMismatch, STORE_MISMATCH),
    (NotReady, NOT_READY),
    (NotAlive, NOT_ALIVE),
)
"""The type of each class of errors; the first match counts."""


def problem_type(error: LaterError) -> ProblemType:
    """Return the type of an error. One that callers do not expect is a fault."""
    return next((type for kind, type in _BY_ERROR if isinstance(error, kind)), FAULT)
