"""The table of operations, in the order in which the description shows them."""

from __future__ import annotations

from later.api.description.operation import NO_BODY, TEXT, Operation
from later.api.problem_types import (
    CHANGED,
    EXISTS,
    IN_FLIGHT,
    NO_KEY,
    NO_SUCH_JOB,
    NO_SUCH_SCHEDULE,
    NO_SUCH_TASK,
    NOT_ALIVE,
    NOT_DURABLE,
    NOT_READY,
    PUSHED_TOPIC,
    STORE_FULL,
    STORE_MISMATCH,
    TOO_MANY_SCHEDULES,
    TOO_MANY_SECRETS,
    TOO_MANY_WAITERS,
    TOO_MANY_WAITING,
)
from later.core.lease import Lease, encode_lease

TAGS = {
    "tasks": "Create tasks, look at them, change them.",
    "batches": "Many tasks in one request. Each item is answered by itself.",
    "topics": "Topics, their counts, and what to do with all tasks of one.",
    "policies": "Delays, retries, limits and more, of a topic or of all topics of a namespace.",
    "schedules": "Recurring tasks: each firing creates a task.",
    "consumers": "Claim the tasks of pulled topics, and say what has become of them.",
    "signing": "The secrets by which deliveries are signed.",
    "history": "What happened in the last days, and some of the deliveries.",
    "pulsar": "The routes of PIP-315, for the tooling of Apache Pulsar.",
    "clock": "The clock of `later dev`. Other daemons have no such routes.",
    "console": "Sessions of the pages for people, at `/console/`.",
    "daemon": "What the daemon tells of itself.",
}
"""The groups of operations, and what they are for."""

_TASK = {"id": "order-7"}
_CREATE = {"topic": "order", "callback": "http://127.0.0.1:8888/success", "delay": 15, "content": "hello"}
_LEASES = {"leases": [encode_lease(Lease(id="order-7", topic="thumbnails", fence=1, due_at=1_800_000_000_000))]}
_WRITES = (STORE_FULL, TOO_MANY_WAITING)
_READS = (TOO_MANY_WAITING,)

_TASKS = (
    Operation(
        "POST", "/create", "createTask", "tasks", "Create a task.",
        "CreateResponse", "CreateRequest", {**_CREATE, "id": "order-8"},
        problems=(EXISTS, IN_FLIGHT, CHANGED, NOT_DURABLE, *_WRITES),
    ),
    Operation(
        "POST", "/query", "queryTask", "tasks", "Show a task.",
        "TaskView", "TaskIdRequest", _TASK, problems=(NO_SUCH_TASK, *_READS),
    ),
    Operation(
        "POST", "/delete", "deleteTask", "tasks", "Remove a task, or forget an id that is remembered.",
        "DeleteResponse", "DeleteRequest", _TASK, problems=(NO_SUCH_TASK, NOT_DURABLE, TOO_MANY_WAITING),
    ),
    Operation(
        "POST", "/update", "updateTask", "tasks", "Change a task that waits.",
        "TaskView", "UpdateRequest", {**_TASK, "delay": 60},
        problems=(NO_SUCH_TASK, IN_FLIGHT, CHANGED, NOT_DURABLE, *_WRITES),
    ),
    Operation(
        "POST", "/run-now", "runTaskNow", "tasks", "Let a task be due now, or several, also dead ones.",
        "RunNowAnswer", "RunNowRequest", _TASK,
        problems=(NO_SUCH_TASK, IN_FLIGHT, NOT_DURABLE, TOO_MANY_WAITING),
    ),
    Operation(
        "POST", "/redrive", "redriveTasks", "tasks", "Let a dead task be due again, or several, or those of a topic.",
        "RedriveAnswer", "RedriveRequest", {"topic": "order", "reason": "exhausted", "rate": 10},
        problems=(NO_SUCH_TASK, CHANGED, NOT_DURABLE, TOO_MANY_WAITING),
    ),
    Operation(
        "POST", "/list", "listTasks", "tasks", "List the tasks of a topic in a state, by their due times.",
        "ListResponse", "ListRequest", {"topic": "order", "state": "pending", "limit": 100}, problems=_READS,
    ),
    Operation(
        "POST", "/explain", "explain", "tasks", "Say why a task, or the tasks of a topic, have not run yet.",
        "Explanation", "ExplainRequest", {"topic": "order"}, problems=(NO_SUCH_TASK, *_READS),
    ),
)  # fmt: skip

_BATCHES = (
    Operation(
        "POST", "/create/batch", "createTasks", "batches", "Create many tasks.",
        "BatchCreateResponse", "CreatesRequest", [_CREATE, {**_CREATE, "id": "order-9"}],
        path_example="/create/batch?job=import-1", problems=(*_WRITES, CHANGED), takes_lines=True,
    ),
    Operation(
        "POST", "/query/batch", "queryTasks", "batches", "Show many tasks.",
        "BatchQueryResponse", "TaskIdsRequest", [_TASK], problems=_READS, takes_lines=True,
    ),
    Operation(
        "POST", "/delete/batch", "deleteTasks", "batches", "Remove many tasks.",
        "BatchDeleteResponse", "TaskIdsRequest", [_TASK], path_example="/delete/batch?pending=true&dry_run=true",
        problems=(TOO_MANY_WAITING,), takes_lines=True,
    ),
    Operation(
        "GET", "/jobs", "listJobs", "batches", "List jobs with their counts, the one that is forgotten last first.",
        "JobsResponse", path_example="/jobs?limit=50", problems=_READS,
    ),
    Operation(
        "GET", "/jobs/{id}", "showJob", "batches", "Count what the batches of a job have created.",
        "JobResponse", path_example="/jobs/import-1", problems=(NO_SUCH_JOB,),
    ),
)  # fmt: skip

_TOPICS = (
    Operation(
        "GET", "/topics", "listTopics", "topics", "List topics by name, with the numbers of their tasks.",
        "TopicList", path_example="/topics?limit=50",
    ),
    Operation(
        "GET", "/topics/{topic}", "showTopic", "topics", "Show a topic, and the policy that applies to it.",
        "Topic", path_example="/topics/order",
    ),
    Operation(
        "GET", "/topics/{topic}/forecast", "forecastTopic", "topics",
        "Say when the waiting tasks of a topic fall due, and how late its rate, or another, makes them.",
        "TopicForecast", path_example="/topics/order/forecast?hours=2&step=60&rate=2",
    ),
    Operation(
        "GET", "/forecast", "forecast", "topics", "Say when the waiting tasks of the busiest topics fall due.",
        "Forecast", path_example="/forecast?hours=24&step=3600",
    ),
    Operation(
        "POST", "/topics/{topic}/pause", "pauseTopic", "topics", "Deliver nothing more of a topic.",
        "Paused", "EmptyRequest", path_example="/topics/order/pause", problems=(CHANGED,), may_lack_body=True,
    ),
    Operation(
        "POST", "/topics/{topic}/resume", "resumeTopic", "topics", "Deliver the tasks of a paused topic again.",
        "Paused", "EmptyRequest", path_example="/topics/order/resume", problems=(CHANGED,), may_lack_body=True,
    ),
    Operation(
        "POST", "/topics/{topic}/purge", "purgeTopic", "topics", "Remove the tasks of a topic, or some dead ones.",
        "MovedTasks", "PurgeRequest", {"states": ["dead"], "dry_run": True}, path_example="/topics/order/purge",
        may_lack_body=True,
    ),
)  # fmt: skip


def _policy_operations(scope: str, path: str, path_example: str) -> tuple[Operation, ...]:
    """Return the operations on the policy of a topic or a namespace."""
    name = scope.capitalize()
    policy, example = f"{path}/policy", f"{path_example}/policy"
    return (
        Operation(
            "GET", policy, f"show{name}Policy", "policies",
            f"Show the policy that is set at a {scope}, or all that applies to it, and the level that sets each field.",
            "PolicyAnswer", path_example=f"{example}?applied=true",
        ),
        Operation(
            "PUT", policy, f"replace{name}Policy", "policies", f"Set the policy of a {scope}; other fields inherit.",
            "Settings", "PolicyRequest", {"retry": 5, "rate": 50}, example, (CHANGED,),
        ),
        Operation(
            "PATCH", policy, f"change{name}Policy", "policies", f"Set fields of a {scope}'s policy; null inherits.",
            "Settings", "PolicyRequest", {"concurrency": 10, "rate": None}, example, (CHANGED,),
        ),
        Operation(
            "DELETE", policy, f"remove{name}Policy", "policies", f"Let a {scope} inherit every field of its policy.",
            "Settings", path_example=example, problems=(CHANGED,),
        ),
    )  # fmt: skip


def _signing_operations(scope: str, path: str, path_example: str) -> tuple[Operation, ...]:
    """Return the operations on the signing secret of a topic or a namespace."""
    name = scope.capitalize()
    return (
        Operation(
            "GET", f"{path}/signing", f"show{name}Signing", "signing",
            f"Show which generations of a {scope}'s secret sign, and until when; never a secret.",
            "Signing", path_example=f"{path_example}/signing",
        ),
        Operation(
            "POST", f"{path}/signing/rotate", f"rotate{name}Signing", "signing",
            f"Make a new secret for a {scope}. This answer alone shows it.",
            "Signing", "RotationRequest", {"overlap": 86400}, f"{path_example}/signing/rotate",
            (TOO_MANY_SECRETS, CHANGED), may_lack_body=True,
        ),
    )  # fmt: skip


def _pulsar_operations(scope: str, path: str, path_example: str) -> tuple[Operation, ...]:
    """Return Pulsar's operations on the delayed delivery of a topic or a namespace."""
    name = scope.capitalize()
    path, example = f"/admin/v2/{path}/delayedDelivery", f"/admin/v2/{path_example}/delayedDelivery"
    return (
        Operation(
            "GET", path, f"show{name}DelayedDelivery", "pulsar", f"Show the delayed delivery of a {scope}.",
            "DelayedDeliveryAnswer", path_example=f"{example}?applied=true",
        ),
        Operation(
            "POST", path, f"change{name}DelayedDelivery", "pulsar", f"Set the delayed delivery of a {scope}.",
            NO_BODY, "DelayedDeliveryRequest", {"active": True, "maxDeliveryDelayInMillis": 3_600_000}, example,
            (CHANGED,),
        ),
        Operation(
            "DELETE", path, f"remove{name}DelayedDelivery", "pulsar", f"Let a {scope} inherit its delayed delivery.",
            NO_BODY, path_example=example, problems=(CHANGED,),
        ),
    )  # fmt: skip


_TOPIC = ("topic", "/topics/{topic}", "/topics/order")
_NAMESPACE = ("namespace", "/namespaces/{namespace}", "/namespaces/shop")
_CONSUMERS = (
    Operation(
        "POST", "/claim", "claimTasks", "consumers", "Claim tasks of pulled topics, and wait for one if none is due.",
        "ClaimResponse", "ClaimRequest", {"topics": ["thumbnails"], "max": 10, "lease": 60},
        problems=(PUSHED_TOPIC, TOO_MANY_WAITING, TOO_MANY_WAITERS),
    ),
    Operation(
        "POST", "/ack", "ackTasks", "consumers", "Say that claimed tasks are done.",
        "AckResponse", "LeasesRequest", _LEASES, problems=(TOO_MANY_WAITING,),
    ),
    Operation(
        "POST", "/nack", "nackTasks", "consumers", "Say that attempts at claimed tasks have failed.",
        "NackResponse", "NackRequest", {**_LEASES, "delay": 30, "message": "the printer is out of paper"},
        problems=(TOO_MANY_WAITING,),
    ),
    Operation(
        "POST", "/release", "releaseTasks", "consumers", "Give claimed tasks back: the attempts do not count.",
        "ReleaseResponse", "LeasesRequest", _LEASES, problems=(TOO_MANY_WAITING,),
    ),
    Operation(
        "POST", "/extend", "extendLeases", "consumers", "Let leases last longer.",
        "ExtendResponse", "ExtendRequest", {**_LEASES, "lease": 60}, problems=(TOO_MANY_WAITING,),
    ),
)  # fmt: skip
_SCHEDULE, _SCHEDULE_EXAMPLE = "/schedules/{id}", "/schedules/report"
_SCHEDULES = (
    Operation(
        "GET", "/schedules", "listSchedules", "schedules", "List schedules, each with its next time.",
        "SchedulesResponse", path_example="/schedules?limit=50",
    ),
    Operation(
        "PUT", _SCHEDULE, "putSchedule", "schedules", "Make or replace a schedule; answers its next ten times.",
        "ScheduleResponse", "ScheduleRequest",
        {"cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "topic": "report", "callback": "http://127.0.0.1:8888/report"},
        _SCHEDULE_EXAMPLE, (TOO_MANY_SCHEDULES, CHANGED, *_WRITES),
    ),
    Operation(
        "GET", _SCHEDULE, "showSchedule", "schedules", "Show a schedule, its next ten times and its last firing.",
        "ScheduleView", path_example=_SCHEDULE_EXAMPLE, problems=(NO_SUCH_SCHEDULE, *_READS),
    ),
    Operation(
        "DELETE", _SCHEDULE, "deleteSchedule", "schedules", "Remove a schedule. Its tasks stay.",
        "ScheduleId", path_example=_SCHEDULE_EXAMPLE, problems=(NO_SUCH_SCHEDULE, CHANGED, *_READS),
    ),
    Operation(
        "POST", f"{_SCHEDULE}/pause", "pauseSchedule", "schedules", "Let a schedule fire no more until it is resumed.",
        "PausedSchedule", "EmptyRequest", path_example=f"{_SCHEDULE_EXAMPLE}/pause",
        problems=(NO_SUCH_SCHEDULE, CHANGED, *_READS), may_lack_body=True,
    ),
    Operation(
        "POST", f"{_SCHEDULE}/resume", "resumeSchedule", "schedules", "Let a paused schedule fire again.",
        "PausedSchedule", "EmptyRequest", path_example=f"{_SCHEDULE_EXAMPLE}/resume",
        problems=(NO_SUCH_SCHEDULE, CHANGED, *_READS), may_lack_body=True,
    ),
    Operation(
        "POST", f"{_SCHEDULE}/run-now", "runScheduleNow", "schedules", "Create a task of a schedule now.",
        "ScheduleId", "EmptyRequest", path_example=f"{_SCHEDULE_EXAMPLE}/run-now",
        problems=(NO_SUCH_SCHEDULE, *_WRITES), may_lack_body=True,
    ),
)  # fmt: skip
_HISTORY = (
    Operation(
        "GET", "/history", "showHistory", "history", "Show counts, gauges and percentiles by slots of time.",
        "History", path_example="/history?series=created,done,lateness_p99", problems=_READS,
    ),
    Operation(
        "GET", "/deliveries", "listDeliveries", "history", "List a sample of the deliveries, the newest first.",
        "Deliveries", path_example="/deliveries?outcome=failed&limit=50", problems=_READS,
    ),
)  # fmt: skip
_CLOCK = (
    Operation(
        "GET", "/dev/clock", "showClock", "clock", "Show the daemon's time, and how far ahead it is of the machine's.",
        "ClockAnswer",
    ),
    Operation(
        "POST", "/dev/clock", "moveClock", "clock", "Move the clock forward.",
        "ClockAnswer", "ClockRequest", {"advance": 2_592_000, "settle": True},
    ),
)  # fmt: skip
_CONSOLE = (
    Operation(
        "POST", "/console/session", "signIn", "console", "Exchange a key for the cookie of a session.",
        NO_BODY, "SignInRequest", {"key": "later_…"}, problems=(NO_KEY,),
    ),
    Operation("DELETE", "/console/session", "signOut", "console", "Let the browser forget the session.", NO_BODY),
)  # fmt: skip
_DAEMON = (
    Operation(
        "GET", "/workers", "listWorkers", "daemon", "List the processes of all daemons on the store.", "Workers",
    ),
    Operation(
        "GET", "/overview", "showOverview", "daemon",
        "Show how all is, in a sentence and in numbers, and the worst topics.", "Overview",
        path_example="/overview?topics=5",
    ),
    Operation("GET", "/whoami", "whoAmI", "daemon", "Show what a key may do, and what a request may hold.", "WhoAmI"),
    Operation("GET", "/livez", "live", "daemon", "Show whether the daemon works, or only a restart helps.", "Alive",
              problems=(NOT_ALIVE,)),
    Operation("GET", "/readyz", "ready", "daemon", "Show whether the daemon can do its work.", "Ready",
              problems=(NOT_READY, STORE_MISMATCH)),
    Operation("GET", "/metrics", "metrics", "daemon", "Show the metrics, for Prometheus.", TEXT, problems=(NOT_READY,)),
    Operation("GET", "/", "listRoutes", "daemon", "List the routes.", "Routes"),
    Operation("GET", "/version", "version", "daemon", "Show the version.", "Version"),
    Operation("GET", "/openapi.json", "describe", "daemon", "Show this description.", "Description"),
    Operation("GET", "/problems/{name}", "explainProblem", "daemon", "Say what a type of problem means.", TEXT,
              path_example="/problems/refused"),
)  # fmt: skip

OPERATIONS = (
    *_TASKS,
    *_BATCHES,
    *_TOPICS,
    *_policy_operations(*_TOPIC),
    *_policy_operations(*_NAMESPACE),
    *_SCHEDULES,
    *_CONSUMERS,
    *_signing_operations(*_TOPIC),
    *_signing_operations(*_NAMESPACE),
    *_pulsar_operations("topic", "persistent/public/{namespace}/{topic}", "persistent/public/shop/order"),
    *_pulsar_operations("namespace", "namespaces/public/{namespace}", "namespaces/public/shop"),
    *_HISTORY,
    *_CLOCK,
    *_CONSOLE,
    *_DAEMON,
)
"""All operations but those of Zaqar's API, which Zaqar describes."""
